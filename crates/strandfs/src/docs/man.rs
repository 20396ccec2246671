//! A manual page in roff, built piece by piece.

use roff::{Inline, Roff, bold, italic, roman};

/// When what the pages say was last true of a release, and not when they were made: the same source
/// makes the same pages. Set with the version, see `docs/releasing.md`.
const DATE: &str = "2026-11-28";

/// Lines of the source are no longer, as linters of manual pages want it.
const WIDTH_BYTES: usize = 79;

/// One page.
pub struct Page {
    roff: Roff,
    /// A heading came last, which needs no paragraph after it.
    is_after_heading: bool,
}

impl Page {
    /// A page with its title lines.
    pub fn new(name: &str, section: &str, purpose: &str) -> Page {
        let mut roff = Roff::new();
        let source = concat!("strandfs ", env!("CARGO_PKG_VERSION"));
        roff.control("TH", [name.to_uppercase().as_str(), section, DATE, source]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{name} - {purpose}"))]);
        Page {
            roff,
            is_after_heading: false,
        }
    }

    /// Starts a section.
    pub fn section(&mut self, title: &str) -> &mut Page {
        self.roff.control("SH", [title.to_uppercase().as_str()]);
        self.is_after_heading = true;
        self
    }

    /// Starts a part of a section.
    pub fn subsection(&mut self, title: &str) -> &mut Page {
        self.roff.control("SS", [title]);
        self.is_after_heading = true;
        self
    }

    fn start_paragraph(&mut self) {
        if !std::mem::take(&mut self.is_after_heading) {
            self.roff.control("PP", []);
        }
    }

    /// Prose; what stands in backticks is what a user types.
    pub fn paragraph(&mut self, text: &str) -> &mut Page {
        self.start_paragraph();
        self.roff.text(prose(text));
        self
    }

    /// Lines shown as they are.
    pub fn literal(&mut self, lines: &str) -> &mut Page {
        self.start_paragraph();
        self.roff.control("nf", []).control("RS", ["4"]);
        for line in lines.lines() {
            self.roff.text([roman(line)]);
        }
        self.roff.control("RE", []).control("fi", []);
        self
    }

    /// A term with its explanation.
    pub fn item(&mut self, term: &str, text: &str) -> &mut Page {
        self.is_after_heading = false;
        self.roff.control("TP", []);
        self.roff.text(term_inlines(term));
        self.roff.text(prose(text));
        self
    }

    /// A further paragraph of the item before.
    pub fn more(&mut self, text: &str) -> &mut Page {
        self.roff.control("sp", []);
        self.roff.text(prose(text));
        self
    }

    /// The page's text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let (mut is_literal, mut is_term) = (false, false);
        for line in self.roff.render().lines() {
            match is_literal || is_term || line.starts_with('.') {
                true => text.push_str(line.trim_end()),
                false => text.push_str(&broken(line)),
            }
            text.push('\n');
            is_literal = line == ".nf" || is_literal && line != ".fi";
            // A term is one line.
            is_term = line == ".TP";
        }
        text
    }
}

/// A line of prose in lines of the width wanted. None begins as a request to roff would.
fn broken(line: &str) -> String {
    let mut text = String::new();
    let mut width = 0;
    for word in line.split_ascii_whitespace() {
        if width > 0 && width + 1 + word.len() > WIDTH_BYTES {
            text.push('\n');
            width = 0;
            if word.starts_with(['.', '\'']) {
                text.push_str("\\&");
                width = 2;
            }
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += word.len();
    }
    text
}

fn prose(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts
        .filter(|(_, part)| !part.is_empty())
        .map(|(number, part)| match number % 2 {
            1 => bold(part),
            _ => roman(part),
        })
        .collect()
}

/// A name in bold, what stands for a value (in capitals) in italics.
fn term_inlines(term: &str) -> Vec<Inline> {
    let mut inlines = Vec::new();
    for piece in term.split_inclusive([' ', '=', ',']) {
        let word = piece.trim_end_matches([' ', '=', ',']);
        let is_value = word.len() > 1
            && !word.starts_with('-')
            && word.chars().any(|c| c.is_ascii_uppercase())
            && !word.chars().any(|c| c.is_ascii_lowercase());
        match is_value {
            _ if word.is_empty() => {}
            true => inlines.push(italic(word)),
            false => inlines.push(bold(word)),
        }
        inlines.push(roman(piece.get(word.len()..).unwrap_or_default()));
    }
    inlines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_prose_is_long_or_begins_as_a_request() {
        let prose = format!("{} .strandfs 'x' end", "word ".repeat(31).trim_end());
        let lines = broken(&prose);
        assert!(lines.lines().all(|line| line.len() <= WIDTH_BYTES + 2));
        assert!(lines.lines().count() > 1);
        assert!(!lines.lines().any(|line| line.starts_with(['.', '\''])));
        assert_eq!(lines.replace("\\&", "").split_whitespace().count(), 34);
    }
}
