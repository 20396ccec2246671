//! Texts of the system in which others chose some bytes.

use std::io;
use std::path::Path;

/// A text such as `/proc/PID/status`. Programs, mountpoints and sockets have the names that any user gives
/// them: one that is not UTF-8 has to leave the rest to be read, and stands in it with replacements.
///
/// # Errors
/// Those of reading a file.
pub fn read_lossy(path: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(std::fs::read(path)?);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_leaves_the_rest_to_be_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"Name:\t\xff\nUid:\t1\n").unwrap();
        assert_eq!(
            read_lossy(file.path()).unwrap(),
            "Name:\t\u{fffd}\nUid:\t1\n"
        );
        std::fs::write(file.path(), "ä").unwrap();
        assert_eq!(read_lossy(file.path()).unwrap(), "ä");
        assert!(read_lossy("/proc/none").is_err());
    }
}
