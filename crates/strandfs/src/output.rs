//! What is said on standard output and standard error. The macros of the standard library end the
//! program with a panic when whoever reads has gone, as in `strandfs status | head -1`; in this crate
//! these stand in their place.

use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::Value;
use textwrap::{Options, WordSeparator, WordSplitter};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::logging::one_line;

macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*), "") };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*), "\n") };
}

/// As `println!`, for people: on a terminal no line is wider than that.
macro_rules! tell {
    ($($text:tt)*) => { $crate::output::tell(format_args!($($text)*)) };
}

/// A sentence on standard error, behind the name of the program; on a terminal no line is wider than
/// that.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::say("strandfs", format_args!($($text)*)) };
}

/// Narrower terminals are written to as if they were so wide: a word a line helps nobody.
const COLUMNS_MIN: usize = 40;

/// How many columns a stream has if it is a terminal.
fn columns(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let size = stream
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(stream));
    let columns = size?.ok()?.ws_col;
    // A terminal that does not know its size says 0.
    (columns > 0).then(|| usize::from(columns).max(COLUMNS_MIN))
}

/// Breaks lines between words so that none is wider. What follows is indented under its line. A
/// word stays whole, so that a path can be copied.
fn fit(text: &str, columns: usize) -> String {
    let fitted = text.lines().map(|line| {
        let indent = line.len() - line.trim_start().len();
        let below = " ".repeat(indent + 2);
        let options = Options::new(columns)
            .subsequent_indent(&below)
            .break_words(false)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation);
        textwrap::fill(line, options)
    });
    fitted.collect::<Vec<_>>().join("\n")
}

/// See `say!`.
pub fn say(program: &str, text: Arguments<'_>) {
    let mut err = std::io::stderr().lock();
    let line = format!("{program}: {text}");
    let line = match columns(&std::io::stderr()) {
        Some(columns) => fit(&line, columns),
        None => line,
    };
    // Where it cannot be said, there is nobody to tell that.
    let _ = writeln!(err, "{line}");
}

/// See `tell!`.
pub fn tell(text: Arguments<'_>) {
    match columns(&std::io::stdout()) {
        Some(columns) => println!("{}", fit(&text.to_string(), columns)),
        None => println!("{text}"),
    }
}

/// How good something is, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Works, with a drawback.
    Doubtful,
    /// Does not work.
    Bad,
}

/// A word for standard output in the colour of its tone, where colour is wanted: on a terminal that
/// has it, unless `NO_COLOR` is set (<https://no-color.org>).
pub fn coloured(word: &str, tone: Tone) -> String {
    let is_set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_wanted = std::io::stdout().is_terminal()
        && is_set("NO_COLOR").is_none()
        && is_set("TERM").is_some_and(|term| term != "dumb");
    if !is_wanted {
        return word.to_owned();
    }
    let style: Style = match tone {
        Tone::Good => AnsiColor::Green.on_default(),
        Tone::Doubtful => AnsiColor::Yellow.on_default().bold(),
        Tone::Bad => AnsiColor::Red.on_default().bold(),
    };
    format!("{style}{word}{style:#}")
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
            say!("writing to standard output: {error}");
            std::process::exit(i32::from(Exit::Failed.code()));
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
    fn lines_fit_and_words_stay_whole() {
        let path = "/mnt/a-very/long-path/that-is/wider-than-the-page";
        let text = format!("strandfs: branch {path} does not exist: create it, or --correct it");
        let fitted = fit(&text, 40);
        for line in fitted.lines() {
            assert!(
                line.trim() == path || line.chars().count() <= 40,
                "{fitted}"
            );
        }
        assert_eq!(
            fitted.split_whitespace().collect::<Vec<_>>().join(" "),
            text
        );
        assert_eq!(fit("  a\n  b b", 4), "  a\n  b\n    b");
    }

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
