//! Taking a message apart from front to back.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use zerocopy::FromBytes;

use super::DecodeError;

/// What is left of a message. Bytes behind what an operation takes are left alone: a later
/// kernel may append fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(left: &'a [u8]) -> Self {
        Self { left }
    }

    /// A wire structure, by copy: the message need not be aligned.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T, DecodeError> {
        let (value, left) = T::read_from_prefix(self.left).map_err(|_| DecodeError::Truncated {
            needed: size_of::<T>(),
            found: self.left.len(),
        })?;
        self.left = left;
        Ok(value)
    }

    /// `len` bytes of data.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, left) = self
            .left
            .split_at_checked(len)
            .ok_or(DecodeError::Truncated {
                needed: len,
                found: self.left.len(),
            })?;
        self.left = left;
        Ok(bytes)
    }

    /// A string up to its NUL, whatever it holds.
    pub(crate) fn string(&mut self) -> Result<&'a OsStr, DecodeError> {
        let end = self
            .left
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(DecodeError::MissingNul)?;
        let (string, rest) = self
            .left
            .split_at_checked(end)
            .ok_or(DecodeError::MissingNul)?;
        self.left = rest.get(1..).unwrap_or_default();
        Ok(OsStr::from_bytes(string))
    }

    /// A string that is not empty: an attribute's name, a link's target.
    pub(crate) fn nonempty(&mut self) -> Result<&'a OsStr, DecodeError> {
        let string = self.string()?;
        if string.is_empty() {
            Err(DecodeError::Name("empty"))
        } else {
            Ok(string)
        }
    }

    /// A name to look up: one component, `.` and `..` allowed.
    pub(crate) fn lookup_name(&mut self) -> Result<&'a OsStr, DecodeError> {
        let name = self.nonempty()?;
        if name.as_bytes().contains(&b'/') {
            Err(DecodeError::Name("has a slash"))
        } else {
            Ok(name)
        }
    }

    /// The name of a directory entry: one component, neither `.` nor `..`.
    pub(crate) fn component(&mut self) -> Result<&'a OsStr, DecodeError> {
        let name = self.lookup_name()?;
        if matches!(name.as_bytes(), b"." | b"..") {
            Err(DecodeError::Name("a dot entry"))
        } else {
            Ok(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let refused = [&b"a"[..], b"", b"\0", b"a/b\0", b".\0", b"..\0", b"/\0"];
        for bytes in refused {
            assert!(Cursor::new(bytes).component().is_err(), "{bytes:?}");
        }
        for bytes in [&b"...\0"[..], b"a\0/", b" \0", b"\xff\0", b".a\0"] {
            assert!(Cursor::new(bytes).component().is_ok(), "{bytes:?}");
        }
        assert_eq!(Cursor::new(b"..\0").lookup_name(), Ok(OsStr::new("..")));
    }

    #[test]
    fn takes_in_order() {
        let mut cursor = Cursor::new(b"\x01\0\0\0name\0data");
        assert_eq!(cursor.take::<u32>(), Ok(1));
        assert_eq!(cursor.component(), Ok(OsStr::new("name")));
        assert_eq!(
            cursor.bytes(5),
            Err(DecodeError::Truncated {
                needed: 5,
                found: 4
            })
        );
        assert_eq!(cursor.bytes(4), Ok(&b"data"[..]));
        assert!(cursor.take::<u64>().is_err());
    }
}
