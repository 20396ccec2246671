//! `strandfs bench reproduce`.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use strandfs_lab::layers::LayersPlan;
use strandfs_lab::layers::plan::Mode;
use strandfs_lab::matrix::{Backing, MatrixPlan, recipe, run as matrix};
use strandfs_lab::reproduce::{Results, page};
use strandfs_lab::result::Report;
use strandfs_lab::volume::{Candidate, Io, Server, VolumePlan, run as volume};
use strandfs_lab::{BenchError, blocksize, passthrough};

use super::output::writable;
use super::progress::Bar;
use super::{stop_on_signals, this_program};
use crate::args::bench::reproduce::ReproduceArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Bytes of the files in memory.
const FILE_BYTES: u64 = 64 << 20;
/// Of a job of fio.
const JOB: Duration = Duration::from_secs(2);

/// Measures all tables that were published and writes the page.
///
/// # Errors
/// Something could not be measured (but for the volume, which then is missing), or not be written.
pub fn run(args: &ReproduceArgs) -> Result<ExitCode, Failure> {
    writable(&args.output).map_err(BenchError::io("writing", &args.output))?;
    if let Some(dir) = &args.results {
        fs::create_dir_all(dir).map_err(BenchError::io("making", dir))?;
    }
    let stop = stop_on_signals()?;
    let bar = Bar::new();
    let place = place(args)?;
    let blocksize = blocksize::run(&place, &stop, &mut |step| bar.show(step))?;
    keep(args, &blocksize)?;
    let passthrough = passthrough::run(&place, &stop, &mut |step| bar.show(step))?;
    keep(args, &passthrough)?;
    let matrix = matrix(&matrix_plan(args), &stop, &mut |step| bar.show(step))?;
    keep(args, &matrix)?;
    let volume = match volume(&volume_plan(args)?, &stop, &mut |step| bar.show(step)) {
        Err(BenchError::Usage(_)) => None,
        other => Some(other?),
    };
    drop(bar);
    if let Some(volume) = &volume {
        keep(args, volume)?;
    }
    let text = page(&Results {
        blocksize: &blocksize,
        passthrough: &passthrough,
        matrix: &matrix,
        volume: volume.as_ref(),
    });
    fs::write(&args.output, &text).map_err(BenchError::io("writing", &args.output))?;
    print!("{text}");
    let all = [
        Some(&blocksize),
        Some(&passthrough),
        Some(&matrix),
        volume.as_ref(),
    ];
    let complete = all.iter().all(|it| it.is_some_and(|it| !it.interrupted));
    Ok(match complete {
        true => ExitCode::SUCCESS,
        false => Exit::Degraded.into(),
    })
}

fn keep(args: &ReproduceArgs, report: &Report) -> Result<(), BenchError> {
    match &args.results {
        Some(dir) => report.write(&dir.join(format!("{}.json", report.kind.name()))),
        None => Ok(()),
    }
}

fn place(args: &ReproduceArgs) -> Result<LayersPlan, Failure> {
    Ok(LayersPlan {
        modes: Mode::ALL.to_vec(),
        file_bytes: FILE_BYTES,
        repetitions: args.reps,
        most_repetitions: args.reps,
        ..LayersPlan::new(this_program()?, args.images.clone())
    })
}

fn matrix_plan(args: &ReproduceArgs) -> MatrixPlan {
    MatrixPlan {
        recipes: recipe::presets(),
        size: args.size,
        repetitions: args.reps,
        most_repetitions: args.reps,
        pause: Duration::from_millis(100),
        place: Backing::Image,
        directory: args.images.clone(),
        seed: 1,
    }
}

fn volume_plan(args: &ReproduceArgs) -> Result<VolumePlan, Failure> {
    let program = this_program()?;
    let server = |io, transport: Option<&str>| {
        Candidate::Volume(Server {
            program: program.clone(),
            io,
            transport: transport.map(str::to_owned),
        })
    };
    Ok(VolumePlan {
        candidates: vec![
            Candidate::Loop,
            server(Io::Passthrough, None),
            server(Io::Uring, None),
            server(Io::Sync, Some("dev")),
        ],
        size: 4 * FILE_BYTES,
        time: JOB,
        repetitions: args.reps,
        directory: None,
        seed: 1,
    })
}
