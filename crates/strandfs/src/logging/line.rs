//! A log line as it waits to be written, and its text.

use std::fmt::{self, Write};

use tracing::Level;
use tracing::field::{Field, Visit};

/// Longer values are cut: a path may have 4 KiB, an error no more than a sentence.
const VALUE_MAX_BYTES: usize = 8192;

/// One event.
#[derive(Clone, Debug)]
pub struct Line {
    /// How bad.
    pub level: Level,
    /// Distinguishes the place in the program it comes from.
    pub site: usize,
    /// What is said.
    pub message: String,
    /// Names and values.
    pub fields: Vec<(&'static str, String)>,
}

impl Line {
    /// An event as a line.
    pub fn of(event: &tracing::Event<'_>) -> Line {
        let mut line = Line {
            level: *event.metadata().level(),
            site: std::ptr::from_ref(event.metadata()).addr(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut line);
        line
    }

    /// A line of the log about itself.
    pub fn own(level: Level, message: String) -> Line {
        Line {
            level,
            site: 0,
            message,
            fields: Vec::new(),
        }
    }

    /// Message and fields, without an end of line; names with blanks or worse are quoted, so that
    /// no file name can pass for a line of its own.
    pub fn text(&self) -> String {
        let mut text = one_line(&self.message);
        for (name, value) in &self.fields {
            let plain = !value.is_empty()
                && value
                    .chars()
                    .all(|c| !c.is_whitespace() && !c.is_control() && c != '"');
            let _ = match plain {
                true => write!(text, " {name}={value}"),
                false => write!(text, " {name}={value:?}"),
            };
        }
        text
    }

    fn push(&mut self, field: &Field, mut value: String) {
        if value.len() > VALUE_MAX_BYTES {
            let mut cut = VALUE_MAX_BYTES;
            while !value.is_char_boundary(cut) {
                cut -= 1;
            }
            value.truncate(cut);
            value.push('…');
        }
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push((name, value)),
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, format!("{value:?}"));
    }
}

/// Control characters made visible.
pub fn one_line(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            plain.extend(character.escape_default());
        } else {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_passes_for_a_line_of_its_own() {
        let line = Line {
            fields: vec![
                ("path", "/a\nERROR forged".to_owned()),
                ("errno", "EIO".to_owned()),
                ("branch", "/mnt/my disk".to_owned()),
            ],
            ..Line::own(Level::WARN, "tried\nhard".to_owned())
        };
        assert_eq!(
            line.text(),
            r#"tried\nhard path="/a\nERROR forged" errno=EIO branch="/mnt/my disk""#
        );
    }
}
