//! The extensions at a message's end: groups, security contexts.

use std::ffi::OsStr;

use super::{Cursor, DecodeError};
use crate::kernel::{EXT_GROUPS, ExtHeader, MAX_NR_SECCTX, Secctx, SuppGroups};

/// Extensions are counted and padded in units of this.
const UNIT_BYTES: usize = 8;

/// What the extensions say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extensions<'a> {
    pub(super) supplementary_gid: Option<u32>,
    pub(super) security_contexts: SecurityContexts<'a>,
}

/// A security context to give to a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// Name of the attribute, as `security.selinux`.
    pub name: &'a OsStr,
    /// Its value.
    pub value: &'a [u8],
}

/// The security contexts of a request, checked when the message was taken apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct SecurityContexts<'a> {
    left: &'a [u8],
    count: u32,
}

impl<'a> SecurityContexts<'a> {
    fn read_one(&mut self) -> Result<SecurityContext<'a>, DecodeError> {
        let mut cursor = Cursor::new(self.left);
        let head: Secctx = cursor.take()?;
        let name = cursor.nonempty()?;
        let value = cursor.bytes(head.size as usize)?;
        let used =
            (size_of::<Secctx>() + name.len() + 1 + value.len()).next_multiple_of(UNIT_BYTES);
        self.left = self.left.get(used..).unwrap_or_default();
        self.count = self.count.saturating_sub(1);
        Ok(SecurityContext { name, value })
    }
}

impl<'a> Iterator for SecurityContexts<'a> {
    type Item = SecurityContext<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.count == 0 {
            return None;
        }
        self.read_one().ok()
    }
}

/// Cuts the extensions, `units` times 8 bytes, off the end of `body` and reads them.
pub(super) fn split(body: &[u8], units: u16) -> Result<(&[u8], Extensions<'_>), DecodeError> {
    if units == 0 {
        return Ok((body, Extensions::default()));
    }
    let needed = usize::from(units) * UNIT_BYTES;
    let (rest, extensions) = body
        .len()
        .checked_sub(needed)
        .and_then(|start| body.split_at_checked(start))
        .ok_or(DecodeError::Truncated {
            needed,
            found: body.len(),
        })?;
    Ok((rest, read(extensions)?))
}

fn read(mut left: &[u8]) -> Result<Extensions<'_>, DecodeError> {
    let mut extensions = Extensions::default();
    while !left.is_empty() {
        let header: ExtHeader = Cursor::new(left).take()?;
        let size = header.size as usize;
        if size < size_of::<ExtHeader>() {
            return Err(DecodeError::Extension("shorter than its header"));
        }
        let (extension, rest) = left.split_at_checked(size).ok_or(DecodeError::Truncated {
            needed: size,
            found: left.len(),
        })?;
        let mut content = Cursor::new(extension);
        content.take::<ExtHeader>()?;
        match header.kind {
            EXT_GROUPS => extensions.supplementary_gid = groups(content)?,
            count if count <= MAX_NR_SECCTX => {
                extensions.security_contexts = security_contexts(extension, count)?;
            }
            // Extensions not known are for those who know them.
            _ => {}
        }
        let padding = size.next_multiple_of(UNIT_BYTES) - size;
        left = rest.get(padding..).unwrap_or_default();
    }
    Ok(extensions)
}

/// The first group: the kernel sends one at most, that of the parent directory.
fn groups(mut content: Cursor<'_>) -> Result<Option<u32>, DecodeError> {
    let SuppGroups { nr_groups } = content.take()?;
    let mut first = None;
    for _ in 0..nr_groups {
        // Ends at the first group beyond the extension, however many are announced.
        let group = content.take::<u32>()?;
        first = first.or(Some(group));
    }
    Ok(first)
}

fn security_contexts(extension: &[u8], count: u32) -> Result<SecurityContexts<'_>, DecodeError> {
    let left = extension.get(size_of::<ExtHeader>()..).unwrap_or_default();
    let contexts = SecurityContexts { left, count };
    let mut check = contexts;
    while check.count > 0 {
        check.read_one()?;
    }
    Ok(contexts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn none() {
        let (rest, extensions) = split(b"name\0", 0).unwrap();
        assert_eq!(rest, b"name\0");
        assert_eq!(extensions.supplementary_gid, None);
    }

    #[test]
    fn a_group_behind_the_name() {
        let mut body = b"name\0".to_vec();
        body.extend(words(&[16, 32, 1, 1000]));
        let (rest, extensions) = split(&body, 2).unwrap();
        assert_eq!(rest, b"name\0");
        assert_eq!(extensions.supplementary_gid, Some(1000));
    }

    #[test]
    fn contexts_and_groups() {
        let mut body = words(&[8 + 8 + 13 + 3, 1, 3, 0]);
        body.extend(b"security.abc\0val");
        body.extend(words(&[16, 32, 1, 7]));
        let units = u16::try_from(body.len() / 8).unwrap();
        let (rest, extensions) = split(&body, units).unwrap();
        assert!(rest.is_empty());
        assert_eq!(extensions.supplementary_gid, Some(7));
        let contexts: Vec<_> = extensions.security_contexts.collect();
        assert_eq!(
            contexts,
            [SecurityContext {
                name: OsStr::new("security.abc"),
                value: b"val"
            }]
        );
    }

    #[test]
    fn refused() {
        // Longer than the message, too short for itself, group count beyond, context beyond.
        assert!(split(&words(&[16, 32]), 2).is_err());
        assert!(split(&words(&[4, 32]), 1).is_err());
        assert!(split(&words(&[24, 32]), 1).is_err());
        assert!(split(&words(&[16, 32, u32::MAX, 5]), 2).is_err());
        assert!(split(&words(&[16, 1, 100, 0]), 2).is_err());
    }
}
