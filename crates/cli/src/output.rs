//! Standard output. The macros of the standard library end the program with a panic when whoever
//! reads has gone, as in `strandfs status | head -1`; in this crate these stand in their place.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*), "") };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*), "\n") };
}

/// Writes to standard output. Ends the program in silence if nobody reads it any more, and with
/// a sentence if it cannot be written for another reason.
pub fn write(text: Arguments<'_>, end: &str) {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_fmt(text)
        .and_then(|()| out.write_all(end.as_bytes()));
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("strandfs: writing to standard output: {error}");
            std::process::exit(i32::from(crate::failure::FAILED));
        }
    }
}
