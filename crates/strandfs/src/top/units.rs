//! Numbers in few columns.

use std::time::Duration;

/// A number of things: `7`, `0.4`, `1.2k`, `35k`, `1.2M`.
pub fn count(number: f64) -> String {
    match number {
        n if n < 0.05 => "0".to_owned(),
        n if n < 9.95 => format!("{n:.1}"),
        n => scaled(n, 1000.0, ["", "k", "M", "G", "T"]),
    }
}

/// A whole number of things: `7`, `1.2k`.
pub fn whole(number: u64) -> String {
    scaled(number as f64, 1000.0, ["", "k", "M", "G", "T"])
}

/// A number of bytes in powers of 1024: `512`, `4.0K`, `118M`.
pub fn bytes(number: f64) -> String {
    match number {
        n if n < 0.5 => "0".to_owned(),
        n => scaled(n, 1024.0, ["", "K", "M", "G", "T"]),
    }
}

/// Four columns and the unit.
fn scaled(number: f64, step: f64, units: [&str; 5]) -> String {
    let mut value = number;
    let mut unit = units[0];
    for next in &units[1..] {
        // What would be rounded to a thousand has the next unit.
        if value < 999.5 {
            break;
        }
        value /= step;
        unit = next;
    }
    match value < 9.95 && !unit.is_empty() {
        true => format!("{value:.1}{unit}"),
        false => format!("{value:.0}{unit}"),
    }
}

/// A duration in nanoseconds: `12us`, `3.1ms`, `1.2s`.
pub fn time(ns: f64) -> String {
    let show = |value: f64, unit: &str| match value < 9.95 {
        true => format!("{value:.1}{unit}"),
        false => format!("{value:.0}{unit}"),
    };
    match ns {
        // Beyond the last bound that is counted by.
        n if n.is_infinite() => ">8s".to_owned(),
        n if n < 999.5 => format!("{n:.0}ns"),
        n if n < 999_500.0 => show(n / 1e3, "us"),
        n if n < 999_500_000.0 => show(n / 1e6, "ms"),
        n => show(n / 1e9, "s"),
    }
}

/// How long something has been: `45s`, `12m`, `3h05m`, `8d02h`.
pub fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        s if s < 120 => format!("{s}s"),
        s if s < 7200 => format!("{minutes}m"),
        s if s < 172_800 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_few_columns() {
        let counts = [0.0, 0.4, 7.0, 35.0, 999.4, 1234.0, 35_000.0, 2e6, 9.9e14];
        let shown = counts.map(count);
        assert_eq!(
            shown,
            [
                "0", "0.4", "7.0", "35", "999", "1.2k", "35k", "2.0M", "990T"
            ]
        );
        assert_eq!([0, 7, 1234].map(whole), ["0", "7", "1.2k"]);
        let shown = [0.0, 512.0, 1023.0, 4096.0, 124e6, 9e12].map(bytes);
        assert_eq!(shown, ["0", "512", "1.0K", "4.0K", "118M", "8.2T"]);
        let shown = [12.0, 1500.0, 12_345.0, 3.1e6, 1.2e9, 42e9].map(time);
        assert_eq!(shown, ["12ns", "1.5us", "12us", "3.1ms", "1.2s", "42s"]);
        let shown = [45, 900, 11_100, 700_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(shown, ["45s", "15m", "3h05m", "8d02h"]);
    }
}
