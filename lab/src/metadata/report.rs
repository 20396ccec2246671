//! The table, and what a reader has to know beside it.

use super::row::{Row, shared_work};
use super::run::{Column, Measured, Results};
use crate::cpu::cost;
use crate::credibility::{few_note, free_memory_note, interrupted_note, load_note};
use crate::format;
use crate::regime::Regime;
use crate::result::{Cache, Kind, Report, Sample, Series, Unit, Work};
use crate::sentinel;
use crate::stats::{Estimate, estimate, speed_ratio};
use crate::subject::Family;

/// An interval that reaches further than this share of its median to either side is wide.
const WIDE: f64 = 0.25;

impl Results {
    /// The common form, with every sample.
    pub fn report(&self) -> Report {
        let mut report = Report::new(Kind::Metadata, self.regime, self.seed);
        report.environment = self.environment.clone();
        report.repetitions = self.repetitions;
        report.interrupted = self.interrupted;
        report.noise = self.noise.clone();
        report.warnings = self.warnings();
        let files = self.files.to_string();
        report.settings.insert("files".to_owned(), files);
        if let Some(user) = &self.user {
            report.settings.insert("user".to_owned(), user.clone());
        }
        for column in &self.columns {
            report.subjects.push(column.facts.clone());
            let rows = column.samples.iter();
            let rows = rows.filter(|(_, samples)| samples.iter().any(Option::is_some));
            report
                .series
                .extend(rows.map(|(row, samples)| self.series(column, *row, samples)));
        }
        report
    }

    fn series(&self, column: &Column, row: Row, samples: &[Option<Measured>]) -> Series {
        let sample = |measured: Measured| Sample {
            value: measured.seconds,
            cpu: measured.cpu,
            ..Sample::default()
        };
        Series {
            subject: column.name.clone(),
            workload: row.name(),
            unit: Unit::Seconds,
            work: Work {
                operations: shared_work(self.files, row.callers) as u64,
                bytes: 0,
            },
            cache: match row.workload.depth() {
                Some(_) => Cache::Direct,
                None if row.workload.is_cold() => Cache::Cold,
                None => Cache::Any,
            },
            samples: samples.iter().map(|it| it.map(sample)).collect(),
            unstable: false,
        }
    }

    /// Times as ratios to the bare filesystem: 0.50 takes twice as long.
    pub fn table(&self) -> String {
        let Some((native, others)) = self.columns.split_first() else {
            return String::new();
        };
        let mut heading = vec!["speed, native = 1".to_owned(), "native, each".to_owned()];
        heading.extend(others.iter().map(|column| column.name.clone()));
        let mut rows = vec![heading];
        for row in self.rows() {
            let mut cells = vec![row.name(), self.each(native, row)];
            for column in others {
                cells.push(cell(self.ratio(native, column, row)));
            }
            rows.push(cells);
        }
        format::table(&rows)
    }

    /// CPU time of each subject's server for one operation; empty where no subject has one.
    pub fn server_cpu(&self) -> String {
        let has_server = |column: &&Column| {
            let mut samples = column.samples.values().flatten().flatten();
            samples.any(|it| it.cpu.is_some_and(|cpu| cpu.server.is_some()))
        };
        let columns: Vec<&Column> = self.columns.iter().filter(has_server).collect();
        if columns.is_empty() {
            return String::new();
        }
        let mut heading = vec!["server CPU, each".to_owned()];
        heading.extend(columns.iter().map(|column| column.name.clone()));
        let mut rows = vec![heading];
        for row in self
            .rows()
            .into_iter()
            .filter(|row| row.workload.depth().is_none())
        {
            let mut cells = vec![row.name()];
            cells.extend(columns.iter().map(|column| self.server_cpu_of(column, row)));
            rows.push(cells);
        }
        match rows.len() {
            1 => String::new(),
            _ => format::table(&rows),
        }
    }

    fn server_cpu_of(&self, column: &Column, row: Row) -> String {
        let operations = shared_work(self.files, row.callers) as f64;
        let spent = |it: &Measured| Some((it.cpu?, operations));
        let spent: Vec<_> = samples(column, row)
            .iter()
            .flatten()
            .filter_map(spent)
            .collect();
        let server = cost(&spent).and_then(|cost| cost.server);
        server.map_or_else(
            || "-".to_owned(),
            |it| format::between(&it, format::seconds),
        )
    }

    /// How the requests of each pool came, and what the kernel allows.
    pub fn transports(&self) -> Vec<String> {
        let mut lines = vec![match self.environment.fuse_uring {
            Some(true) => "FUSE over io_uring is on in this kernel (enable_uring=Y)".to_owned(),
            Some(false) => "FUSE over io_uring is off in this kernel (enable_uring=N)".to_owned(),
            None => "this kernel has no FUSE over io_uring".to_owned(),
        }];
        let pools = self.columns.iter();
        lines.extend(pools.filter_map(|column| {
            let transport = column.facts.transport.as_ref()?;
            Some(format!("{}: transport={transport}", column.name))
        }));
        lines
    }

    /// How strandfs compares with the fastest mode of mergerfs over as many branches, row by row.
    pub fn against_mergerfs(&self) -> String {
        let mut rows = vec![vec![
            "speed, best mergerfs = 1".to_owned(),
            "strandfs".to_owned(),
            "its mode".to_owned(),
        ]];
        for ours in self
            .columns
            .iter()
            .filter(|it| it.family == Family::Strandfs)
        {
            for row in self.rows() {
                if let Some((peer, ratio)) = self.best_mode(ours, row) {
                    rows.push(vec![
                        format!("{}: {}", ours.name, row.name()),
                        cell(Some(ratio)),
                        peer.to_owned(),
                    ]);
                }
            }
        }
        match rows.len() {
            1 => String::new(),
            _ => format::table(&rows),
        }
    }

    /// The mode with the best median, and our speed against it.
    fn best_mode(&self, ours: &Column, row: Row) -> Option<(&str, Estimate)> {
        let peers = self
            .columns
            .iter()
            .filter(|column| column.family == Family::Mergerfs && column.branches == ours.branches);
        let best = peers
            .filter_map(|peer| Some((peer, estimate(&known(peer, row))?.median)))
            .min_by(|one, other| one.1.total_cmp(&other.1))?;
        let ratio = self.ratio(best.0, ours, row)?;
        Some((&best.0.name, ratio))
    }

    /// Sentences that belong under the table.
    pub fn warnings(&self) -> Vec<String> {
        let mut said = Vec::new();
        if self.regime == Regime::Quiet {
            said.extend(load_note(&self.environment));
        }
        said.extend(free_memory_note(&self.environment));
        said.extend(sentinel::warnings(&self.noise));
        if let Some(few) = few_note(Kind::Metadata, self.repetitions) {
            said.push(few);
        } else if let Some(widest) = self.widest().filter(|widest| widest.1 > WIDE) {
            said.push(format!(
                "the interval of {} is wide (±{:.0} %): give more --reps, or more --files if its \
                 times are short",
                widest.0,
                widest.1 * 100.0
            ));
        }
        said.extend(interrupted_note(self.interrupted, self.repetitions));
        said.extend(self.failures.iter().cloned());
        said
    }

    /// The row and column with the widest interval.
    fn widest(&self) -> Option<(String, f64)> {
        let (native, others) = self.columns.split_first()?;
        let cells = others.iter().flat_map(|column| {
            self.rows().into_iter().filter_map(move |row| {
                let ratio = self.ratio(native, column, row)?;
                let name = format!("{} on {}", row.name(), column.name);
                Some((name, ratio.uncertainty()))
            })
        });
        cells.max_by(|one, other| one.1.total_cmp(&other.1))
    }

    fn rows(&self) -> Vec<Row> {
        let native = self.columns.first();
        native.map_or_else(Vec::new, |column| column.samples.keys().copied().collect())
    }

    fn ratio(&self, base: &Column, column: &Column, row: Row) -> Option<Estimate> {
        speed_ratio(&seconds(base, row), &seconds(column, row))
    }

    /// What one operation takes on the bare filesystem.
    fn each(&self, native: &Column, row: Row) -> String {
        let operations = shared_work(self.files, row.callers) as f64;
        estimate(&known(native, row)).map_or_else(
            || "-".to_owned(),
            |it| format::between(&it, |it| format::seconds(it / operations)),
        )
    }
}

fn samples(column: &Column, row: Row) -> &[Option<Measured>] {
    column.samples.get(&row).map_or(&[], Vec::as_slice)
}

/// Seconds of each repetition.
fn seconds(column: &Column, row: Row) -> Vec<Option<f64>> {
    let samples = samples(column, row).iter();
    samples.map(|it| it.map(|it| it.seconds)).collect()
}

/// Those there are.
fn known(column: &Column, row: Row) -> Vec<f64> {
    seconds(column, row).into_iter().flatten().collect()
}

fn cell(ratio: Option<Estimate>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |it| format::between(&it, format::ratio))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use crate::environment::Environment;
    use crate::metadata::Workload;
    use crate::metadata::run::Samples;

    fn column(name: &str, family: Family, seconds: &[f64]) -> Column {
        let sample = |seconds: &f64| {
            let cpu = Cpu {
                server: (family != Family::Native).then_some(seconds / 2.0),
                ..Cpu::default()
            };
            Some(Measured {
                seconds: *seconds,
                cpu: Some(cpu),
            })
        };
        let row = Row {
            callers: 1,
            workload: Workload::Create,
        };
        Column {
            facts: crate::result::Subject {
                name: name.to_owned(),
                ..crate::result::Subject::default()
            },
            name: name.to_owned(),
            branches: 1,
            samples: Samples::from([(row, seconds.iter().map(sample).collect())]),
            family,
        }
    }

    fn results(repetitions: usize) -> Results {
        let times = |each: f64| vec![each; repetitions];
        let mut environment = Environment::read();
        (environment.load_before, environment.free_page_reporting) = (0.0, false);
        Results {
            environment,
            regime: Regime::Quiet,
            files: 1000,
            user: None,
            seed: 1,
            repetitions,
            interrupted: false,
            columns: vec![
                column("native", Family::Native, &times(0.001)),
                column("strandfs", Family::Strandfs, &times(0.002)),
                column("mergerfs", Family::Mergerfs, &times(0.008)),
                column("mergerfs long", Family::Mergerfs, &times(0.004)),
                column("overlayfs", Family::Other, &times(0.001)),
            ],
            noise: Vec::new(),
            failures: Vec::new(),
        }
    }

    #[test]
    fn the_table_holds_ratios_to_the_bare_filesystem() {
        let table = results(5).table();
        let row = table.lines().nth(1).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let expected = ["create", "1.00", "us", "[1.00", "us", "1.00", "us]", "0.50"];
        assert_eq!(cells[..8], expected, "{table}");
        assert!(row.contains("0.12 [0.12 0.12]"), "{table}");
    }

    #[test]
    fn the_common_form_says_the_same_as_the_table() {
        let report = results(5).report();
        let native = report.find("native", "create").unwrap();
        let strandfs = report.find("strandfs", "create").unwrap();
        assert_eq!(strandfs.speed(native).unwrap().median, 0.5);
        assert_eq!(report.base_of("strandfs"), Some("native"));
        assert_eq!((native.work.operations, native.samples.len()), (1000, 5));
    }

    #[test]
    fn mergerfs_is_met_at_its_best() {
        let table = results(5).against_mergerfs();
        let row = table.lines().nth(1).unwrap();
        assert!(row.starts_with("strandfs: create"), "{table}");
        assert!(
            row.contains("2.00 [2.00 2.00]") && row.ends_with("mergerfs long"),
            "{table}"
        );
    }

    #[test]
    fn a_server_is_told_its_cpu_time() {
        let table = results(5).server_cpu();
        let heading: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
        assert!(!heading.contains(&"native"), "{table}");
        let row = table.lines().nth(1).unwrap();
        assert!(row.contains("1.00 us [1.00 us 1.00 us]"), "{table}");
    }

    #[test]
    fn a_result_that_is_none_says_so() {
        assert_eq!(results(5).warnings(), [""; 0]);
        let mut few = results(3);
        few.environment.load_before = 3.0;
        few.environment.free_page_reporting = true;
        few.interrupted = true;
        // What others did was neither looked at nor said.
        few.noise = vec![crate::result::Noise {
            others_cpus: 1.5,
            ..crate::result::Noise::default()
        }];
        let said = few.warnings().join("\n");
        for word in [
            "--reps 5",
            "load was 3.0",
            "free page reporting",
            "interrupted",
            "1.5 CPUs, in 1 of 1",
        ] {
            assert!(said.contains(word), "{said}");
        }
    }
}
