//! Times as text for programs.

use std::time::{Duration, SystemTime};

/// A time in seconds since 1970 as RFC 3339 has it, in UTC; none before that or after the year 9999.
pub fn rfc3339(seconds: i64) -> Option<String> {
    const LAST_S: u64 = 253_402_300_799;
    let seconds = u64::try_from(seconds).ok().filter(|it| *it <= LAST_S)?;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    Some(humantime::format_rfc3339_seconds(time).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_that_can_be_written_are() {
        assert_eq!(rfc3339(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!((rfc3339(-1), rfc3339(i64::MAX)), (None, None));
    }
}
