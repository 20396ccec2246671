//! Numbers for people, each with its unit.

use std::time::{Duration, SystemTime};

/// Bytes in the largest unit that leaves at least 1.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = None;
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(next);
    }
    match unit {
        None => format!("{bytes} B"),
        Some(unit) => format!("{value:.1} {unit}"),
    }
}

/// A time as seconds since 1970, in UTC.
pub fn time(seconds: i64) -> String {
    // The formatter knows the years 1970 to 9999.
    const LAST_S: u64 = 253_402_300_799;
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= LAST_S => {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            humantime::format_rfc3339_seconds(at).to_string()
        }
        _ => format!("{seconds} s since 1970"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (4 << 30, "4.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn any_time_can_be_shown() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(-1), "-1 s since 1970");
        assert!(time(i64::MAX).ends_with("since 1970"));
    }
}
