//! Splitting a `-o` string into its items.

use std::borrow::Cow;

use crate::branch::BranchMode;
use crate::error::OptionError;

/// One item of a `-o` string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item<'t> {
    /// As written, not empty.
    pub name: &'t str,
    /// What follows the `=`; quotes and escapes are resolved, except in `branches`, whose own
    /// grammar has them.
    pub value: Option<Cow<'t, str>>,
}

/// Splits at commas that belong to no value; see `Settings::parse_mount_options` for the rules.
pub(crate) fn split(text: &str) -> Result<Vec<Item<'_>>, OptionError> {
    let mut items = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let name_end = rest.find(['=', ',']).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(name_end);
        let (value, end) = match behind.strip_prefix('=') {
            None => (None, name_end),
            Some(value_text) => {
                let (value, length) = read_value(name, value_text)?;
                (Some(value), name_end + 1 + length)
            }
        };
        match (name.is_empty(), &value) {
            (false, _) => items.push(Item { name, value }),
            (true, None) => {} // `a,,b`
            (true, Some(_)) => {
                return Err(OptionError::NoName {
                    item: rest[..end].to_owned(),
                });
            }
        }
        rest = &rest[end..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Ok(items)
}

/// The items of a `-o` string: names and values, quotes and escapes resolved.
///
/// # Errors
/// As [`crate::Settings::parse_mount_options`] for a string that cannot be split.
pub fn mount_items(text: &str) -> Result<Vec<(String, Option<String>)>, OptionError> {
    let items = split(text)?.into_iter();
    let owned = items.map(|item| (item.name.to_owned(), item.value.map(Cow::into_owned)));
    Ok(owned.collect())
}

/// The value at the start of `text` and how many bytes it takes up there.
fn read_value<'t>(name: &str, text: &'t str) -> Result<(Cow<'t, str>, usize), OptionError> {
    if name == "branches" {
        let end = branches_end(text, true)
            .or_else(|| branches_end(text, false))
            .unwrap_or(text.len());
        return Ok((Cow::Borrowed(&text[..end]), end));
    }
    if let Some(inside) = text.strip_prefix('"') {
        // libmount hands on the quotes that keep the commas of an SELinux label together.
        let close = inside.find('"');
        return match close {
            Some(close) if matches!(inside.as_bytes().get(close + 1), None | Some(b',')) => {
                Ok((Cow::Borrowed(&inside[..close]), close + 2))
            }
            _ => Err(OptionError::OpenQuote {
                option: name.to_owned(),
            }),
        };
    }
    let end = unescaped(text, |character| character == ',').unwrap_or(text.len());
    Ok((unescape(&text[..end]), end))
}

/// Byte offset of the first character that satisfies `wanted` and has no backslash before it.
fn unescaped(text: &str, mut wanted: impl FnMut(char) -> bool) -> Option<usize> {
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        if character == '\\' {
            characters.next();
        } else if wanted(character) {
            return Some(at);
        }
    }
    None
}

/// The value as it is written in a `-o` string.
pub(crate) fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let escaped = match character {
            '\\' => characters.next_if(|next| matches!(next, ',' | '\\')),
            _ => None,
        };
        plain.push(escaped.unwrap_or(character));
    }
    Cow::Owned(plain)
}

/// Where a branch list ends: at a comma outside braces that does not lead from a mode to a size.
/// `None` when braces are open at the end, so that the caller can take them for plain characters
/// instead of swallowing the options behind.
fn branches_end(list: &str, with_braces: bool) -> Option<usize> {
    let (mut depth, mut item_start, mut at) = (0_usize, 0, 0);
    let mut size_seen = false;
    while let Some(offset) = unescaped(&list[at..], |c| matches!(c, ',' | ':' | '{' | '}')) {
        let here = at + offset;
        at = here + 1;
        match list.as_bytes()[here] {
            b'{' if with_braces => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b':' if depth == 0 => (item_start, size_seen) = (at, false),
            b',' if depth == 0 => {
                let size_follows = list.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
                if size_seen || !size_follows || !ends_in_mode(&list[item_start..here]) {
                    return Some(here);
                }
                size_seen = true;
            }
            _ => {}
        }
    }
    (depth == 0).then_some(list.len())
}

fn ends_in_mode(item: &str) -> bool {
    item.rsplit_once('=')
        .is_some_and(|(_, mode)| mode.parse::<BranchMode>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn items(text: &str) -> Vec<(&str, String)> {
        split(text)
            .unwrap()
            .into_iter()
            .map(|item| (item.name, item.value.unwrap_or("-".into()).into_owned()))
            .collect()
    }

    fn pairs<'t>(expected: &[(&'t str, &str)]) -> Vec<(&'t str, String)> {
        expected
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect()
    }

    #[test]
    fn items_split_at_commas() {
        for (text, expected) in [
            ("", vec![]),
            ("ro", vec![("ro", "-")]),
            (",ro,,fsname=a=b,", vec![("ro", "-"), ("fsname", "a=b")]),
            ("fsname=,ro", vec![("fsname", ""), ("ro", "-")]),
            (
                "fsname=a\\,b\\\\,ro",
                vec![("fsname", "a,b\\"), ("ro", "-")],
            ),
            (
                "context=\"a:c1,c2\",ro",
                vec![("context", "a:c1,c2"), ("ro", "-")],
            ),
            ("fsname=a\"b,ro", vec![("fsname", "a\"b"), ("ro", "-")]),
        ] {
            assert_eq!(items(text), pairs(&expected), "{text}");
        }
    }

    #[test]
    fn commas_of_a_branch_list_stay_in_it() {
        for (list, behind) in [
            ("/a=NC,10G:/b=rw,4G/5%", "ro"),
            ("/a=NC,10G", "ro"),
            ("/a", "ro"),
            ("/a=NC", "ro"),
            ("/mnt/{a,b}:/c", "ro"),
            ("/mnt/{a,{b,c}}=RO,1G", "ro"),
            ("/a\\,b:/c\\:d=RO,7", "ro"),
            ("/mnt/{a", "ro"),
            ("/mnt/a}", "ro"),
        ] {
            let text = format!("branches={list},{behind}");
            assert_eq!(
                items(&text),
                pairs(&[("branches", list), (behind, "-")]),
                "{text}"
            );
        }
    }

    #[test]
    fn slips_are_refused() {
        assert!(matches!(split("=x"), Err(OptionError::NoName { .. })));
        for text in ["context=\"a,b", "context=\"a\"b,ro"] {
            assert!(
                matches!(split(text), Err(OptionError::OpenQuote { .. })),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(branches=)?[a=,\\\\\"{}:R0é]*|\\PC*") {
            let _ = split(&text);
        }

        #[test]
        fn escaped_values_come_back(value in "[^\"]\\PC*") {
            let escaped = value.replace('\\', "\\\\").replace(',', "\\,");
            let text = format!("fsname={escaped},ro");
            prop_assert_eq!(items(&text), pairs(&[("fsname", value.as_str()), ("ro", "-")]));
        }
    }
}
