//! From a path to text.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::ConfigError;

/// No configuration is this long; a slip that names a disk image is.
const LONGEST_BYTES: u64 = 1 << 20;

/// The text of a configuration file.
pub(super) fn text(path: &Path) -> Result<String, ConfigError> {
    let refuse = |text: String| ConfigError {
        path: path.to_owned(),
        line: None,
        text,
        may_pass: false,
    };
    let unreadable = |error: std::io::Error| {
        refuse(format!(
            "the configuration file cannot be read ({error}): correct its name or its permissions"
        ))
    };
    // Opening a pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(refuse(
            "this is no file: name a TOML file, or one in the form of mergerfs".to_owned(),
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > LONGEST_BYTES {
        return Err(refuse(
            "the file is over 1 MiB, which is no configuration: correct its name".to_owned(),
        ));
    }
    String::from_utf8(bytes)
        .map_err(|_| refuse("the file is not UTF-8 text: correct its name or encoding".to_owned()))
}
