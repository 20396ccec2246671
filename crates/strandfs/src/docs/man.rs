//! A manual page in roff, built piece by piece.

use roff::{Inline, Roff, bold, italic, roman};

/// One page.
pub struct Page(Roff);

impl Page {
    /// A page with its title lines. No date: the same source makes the same page.
    pub fn new(name: &str, section: &str, purpose: &str) -> Page {
        let mut roff = Roff::new();
        let source = concat!("strandfs ", env!("CARGO_PKG_VERSION"));
        roff.control("TH", [name.to_uppercase().as_str(), section, "", source]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{name} - {purpose}"))]);
        Page(roff)
    }

    /// Starts a section.
    pub fn section(&mut self, title: &str) -> &mut Page {
        self.0.control("SH", [title.to_uppercase().as_str()]);
        self
    }

    /// Starts a part of a section.
    pub fn subsection(&mut self, title: &str) -> &mut Page {
        self.0.control("SS", [title]);
        self
    }

    /// Prose; what stands in backticks is what a user types.
    pub fn paragraph(&mut self, text: &str) -> &mut Page {
        self.0.control("PP", []);
        self.0.text(prose(text));
        self
    }

    /// Lines shown as they are.
    pub fn literal(&mut self, lines: &str) -> &mut Page {
        self.0.control("PP", []).control("nf", []);
        self.0.control("RS", ["4"]);
        for line in lines.lines() {
            self.0.text([roman(line)]);
        }
        self.0.control("RE", []).control("fi", []);
        self
    }

    /// A term with its explanation.
    pub fn item(&mut self, term: &str, text: &str) -> &mut Page {
        self.0.control("TP", []);
        self.0.text(term_inlines(term));
        self.0.text(prose(text));
        self
    }

    /// A further paragraph of the item before.
    pub fn more(&mut self, text: &str) -> &mut Page {
        self.0.control("sp", []);
        self.0.text(prose(text));
        self
    }

    /// The page's text.
    pub fn render(&self) -> String {
        self.0.render()
    }
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
            && word.chars().any(|c| c.is_ascii_uppercase())
            && !word.chars().any(|c| c.is_ascii_lowercase());
        inlines.push(if is_value { italic(word) } else { bold(word) });
        inlines.push(roman(piece.get(word.len()..).unwrap_or_default()));
    }
    inlines
}
