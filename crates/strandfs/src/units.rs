//! Times for people.

use strandfs_pool::status::rfc3339;

/// A time as seconds since 1970, in UTC.
pub fn time(seconds: i64) -> String {
    rfc3339(seconds).unwrap_or_else(|| format!("{seconds} s since 1970"))
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
