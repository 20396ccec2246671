//! Reads the options of a mount as `mount -o` has them and says what each means and where it was set.
//!
//! `cargo run -p strandfs-options --example explain -- category.create=mfs,cache.attr=5m`

use std::process::ExitCode;

use strandfs_options::{Layers, Origin, TABLE};

fn main() -> ExitCode {
    let layers = Layers {
        origin: Origin::CommandLine,
        options: std::env::args().skip(1).collect(),
        ..Layers::default()
    };
    let loaded = match layers.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for notice in &loaded.notices {
        eprintln!("{notice}");
    }
    for option in TABLE {
        let origin = loaded.settings.origins.get(option.name);
        if let (Some(value), true) = (loaded.settings.get(option.name), *origin != Origin::Default)
        {
            println!("{}={value} ({origin})", option.name);
            println!("    {}", option.help);
        }
    }
    ExitCode::SUCCESS
}
