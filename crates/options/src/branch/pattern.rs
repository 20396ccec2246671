//! Text work on branch paths: backslash escapes, braces, wildcards.

use super::BranchError;

/// The characters a backslash makes ordinary. A backslash before anything else is itself ordinary.
const SPECIAL: &[char] = &['\\', ':', ',', '=', '*', '?', '[', ']', '{', '}'];

/// No list of disks is this long; a slip of nested braces easily is.
const MOST_ALTERNATIVES: usize = 1024;

/// The characters of `text` with their byte offset and whether a backslash precedes them. The
/// escaping backslash is not yielded itself.
fn chars(text: &str) -> impl Iterator<Item = (usize, char, bool)> + '_ {
    let mut iter = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (at, character) = iter.next()?;
        if character == '\\'
            && let Some((at, escaped)) = iter.next_if(|(_, next)| SPECIAL.contains(next))
        {
            return Some((at, escaped, true));
        }
        Some((at, character, false))
    })
}

/// Splits at every `separator` that no backslash precedes. Escapes stay in the parts.
pub(super) fn split_unescaped(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, character, escaped) in chars(text) {
        if character == separator && !escaped {
            parts.push(&text[start..at]);
            start = at + character.len_utf8();
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Byte offset of the last `wanted` that no backslash precedes.
pub(super) fn rfind_unescaped(text: &str, wanted: char) -> Option<usize> {
    chars(text)
        .filter(|(_, character, escaped)| *character == wanted && !escaped)
        .map(|(at, ..)| at)
        .last()
}

/// Removes the escapes.
pub(super) fn unescape(text: &str) -> String {
    chars(text).map(|(_, character, _)| character).collect()
}

/// Adds the escapes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if SPECIAL.contains(&character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// The pattern in the language of the `glob` crate, which knows no backslash but `[*]`; or `None`
/// when there is no wildcard in it.
pub(super) fn to_glob(text: &str) -> Option<String> {
    let is_wildcard = |character| matches!(character, '*' | '?' | '[');
    if !chars(text).any(|(_, character, escaped)| !escaped && is_wildcard(character)) {
        return None;
    }
    let mut glob = String::with_capacity(text.len());
    for (_, character, escaped) in chars(text) {
        if escaped && (is_wildcard(character) || character == ']') {
            glob.extend(['[', character, ']']);
        } else {
            glob.push(character);
        }
    }
    Some(glob)
}

/// Replaces every `x{a,b}y` by `xay` and `xby`, nested ones too, in order. As in glob(3), `{}` and
/// a brace without partner are ordinary. Escapes stay in the results.
pub(super) fn expand_braces(text: &str) -> Result<Vec<String>, BranchError> {
    let mut results = Vec::new();
    // What is still to do: a part without braces to expand, and the rest behind it. A worklist
    // instead of recursion, so that deep nesting cannot exhaust the stack.
    let mut pending = vec![(String::new(), text.to_owned())];
    while let Some((done, rest)) = pending.pop() {
        if results.len() + pending.len() >= MOST_ALTERNATIVES {
            return Err(BranchError::TooMany {
                pattern: text.to_owned(),
                limit: MOST_ALTERNATIVES,
            });
        }
        match first_braces(&rest) {
            None => results.push(done + &rest),
            Some(braces) => {
                let done = done + &rest[..braces.open];
                let behind = &rest[braces.close + 1..];
                // Last alternative first: the worklist is a stack.
                for alternative in braces.alternatives(&rest).into_iter().rev() {
                    pending.push((done.clone(), format!("{alternative}{behind}")));
                }
            }
        }
    }
    Ok(results)
}

/// Byte offsets of a pair of braces and of the commas directly in it.
struct Braces {
    open: usize,
    commas: Vec<usize>,
    close: usize,
}

impl Braces {
    fn alternatives<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut parts = Vec::with_capacity(self.commas.len() + 1);
        let mut start = self.open + 1;
        for end in self.commas.iter().copied().chain([self.close]) {
            parts.push(&text[start..end]);
            start = end + 1;
        }
        parts
    }
}

/// The leftmost outermost pair that is not `{}`.
fn first_braces(text: &str) -> Option<Braces> {
    // Open pairs, outermost first; a pair that never closes gives way to the pairs inside it.
    let mut open: Vec<Braces> = Vec::new();
    let mut closed: Option<Braces> = None;
    for (at, character, escaped) in chars(text) {
        match character {
            _ if escaped => {}
            '{' => open.push(Braces {
                open: at,
                commas: Vec::new(),
                close: at,
            }),
            ',' => {
                if let Some(innermost) = open.last_mut() {
                    innermost.commas.push(at);
                }
            }
            '}' => {
                let Some(mut pair) = open.pop() else { continue };
                if at == pair.open + 1 {
                    continue;
                }
                pair.close = at;
                let leftmost = closed.as_ref().is_none_or(|seen| pair.open < seen.open);
                if leftmost {
                    closed = Some(pair);
                }
                if open.is_empty() {
                    break;
                }
            }
            _ => {}
        }
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn braces_expand_in_order() {
        for (text, expected) in [
            ("/a", vec!["/a"]),
            ("/{a,b}", vec!["/a", "/b"]),
            ("/{a,b}/{c,d}", vec!["/a/c", "/a/d", "/b/c", "/b/d"]),
            ("/{a,b{1,2}}x", vec!["/ax", "/b1x", "/b2x"]),
            ("/{a}", vec!["/a"]),
            ("/{,b}", vec!["/", "/b"]),
            ("/{}", vec!["/{}"]),
            ("/{a", vec!["/{a"]),
            ("/}a,b{", vec!["/}a,b{"]),
            ("/{x/{a,b}", vec!["/{x/a", "/{x/b"]),
            ("/\\{a,b\\}", vec!["/\\{a,b\\}"]),
            ("/{a\\,b,c}", vec!["/a\\,b", "/c"]),
        ] {
            assert_eq!(expand_braces(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn explosive_braces_are_refused() {
        let text = "{a,b}".repeat(40);
        assert!(matches!(
            expand_braces(&text),
            Err(BranchError::TooMany { .. })
        ));
    }

    #[test]
    fn escapes_reach_the_wildcards() {
        assert_eq!(to_glob("/a\\*"), None);
        assert_eq!(to_glob("/a\\*/*").as_deref(), Some("/a[*]/*"));
        assert_eq!(to_glob("/\\[a\\]?").as_deref(), Some("/[[]a[]]?"));
        assert_eq!(unescape("/a\\:\\\\b\\n"), "/a:\\b\\n");
    }

    proptest! {
        #[test]
        fn never_panics(text in "[a{},\\\\*:é]*") {
            let _ = expand_braces(&text);
            let _ = to_glob(&text);
            let _ = split_unescaped(&text, ':');
        }

        #[test]
        fn escape_is_undone_and_inert(text in "\\PC*") {
            let escaped = escape(&text);
            prop_assert_eq!(unescape(&escaped), text);
            prop_assert_eq!(to_glob(&escaped), None);
            prop_assert_eq!(expand_braces(&escaped).unwrap(), vec![escaped.clone()]);
            prop_assert_eq!(split_unescaped(&escaped, ':').len(), 1);
        }
    }
}
