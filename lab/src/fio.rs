//! Running fio and reading what it found.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::error::BenchError;
use crate::result::{Latency, Sample};
use crate::tool;

/// Percentiles that are kept, as fio spells them.
const PERCENTILES: [(f64, &str); 5] = [
    (50.0, "50.000000"),
    (90.0, "90.000000"),
    (95.0, "95.000000"),
    (99.0, "99.000000"),
    (99.9, "99.900000"),
];

/// What fio does.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// `rw=`: read, randread, write, randwrite.
    pub kind: &'a str,
    /// A file or a device that exists; nothing else is touched.
    pub target: &'a Path,
    /// Bytes from its beginning that are used.
    pub size: u64,
    /// Bytes of one request.
    pub block: u64,
    /// Requests in flight.
    pub depth: u32,
    /// How long it runs.
    pub time: Duration,
}

/// What it found.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Operations a second, with latencies from submission to completion.
    pub sample: Sample,
    /// Operations.
    pub operations: u64,
}

/// fio's JSON, as far as it is needed.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<JobOutput>,
}

#[derive(Deserialize)]
struct JobOutput {
    error: i32,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    iops: f64,
    lat_ns: Times,
}

#[derive(Deserialize)]
struct Times {
    #[serde(default)]
    mean: f64,
    #[serde(rename = "N", default)]
    count: u64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

/// The arguments of a job: direct, asynchronous, for a time.
pub fn arguments(job: &Job<'_>) -> Vec<OsString> {
    let mut filename = OsString::from("--filename=");
    // A colon separates names.
    filename.push(job.target.to_string_lossy().replace(':', "\\:"));
    let plain = [
        "--name=job".to_owned(),
        "--output-format=json".to_owned(),
        format!("--rw={}", job.kind),
        format!("--bs={}", job.block),
        "--ioengine=libaio".to_owned(),
        format!("--iodepth={}", job.depth),
        "--direct=1".to_owned(),
        format!("--size={}", job.size),
        "--time_based=1".to_owned(),
        format!("--runtime={}ms", job.time.as_millis()),
        // Of the whole time of a request: what it waits to be submitted, too.
        "--lat_percentiles=1".to_owned(),
        // No file made by mistake.
        "--allow_file_create=0".to_owned(),
    ];
    plain
        .into_iter()
        .map(OsString::from)
        .chain([filename])
        .collect()
}

/// Runs a job.
///
/// # Errors
/// [`BenchError::Tool`]: fio is missing, failed, or did nothing.
pub fn run(job: &Job<'_>) -> Result<Outcome, BenchError> {
    let said = tool::run("fio", arguments(job))?;
    parse(&said).map_err(|why| BenchError::Tool {
        program: "fio".to_owned(),
        why,
    })
}

fn parse(text: &str) -> Result<Outcome, String> {
    // Warnings may stand before the object.
    let json = text.find('{').and_then(|at| text.get(at..)).unwrap_or(text);
    let output: Output =
        serde_json::from_str(json).map_err(|error| format!("its output has changed: {error}"))?;
    let job = output.jobs.first().ok_or("its output holds no job")?;
    if job.error != 0 {
        return Err(std::io::Error::from_raw_os_error(job.error).to_string());
    }
    let done = match job.read.total_ios {
        0 => &job.write,
        _ => &job.read,
    };
    if done.total_ios == 0 || done.iops <= 0.0 {
        return Err("it did nothing".to_owned());
    }
    let percentiles = PERCENTILES.iter().filter_map(|(number, name)| {
        let nanoseconds = done.lat_ns.percentile.get(*name)?;
        Some((*number, nanoseconds / 1e9))
    });
    Ok(Outcome {
        operations: done.total_ios,
        sample: Sample {
            value: done.iops,
            latency: Some(Latency {
                count: done.lat_ns.count,
                mean: done.lat_ns.mean / 1e9,
                percentiles: percentiles.collect(),
            }),
            ..Sample::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(read: u64, write: u64, error: i32) -> String {
        let direction = |total: u64| {
            format!(
                "{{\"total_ios\": {total}, \"iops\": {total}.5, \"clat_ns\": {{\"mean\": 500.0, \
                 \"N\": {total}}}, \"lat_ns\": {{\"mean\": 2000.0, \
                 \"N\": {total}, \"percentile\": {{\"50.000000\": 1000, \"99.900000\": 9000}}}}}}"
            )
        };
        format!(
            "fio: a warning\n{{\"jobs\": [{{\"error\": {error}, \"read\": {}, \"write\": {}}}]}}",
            direction(read),
            direction(write)
        )
    }

    #[test]
    fn the_direction_that_did_something_counts() {
        for (read, write) in [(70, 0), (0, 70)] {
            let found = parse(&output(read, write, 0)).unwrap();
            assert_eq!((found.operations, found.sample.value), (70, 70.5));
            let latency = found.sample.latency.unwrap();
            assert_eq!((latency.count, latency.mean), (70, 2e-6));
            assert_eq!(latency.percentiles, [(50.0, 1e-6), (99.9, 9e-6)]);
        }
    }

    /// At one request in flight the mean was a third of what one over the rate says: what a request
    /// waits to be submitted was left out.
    #[test]
    fn the_time_to_submit_a_request_is_part_of_its_latency() {
        if tool::find("fio").is_none() {
            return;
        }
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(file.path(), vec![7; 4 << 20]).unwrap();
        let found = run(&Job {
            kind: "randread",
            target: file.path(),
            size: 4 << 20,
            block: 4096,
            depth: 1,
            time: Duration::from_millis(300),
        });
        let sample = match found {
            Ok(found) => found.sample,
            // No O_DIRECT here.
            Err(_) => return,
        };
        let latency = sample.latency.unwrap();
        let told: Vec<f64> = latency.percentiles.iter().map(|it| it.0).collect();
        assert_eq!(told, [50.0, 90.0, 95.0, 99.0, 99.9]);
        assert!(
            latency.mean * sample.value > 0.5,
            "{latency:?} {}",
            sample.value
        );
    }

    #[test]
    fn nothing_done_an_error_and_another_form_are_no_samples() {
        for (text, said) in [
            (output(0, 0, 0), "did nothing"),
            (output(5, 0, 28), "No space left"),
            ("{}".to_owned(), "output has changed"),
            (String::new(), "output has changed"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
