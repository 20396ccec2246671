//! How what is noted is written: lines, and names after their length.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const END: &[u8] = b"\nend\n";
/// Longer names there are none.
const NAME_MAX_BYTES: usize = 255;

/// The end of a note, after its last line.
pub(super) fn push_end(out: &mut Vec<u8>) {
    out.extend_from_slice(END.get(1..).unwrap_or_default());
}

/// A name or path, which may hold any byte, after its length.
pub(super) fn push_part(out: &mut Vec<u8>, part: &OsStr) {
    out.extend_from_slice(format!("{}\n", part.len()).as_bytes());
    out.extend_from_slice(part.as_bytes());
    out.push(b'\n');
}

/// Whether it is a name in a directory, and leads nowhere else.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_MAX_BYTES
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Whether it leads from a branch's root to one of its directories, name by name.
fn is_way(path: &[u8]) -> bool {
    path.is_empty() || path.split(|byte| *byte == b'/').all(is_name)
}

/// Reads a note that was written whole.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    earlier: bool,
}

impl<'a> Reader<'a> {
    /// What follows the line `head`, or that of an earlier version; `None` if it is another, or the
    /// end is missing.
    pub(super) fn after_either(head: &str, earlier: &str, text: &'a [u8]) -> Option<Reader<'a>> {
        Reader::after(head, text).or_else(|| {
            Some(Reader {
                earlier: true,
                ..Reader::after(earlier, text)?
            })
        })
    }

    /// What follows the line `head`; `None` if it is another, or the end is missing.
    pub(super) fn after(head: &str, text: &'a [u8]) -> Option<Reader<'a>> {
        let rest = text.strip_prefix(head.as_bytes())?.strip_prefix(b"\n")?;
        text.ends_with(END).then_some(Reader {
            rest,
            earlier: false,
        })
    }

    /// Whatever it is.
    pub(super) fn of(text: &'a [u8]) -> Reader<'a> {
        Reader {
            rest: text,
            earlier: false,
        }
    }

    /// Whether an earlier version wrote it.
    pub(super) fn is_earlier(&self) -> bool {
        self.earlier
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether nothing but the end is left.
    pub(super) fn is_at_end(&self) -> bool {
        Some(self.rest) == END.get(1..)
    }

    pub(super) fn line(&mut self) -> Option<String> {
        let len = self.rest.iter().position(|byte| *byte == b'\n')?;
        self.bytes(len)?.into_string().ok()
    }

    pub(super) fn part(&mut self) -> Option<OsString> {
        let len = self.line()?.parse().ok()?;
        self.bytes(len)
    }

    /// One name.
    pub(super) fn name(&mut self) -> Option<OsString> {
        self.part().filter(|name| is_name(name.as_bytes()))
    }

    /// A directory below the branch's root; the root is the empty path.
    pub(super) fn dir(&mut self) -> Option<PathBuf> {
        let path = self.part().filter(|path| is_way(path.as_bytes()))?;
        Some(PathBuf::from(path))
    }

    fn bytes(&mut self, len: usize) -> Option<OsString> {
        let (bytes, after) = self.rest.split_at_checked(len)?;
        self.rest = after.strip_prefix(b"\n")?;
        Some(OsString::from_vec(bytes.to_vec()))
    }
}

/// A directory for people.
pub(super) fn shown(dir: &Path, name: &OsStr) -> String {
    format!("{:?}", dir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ways_lead_nowhere_but_below_the_root() {
        let read = |part: &[u8], what: fn(&mut Reader<'_>) -> bool| {
            let mut out = Vec::new();
            push_part(&mut out, OsStr::from_bytes(part));
            what(&mut Reader::of(&out))
        };
        let name = |reader: &mut Reader<'_>| reader.name().is_some();
        let way = |reader: &mut Reader<'_>| reader.dir().is_some();
        for good in [&b"a"[..], b"...", b"a\n", b".strandfs", &[b'x'; 255]] {
            assert!(read(good, name) && read(good, way), "{good:?}");
        }
        for bad in [
            &b"."[..],
            b"..",
            b"/",
            b"a\0b",
            &[b'x'; 256],
            b"/a",
            b"a//b",
            b"a/",
            b"a/..",
        ] {
            assert!(!read(bad, name) && !read(bad, way), "{bad:?}");
        }
        assert!(!read(b"", name) && read(b"", way));
        assert!(!read(b"a/b", name) && read(b"a/b", way));
    }
}
