//! Rust source reduced to what the rules look at: code without comments and literals, the comment
//! of each line, and which lines are test code. A lexer rather than a parser: the rules are about
//! words and lines, and a file that does not compile is the compiler's business.

/// One source file, line by line.
pub struct Source {
    /// Code with comments and the insides of literals blanked, same line structure as the file.
    pub code: Vec<String>,
    /// The text of the comments on each line.
    pub comments: Vec<String>,
    /// Whether a line belongs to an item under `#[cfg(test)]`.
    pub test_only: Vec<bool>,
}

impl Source {
    /// Splits `text` into code and comments and finds the test-only items.
    pub fn new(text: &str) -> Source {
        let (code, comments) = split(text);
        let lines = |text: &str| -> Vec<String> {
            let lines = text.split('\n').map(str::trim_end);
            lines.map(str::to_owned).collect()
        };
        let (code, comments) = (lines(&code), lines(&comments));
        let test_only = test_lines(&code);
        Source {
            code,
            comments,
            test_only,
        }
    }
}

/// Where the lexer is.
enum State {
    Code,
    LineComment,
    BlockComment(usize),
    Text { hashes: Option<usize> },
}

/// The code and the comments of `text`, each with every other character replaced by a blank.
fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let (mut code, mut comments) = (String::new(), String::new());
    let mut state = State::Code;
    let mut at = 0;
    while at < chars.len() {
        // Most characters change nothing: they are taken together.
        let plain = chars[at..].iter().take_while(|&&c| is_plain(&state, c));
        let (taken, is_code, next) = match plain.count() {
            0 => step(&chars, at, &state),
            taken => (taken, matches!(state, State::Code), None),
        };
        for &c in &chars[at..at + taken] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            let is_comment = matches!(state, State::LineComment | State::BlockComment(_));
            code.push(if is_code { c } else { blank });
            comments.push(if is_comment { c } else { blank });
        }
        at += taken;
        state = next.unwrap_or(state);
    }
    (code, comments)
}

/// Whether a character is what it is in this state, whatever follows.
fn is_plain(state: &State, c: char) -> bool {
    match state {
        State::Code => !matches!(c, '/' | '"' | '\'' | 'b' | 'c' | 'r'),
        State::LineComment => c != '\n',
        State::BlockComment(_) => !matches!(c, '*' | '/'),
        State::Text { .. } => !matches!(c, '\\' | '"'),
    }
}

/// How many characters to take from `at`, whether they are code, and the state after them.
fn step(chars: &[char], at: usize, state: &State) -> (usize, bool, Option<State>) {
    let rest = &chars[at..];
    match state {
        State::Code => code_step(chars, at),
        State::LineComment => (1, false, (rest[0] == '\n').then_some(State::Code)),
        State::BlockComment(depth) => {
            if rest.starts_with(&['*', '/']) {
                let next = if *depth == 1 {
                    State::Code
                } else {
                    State::BlockComment(depth - 1)
                };
                (2, false, Some(next))
            } else if rest.starts_with(&['/', '*']) {
                (2, false, Some(State::BlockComment(depth + 1)))
            } else {
                (1, false, None)
            }
        }
        State::Text { hashes: None } => match rest[0] {
            '\\' => (rest.len().min(2), false, None),
            '"' => (1, true, Some(State::Code)),
            _ => (1, false, None),
        },
        State::Text {
            hashes: Some(count),
        } => {
            let closes =
                rest[0] == '"' && rest.len() > *count && rest[1..=*count].iter().all(|&c| c == '#');
            if closes {
                (1 + count, true, Some(State::Code))
            } else {
                (1, false, None)
            }
        }
    }
}

fn code_step(chars: &[char], at: usize) -> (usize, bool, Option<State>) {
    let rest = &chars[at..];
    let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    if rest.starts_with(&['/', '/']) {
        return (2, false, Some(State::LineComment));
    }
    if rest.starts_with(&['/', '*']) {
        return (2, false, Some(State::BlockComment(1)));
    }
    if rest[0] == '"' {
        return (1, true, Some(State::Text { hashes: None }));
    }
    if !in_word && let Some((length, hashes)) = raw_string_start(rest) {
        return (
            length,
            true,
            Some(State::Text {
                hashes: Some(hashes),
            }),
        );
    }
    if rest[0] == '\''
        && let Some(length) = char_literal(rest)
    {
        return (length, false, None);
    }
    (1, true, None)
}

/// `r"`, `r#"`, `br##"`, `cr"`: the length of the opening and its number of hashes.
fn raw_string_start(rest: &[char]) -> Option<(usize, usize)> {
    let mut at = usize::from(matches!(rest.first(), Some('b' | 'c')));
    if rest.get(at) != Some(&'r') {
        return None;
    }
    at += 1;
    let hashes = rest[at..].iter().take_while(|&&c| c == '#').count();
    (rest.get(at + hashes) == Some(&'"')).then_some((at + hashes + 1, hashes))
}

/// The length of a character literal; `None` for a lifetime.
fn char_literal(rest: &[char]) -> Option<usize> {
    if rest.get(1) == Some(&'\\') {
        return rest
            .iter()
            .skip(3)
            .position(|&c| c == '\'')
            .map(|at| at + 4);
    }
    (rest.get(2) == Some(&'\'')).then_some(3)
}

/// Marks the lines of every item that carries `#[cfg(test)]` or `#[test]`.
fn test_lines(code: &[String]) -> Vec<bool> {
    let mut marked = vec![false; code.len()];
    for start in 0..code.len() {
        if !code[start].contains('#') {
            continue;
        }
        let dense: String = code[start].split_whitespace().collect();
        if dense.contains("#[cfg(test)]") || dense.contains("#[cfg(all(test") || dense == "#[test]"
        {
            let end = item_end(code, start);
            marked[start..=end].fill(true);
        }
    }
    marked
}

/// The last line of the item whose attributes start on `start`: the closing brace of its body, or
/// the semicolon of an item without one.
pub fn item_end(code: &[String], start: usize) -> usize {
    let (mut braces, mut brackets) = (0_i32, 0_i32);
    for (number, line) in code.iter().enumerate().skip(start) {
        for c in line.chars() {
            match c {
                '[' | '(' => brackets += 1,
                ']' | ')' => brackets -= 1,
                '{' => braces += 1,
                '}' => {
                    braces -= 1;
                    if braces <= 0 {
                        return number;
                    }
                }
                ';' if braces == 0 && brackets == 0 => return number,
                _ => {}
            }
        }
    }
    code.len().saturating_sub(1)
}

/// The words of a line of code with the column each starts at.
pub fn words(line: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in line.char_indices() {
        match (is_word(c), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                found.push((from, &line[from..at]));
                start = None;
            }
            _ => {}
        }
    }
    if let Some(from) = start {
        found.push((from, &line[from..]));
    }
    found
}
