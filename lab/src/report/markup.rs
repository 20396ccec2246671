//! Writing XML that cannot be malformed: every text is escaped, every element closed.

/// A document under construction.
pub struct Markup {
    text: String,
    open: Vec<&'static str>,
}

impl Markup {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            text: String::new(),
            open: Vec::new(),
        }
    }

    /// Begins an element.
    pub fn open(&mut self, name: &'static str, attributes: &[(&str, &str)]) {
        self.start(name, attributes);
        self.text.push_str(">\n");
        self.open.push(name);
    }

    /// Ends the innermost element, which is `name`; the name is for the reader of the code.
    pub fn close(&mut self, name: &'static str) {
        let innermost = self.open.pop();
        debug_assert_eq!(innermost, Some(name));
        if let Some(name) = innermost {
            self.text.push_str("</");
            self.text.push_str(name);
            self.text.push_str(">\n");
        }
    }

    /// An element that holds text only.
    pub fn leaf(&mut self, name: &'static str, attributes: &[(&str, &str)], text: &str) {
        self.start(name, attributes);
        self.text.push('>');
        self.text.push_str(&escape(text));
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push_str(">\n");
    }

    /// An element that holds nothing.
    pub fn empty(&mut self, name: &'static str, attributes: &[(&str, &str)]) {
        self.start(name, attributes);
        self.text.push_str("/>\n");
    }

    /// The document, with what was left open closed.
    pub fn finish(mut self) -> String {
        while let Some(name) = self.open.last().copied() {
            self.close(name);
        }
        self.text
    }

    fn start(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.text.push('<');
        self.text.push_str(name);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.text.push_str(&escape(value));
            self.text.push('"');
        }
    }
}

/// A paragraph.
pub fn text(out: &mut Markup, words: &str) {
    out.leaf("p", &[], words);
}

/// Names come from command lines and files of other people. Control characters have no place in
/// XML at all.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            it if it.is_control() => out.push('\u{fffd}'),
            it => out.push(it),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped_and_elements_closed() {
        let mut out = Markup::new();
        out.open("p", &[("title", "a\"<b>'")]);
        out.leaf("b", &[], "</b><script>&\u{1b}");
        assert_eq!(
            out.finish(),
            "<p title=\"a&quot;&lt;b&gt;&#39;\">\n\
             <b>&lt;/b&gt;&lt;script&gt;&amp;\u{fffd}</b>\n</p>\n"
        );
    }
}
