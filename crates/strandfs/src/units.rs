//! Times for people.

use std::time::{Duration, SystemTime};

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
    fn any_time_can_be_shown() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(-1), "-1 s since 1970");
        assert!(time(i64::MAX).ends_with("since 1970"));
    }
}
