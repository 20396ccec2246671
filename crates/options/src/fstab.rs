//! Lines of `/etc/fstab`.

use std::fmt;

/// A line that mounts something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FstabLine {
    /// What is mounted; for a pool its branches, or the name of its configuration.
    pub source: String,
    /// Where.
    pub target: String,
    /// The type.
    pub kind: String,
    /// The options, joined by commas.
    pub options: String,
    /// The two numbers behind, as written.
    pub rest: Vec<String>,
}

/// The line has too few fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line:?} is no line of fstab: write SOURCE MOUNTPOINT TYPE OPTIONS, separated by blanks")]
pub struct NotALine {
    /// As written.
    pub line: String,
}

impl FstabLine {
    /// Reads a line; `None` for an empty line or a comment.
    ///
    /// # Errors
    /// Fewer than three fields, or more than six.
    pub fn parse(line: &str) -> Result<Option<Self>, NotALine> {
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        // Other blanks are part of a field, as mount(8) has it.
        let mut fields = text.split([' ', '\t']).filter(|field| !field.is_empty());
        let mut next = || {
            fields.next().map(unescape).ok_or_else(|| NotALine {
                line: line.to_owned(),
            })
        };
        let (source, target, kind) = (next()?, next()?, next()?);
        let options = next().unwrap_or_else(|_| "defaults".to_owned());
        let rest: Vec<String> = fields.map(str::to_owned).collect();
        if rest.len() > 2 && !rest.get(2).is_some_and(|word| word.starts_with('#')) {
            return Err(NotALine {
                line: line.to_owned(),
            });
        }
        Ok(Some(Self {
            source,
            target,
            kind,
            options,
            rest: rest.into_iter().take(2).collect(),
        }))
    }
}

impl fmt::Display for FstabLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [&self.source, &self.target, &self.kind, &self.options];
        let fields: Vec<String> = fields.into_iter().map(|field| escape(field)).collect();
        let rest = match self.rest.as_slice() {
            [] => "0 0".to_owned(),
            rest => rest.join(" "),
        };
        write!(f, "{}  {rest}", fields.join("  "))
    }
}

/// Blanks, backslashes and `#` are written as octal `\ooo`.
fn escape(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    for character in field.chars() {
        match character {
            ' ' => text.push_str("\\040"),
            '\t' => text.push_str("\\011"),
            '\n' => text.push_str("\\012"),
            '\\' => text.push_str("\\134"),
            '#' => text.push_str("\\043"),
            other => text.push(other),
        }
    }
    text
}

fn unescape(field: &str) -> String {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(octal.unwrap_or(*first));
        rest = match octal {
            Some(_) => tail.get(3..).unwrap_or_default(),
            None => tail,
        };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blanks_and_tabs_separate_fields() {
        for text in ["/a /po\rol fuse rw", "/a /p\\011ol fuse rw 0 \\0400 # a b"] {
            let line = FstabLine::parse(text).unwrap().unwrap();
            let again = FstabLine::parse(&line.to_string()).unwrap().unwrap();
            assert_eq!((&again.target, &again.kind), (&line.target, &line.kind));
            assert_eq!(line.kind, "fuse");
        }
    }

    #[test]
    fn lines_have_six_fields_with_escapes() {
        let line = FstabLine::parse("/a\\040b:/c\t/pool fuse.mergerfs ro,fsname=x\\134y 0 0\n");
        let line = line.unwrap().unwrap();
        assert_eq!(
            (line.source.as_str(), line.target.as_str()),
            ("/a b:/c", "/pool")
        );
        assert_eq!(line.options, "ro,fsname=x\\y");
        assert_eq!(
            line.to_string(),
            "/a\\040b:/c  /pool  fuse.mergerfs  ro,fsname=x\\134y  0 0"
        );
        assert_eq!(FstabLine::parse(" # a comment"), Ok(None));
        assert_eq!(FstabLine::parse(""), Ok(None));
        let short = FstabLine::parse("/a /pool mergerfs").unwrap().unwrap();
        assert_eq!(short.options, "defaults");
        assert!(FstabLine::parse("/a /pool").is_err());
        assert!(FstabLine::parse("/a /pool mergerfs a b 0 0 0").is_err());
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read_back(field in "[^\\pC ]*[ \\\\#é\t]?[^\\pC]*") {
            proptest::prop_assert_eq!(unescape(&escape(&field)), field);
        }

        #[test]
        fn no_line_panics(line in "\\PC*") {
            let _ = FstabLine::parse(&line);
        }
    }
}
