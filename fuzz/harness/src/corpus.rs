//! Corpus files: an input a line, bytes that do not print as `\xHH`, backslashes doubled; empty
//! lines and those that begin with `#` are none.

/// The inputs in a file.
///
/// # Errors
/// A line that is none of a corpus.
pub fn parse(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| unescape(line).ok_or_else(|| format!("not a line of a corpus: {line}")))
        .collect()
}

/// An input as a line.
pub fn escape(input: &[u8]) -> String {
    let mut line = String::new();
    for (at, byte) in input.iter().enumerate() {
        match byte {
            b'\\' => line.push_str("\\\\"),
            b'#' if at == 0 => line.push_str("\\x23"),
            0x20..0x7f => line.push(char::from(*byte)),
            _ => line.push_str(&format!("\\x{byte:02x}")),
        }
    }
    line
}

/// The input of a line; none if it is not one.
pub fn unescape(line: &str) -> Option<Vec<u8>> {
    let mut bytes = line.bytes();
    let mut input = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            input.push(byte);
            continue;
        }
        match bytes.next()? {
            b'\\' => input.push(b'\\'),
            b'x' => {
                let digits = [bytes.next()?, bytes.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                input.push(u8::from_str_radix(digits, 16).ok()?);
            }
            _ => return None,
        }
    }
    Some(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_survives_as_a_line() {
        for length in 0..64 {
            let input: Vec<u8> = (0..length).map(|_| fastrand::u8(..)).collect();
            assert_eq!(unescape(&escape(&input)), Some(input));
        }
        assert_eq!(escape(b"#a\\\n"), "\\x23a\\\\\\x0a");
        assert_eq!(unescape("\\q"), None);
        assert_eq!(parse("# no\n\na\\x00\n").unwrap(), [b"a\0"]);
    }
}
