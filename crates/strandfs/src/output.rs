//! Standard output. The macros of the standard library end the program with a panic when whoever
//! reads has gone, as in `strandfs status | head -1`; in this crate these stand in their place.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::logging::one_line;

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

/// Writes an answer for programs.
///
/// # Errors
/// A path in it is not text.
pub fn print_json(answer: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(answer);
    let text = text.map_err(|error| Failure::system("writing the answer")(error.into()))?;
    println!("{text}");
    Ok(())
}

/// Makes the texts of an answer fit to be shown. Names are other people's to choose, and so is all
/// that the server of another user says: none may command the terminal or pass for a line of ours.
pub fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = one_line(text),
        Value::Array(items) => items.iter_mut().for_each(make_plain),
        Value::Object(fields) => {
            let plain = |(key, mut value): (String, Value)| {
                make_plain(&mut value);
                (one_line(&key), value)
            };
            *fields = std::mem::take(fields).into_iter().map(plain).collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_cannot_command_the_terminal() {
        let mut answer = serde_json::json!({
            "a\u{1b}[2J": ["x\u{7}", {"y": "\nstrandfs: all is well"}, 5, null],
        });
        make_plain(&mut answer);
        let shown = answer.to_string();
        assert!(
            !shown.contains('\u{1b}') && !shown.contains("\\u001b"),
            "{shown}"
        );
        assert_eq!(answer["a\\u{1b}[2J"][1]["y"], "\\nstrandfs: all is well");
    }
}
