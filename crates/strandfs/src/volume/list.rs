//! `strandfs volume list`.

use std::process::ExitCode;

use serde_json::{Value, json};
use strandfs_options::show_size;

use super::found::{self, Found};
use crate::args::volume::ListArgs;
use crate::failure::Failure;

/// Shows the volumes that are served.
///
/// # Errors
/// The list of mounts cannot be read.
pub fn run(args: &ListArgs) -> Result<ExitCode, Failure> {
    let all = found::all()?;
    if args.json {
        println!("{:#}", all.iter().map(describe).collect::<Value>());
    } else if all.is_empty() {
        println!("no volume is served");
    } else {
        all.iter().for_each(print);
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(found: &Found) -> Value {
    let devices = found
        .devices
        .iter()
        .map(|device| json!({ "device": device.path, "mounts": device.mounts }));
    let mut value = match &found.status {
        Ok(status) => serde_json::to_value(status).unwrap_or_default(),
        Err(error) => json!({ "backing": found.backing, "error": error }),
    };
    if let Some(fields) = value.as_object_mut() {
        fields.insert("mountpoint".to_owned(), json!(found.mountpoint));
        fields.insert("devices".to_owned(), devices.collect());
    }
    value
}

fn print(found: &Found) {
    println!("{}", found.backing.display());
    println!("  served at {}", found.mountpoint.display());
    match &found.status {
        Err(error) => println!("  cannot be asked: {error}"),
        Ok(status) => {
            println!(
                "  {}, {} of it allocated, server pid {}",
                show_size(status.size_bytes),
                show_size(status.allocated_bytes),
                status.pid
            );
            println!("  io {}", because(&status.io, &status.io_reason));
            println!(
                "  transport {}",
                because(&status.transport, &status.transport_reason)
            );
            if !status.backing_exists {
                println!(
                    "  its backing file was removed: save {} before detaching",
                    found.file().display()
                );
            }
            for warning in &status.warnings {
                println!("  warning: {warning}");
            }
        }
    }
    for device in &found.devices {
        println!("  device {}", device.path.display());
        for mount in &device.mounts {
            println!("    mounted on {}", mount.display());
        }
    }
}

fn because(what: &str, reason: &Option<String>) -> String {
    match reason {
        Some(reason) => format!("{what}: {reason}"),
        None => what.to_owned(),
    }
}
