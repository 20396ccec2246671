//! Text tables.

use std::fmt::Write;

use crate::stats::Estimate;

/// Rows of cells, the first row a heading; the first column is flush left, the others flush right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if column == 0 {
                write!(line, "{cell:<width$}")
            } else {
                write!(line, "  {cell:>width$}")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A duration in the unit that suits it.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        it if it >= 1.0 => format!("{it:.2} s"),
        it if it >= 1e-3 => format!("{:.2} ms", it * 1e3),
        it if it >= 1e-6 => format!("{:.2} us", it * 1e6),
        it => format!("{:.0} ns", it * 1e9),
    }
}

/// A figure and its interval: `1.52 [1.47 1.60]`, each number written by `show`.
pub fn between(found: &Estimate, show: impl Fn(f64) -> String) -> String {
    format!(
        "{} [{} {}]",
        show(found.median),
        show(found.low),
        show(found.high)
    )
}

/// Bytes a second as MiB/s, without the unit.
pub fn mib(bytes_per_second: f64) -> String {
    match bytes_per_second / f64::from(1 << 20) {
        it if it >= 10.0 => format!("{it:.0}"),
        it => format!("{it:.2}"),
    }
}

/// Two significant places for a ratio, more only where they mean something.
pub fn ratio(value: f64) -> String {
    match value {
        it if it >= 10.0 => format!("{it:.1}"),
        it if it >= 0.095 => format!("{it:.2}"),
        it => format!("{it:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows = [row(&["", "a", "long"]), row(&["name", "1.00", "2"])];
        assert_eq!(table(&rows), "         a  long\nname  1.00     2\n");
    }

    #[test]
    fn units_suit_the_size() {
        assert_eq!(seconds(2.5), "2.50 s");
        assert_eq!(seconds(0.0025), "2.50 ms");
        assert_eq!(seconds(0.000_002_5), "2.50 us");
        assert_eq!(mib(f64::from(3 << 20)), "3.00");
        assert_eq!(mib(f64::from(300 << 20)), "300");
        assert_eq!(ratio(0.0212), "0.021");
        assert_eq!(ratio(1.005), "1.00");
        assert_eq!(ratio(12.34), "12.3");
    }
}
