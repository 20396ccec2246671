//! In which unit a series is shown, and which way is better.

use crate::result::{Kind, Series, Unit};

/// What an axis or a column says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// `MB/s`.
    pub name: &'static str,
    /// From the base unit to this one.
    pub scale: f64,
}

const MIB: f64 = 1_048_576.0;

/// What a series is shown as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes a second; more is better.
    Throughput,
    /// Operations a second; more is better.
    Rate,
    /// Seconds for an operation, or for all of it; less is better.
    Time,
}

impl Quantity {
    /// Bytes where bytes move in large blocks, operations where there is one rate, else time.
    pub fn of(series: &Series) -> Self {
        /// Smaller blocks are about requests rather than bytes.
        const LARGE_BLOCK: u64 = 64 << 10;
        let work = series.work;
        match series.unit {
            Unit::OperationsPerSecond => Self::Rate,
            Unit::Seconds if work.bytes > 0 && work.bytes >= work.operations * LARGE_BLOCK => {
                Self::Throughput
            }
            Unit::Seconds => Self::Time,
        }
    }

    /// Which way is better.
    pub fn better(self) -> &'static str {
        match self {
            Self::Throughput | Self::Rate => "more is better",
            Self::Time => "less is better",
        }
    }

    /// The values of a series in base units: bytes a second, operations a second, seconds.
    pub fn values(self, series: &Series) -> Vec<f64> {
        let values = series.values().into_iter().flatten();
        let (bytes, operations) = (series.work.bytes as f64, series.work.operations as f64);
        values
            .map(|value| match self {
                Self::Throughput => bytes / value,
                Self::Time if operations > 0.0 => value / operations,
                Self::Rate | Self::Time => value,
            })
            .collect()
    }

    /// The unit that suits a typical value, as the tables of this benchmark have it: disks and what was
    /// published about them are in powers of ten, all else in powers of two.
    pub fn shown(self, kind: Kind, typical: f64) -> Shown {
        let pick = |units: &[(f64, &'static str)]| {
            let fitting = units.iter().find(|(least, _)| typical >= *least);
            let (size, name) = fitting.or(units.last()).copied().unwrap_or((1.0, ""));
            Shown {
                name,
                scale: 1.0 / size,
            }
        };
        match self {
            Self::Throughput if kind == Kind::Matrix => pick(&[(1e9, "GB/s"), (1e6, "MB/s")]),
            Self::Throughput => pick(&[(MIB, "MiB/s"), (1024.0, "KiB/s")]),
            Self::Rate => pick(&[(1e6, "million op/s"), (1e3, "thousand op/s"), (1.0, "op/s")]),
            Self::Time => pick(&[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")]),
        }
    }
}

/// What a time is the time of.
pub fn time_of(series: &Series) -> &'static str {
    match series.work.operations {
        0 | 1 => "time",
        _ => "time for one operation",
    }
}

/// Three significant digits, no more than anyone reads.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        it if it >= 99.5 => format!("{value:.0}"),
        it if it >= 9.95 => format!("{value:.1}"),
        it if it >= 0.0995 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The same for a mark on an axis: 5, not 5.00, beside 10.
pub fn mark(value: f64) -> String {
    let shown = number(value);
    match shown.contains('.') {
        true => shown.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_suit_the_value() {
        let shown = |it: Quantity, kind, typical| it.shown(kind, typical).name;
        assert_eq!(shown(Quantity::Throughput, Kind::Matrix, 2.5e9), "GB/s");
        assert_eq!(shown(Quantity::Throughput, Kind::Layers, 2.5e9), "MiB/s");
        assert_eq!(shown(Quantity::Time, Kind::Layers, 3e-5), "us");
        assert_eq!(shown(Quantity::Time, Kind::Layers, 0.0), "ns");
        assert_eq!(shown(Quantity::Rate, Kind::Volume, 1.2e5), "thousand op/s");
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown: Vec<String> = [0.0, 1234.4, 56.78, 1.2345, 0.01234].map(number).to_vec();
        assert_eq!(shown, ["0", "1234", "56.8", "1.23", "0.0123"]);
        let marks: Vec<String> = [0.0, 0.01, 0.5, 5.0, 10.0, 200.0].map(mark).to_vec();
        assert_eq!(marks, ["0", "0.01", "0.5", "5", "10", "200"]);
    }
}
