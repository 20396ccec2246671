//! `strandfs bench volume`.

use std::process::ExitCode;

use strandfs_lab::result::Report;
use strandfs_lab::volume::{Candidate, Io, Server, VolumePlan, run as measure, table};

use super::{conclude, measured, print_notes, setting, this_program};
use crate::args::bench::volume::{VolumeBenchArgs, VolumeIo, VolumeTransport};
use crate::failure::Failure;

/// Measures.
///
/// # Errors
/// A wrong request, or nothing could be measured.
pub fn run(args: &VolumeBenchArgs) -> Result<ExitCode, Failure> {
    let plan = VolumePlan {
        candidates: candidates(args)?,
        size: args.size,
        time: args.time,
        repetitions: args.reps,
        directory: args.directory.clone(),
        seed: args.seed,
    };
    let report = measured(&args.output, |stop, progress| {
        measure(&plan, stop, progress)
    })?;
    print(&report);
    args.output.write(|path| report.write(path))?;
    let rows = report.series.iter().filter(|it| it.samples.contains(&None));
    let complete = report.subjects.len() == plan.candidates.len() && rows.count() == 0;
    Ok(conclude(&report, complete))
}

/// The file, the loop device, a volume for each way, and ext4 on the first of those.
fn candidates(args: &VolumeBenchArgs) -> Result<Vec<Candidate>, Failure> {
    let program = this_program()?;
    let mut servers = Vec::new();
    for io in &args.io {
        let server = |transport: Option<&str>| Server {
            program: program.clone(),
            io: match io {
                VolumeIo::Passthrough => Io::Passthrough,
                VolumeIo::Uring => Io::Uring,
                VolumeIo::Sync => Io::Sync,
            },
            transport: transport.map(str::to_owned),
        };
        if args.transport.is_empty() {
            // The plainest server, whatever else can be had; the others choose.
            let plain = matches!(io, VolumeIo::Sync);
            servers.push(server(plain.then_some("dev")));
        }
        servers.extend(args.transport.iter().map(|transport| {
            server(Some(match transport {
                VolumeTransport::Dev => "dev",
                VolumeTransport::Uring => "uring",
            }))
        }));
    }
    let filesystem = servers.first().cloned().map(Candidate::Filesystem);
    let mut all = vec![Candidate::File, Candidate::Loop];
    all.extend(servers.into_iter().map(Candidate::Volume));
    all.extend(filesystem);
    Ok(all)
}

fn print(report: &Report) {
    let setting = |name| setting(report, name);
    println!(
        "{}, {} repetitions, four jobs of {} in turn: {}, {} in flight, backing files of {}",
        super::machine(&report.environment),
        report.repetitions,
        setting("time"),
        setting("block"),
        setting("iodepth"),
        setting("size"),
    );
    if !report.series.is_empty() {
        println!("\n{}", table::rates(report));
        println!("{}", table::ratios(report));
        if let Some(servers) = table::ratios_of_servers(report) {
            println!("{servers}");
        }
    }
    print_notes(&report.warnings);
}
