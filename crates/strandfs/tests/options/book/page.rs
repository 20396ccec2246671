//! What a page of the book has the reader do, and what it shows to come of that.
//!
//! A block of `console` holds commands, each behind the prompt `# ` or `$ `, and what they print. In it `…`
//! stands for anything: within a line, or as a line of its own for any number of lines. Comments of
//! HTML, which readers do not see, say the rest about the next block:
//!
//! | comment | meaning |
//! |---|---|
//! | `setup: SCRIPT` | is run here, and has to succeed |
//! | `file: PATH` | the next block is the content of this file |
//! | `exit: N ...` | the last command of the next block ends with one of these, the others with 0 |
//! | `each exit: N ...` | every command of it does |
//! | `needs: NAME ...` | programs, or paths, without which the next block is not run |
//! | `instead: SCRIPT` | is run where the next block is not |
//! | `not run: REASON` | the next block is for the reader alone |
//! | `note: TEXT` | for those who write the book |

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// One thing that is done on the page's machine.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// A script that readers do not see.
    Setup(String),
    /// A file that the page shows.
    File { path: String, text: String },
    /// A command that the page shows, with the lines it is shown to print.
    Command {
        line: String,
        shown: Vec<String>,
        exits: Vec<i32>,
    },
}

/// A page, ready to be run.
#[derive(Debug, Default)]
pub struct Page {
    /// With the line of the page that each begins in.
    pub steps: Vec<(usize, Step)>,
    /// Blocks that are not run here, each with its line and the reason.
    pub left_out: Vec<(usize, String)>,
    /// Their commands.
    pub left_out_commands: Vec<String>,
}

/// What the comments before a block say about it.
#[derive(Default)]
struct Notes {
    file: Option<String>,
    exits: Vec<i32>,
    is_each: bool,
    needs: Vec<String>,
    instead: Option<String>,
    not_run: Option<String>,
}

impl Page {
    /// Reads a page; `have` tells whether a program or path is there. An error says what is wrong
    /// with the page.
    pub fn read(text: &str, have: impl Fn(&str) -> bool) -> Result<Page, String> {
        let mut page = Page::default();
        let mut notes = Notes::default();
        let (mut comment, mut block) = (String::new(), None::<(usize, String, String)>);
        for (event, range) in Parser::new(text).into_offset_iter() {
            let line = text[..range.start].matches('\n').count() + 1;
            match event {
                Event::Html(html) => comment.push_str(&html),
                Event::End(TagEnd::HtmlBlock) => {
                    let whole = std::mem::take(&mut comment);
                    let taken = page.take_comment(&mut notes, line, &whole);
                    taken.map_err(|wrong| format!("line {line}: {wrong}"))?;
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let kind = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => "indented".to_owned(),
                    };
                    block = Some((line, kind, String::new()));
                }
                Event::Text(part) => {
                    if let Some((_, _, body)) = &mut block {
                        body.push_str(&part);
                    }
                }
                Event::End(TagEnd::CodeBlock) => {
                    let (line, kind, body) = block.take().unwrap_or_default();
                    let notes = std::mem::take(&mut notes);
                    let taken = page.take_block(line, &kind, &body, notes, &have);
                    taken.map_err(|wrong| format!("line {line}: {wrong}"))?;
                }
                _ => {}
            }
        }
        match notes.is_empty() {
            true => Ok(page),
            false => Err("the comments at the end are about no block".to_owned()),
        }
    }

    fn take_comment(&mut self, notes: &mut Notes, line: usize, html: &str) -> Result<(), String> {
        for part in html.split("<!--").skip(1) {
            let (inner, _) = part.split_once("-->").ok_or("a comment without an end")?;
            // Every page that `make docs` writes begins so.
            if inner.trim_start().starts_with("Made from") {
                continue;
            }
            let (word, value) = inner.split_once(':').ok_or("a comment without a word")?;
            let (word, value) = (word.trim(), value.trim().to_owned());
            match word {
                "setup" => self.steps.push((line, Step::Setup(value))),
                "file" => notes.file = Some(value),
                "exit" | "each exit" => {
                    notes.is_each = word == "each exit";
                    let codes = value.split_whitespace().map(str::parse);
                    notes.exits = codes
                        .collect::<Result<_, _>>()
                        .map_err(|_| "exit: no number")?;
                }
                "needs" => notes.needs = value.split_whitespace().map(str::to_owned).collect(),
                "instead" => notes.instead = Some(value),
                "not run" => notes.not_run = Some(value),
                "note" => {}
                _ => return Err(format!("a comment of an unknown kind: {word}")),
            }
        }
        Ok(())
    }

    fn take_block(
        &mut self,
        line: usize,
        kind: &str,
        body: &str,
        notes: Notes,
        have: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let missing: Vec<&String> = notes.needs.iter().filter(|need| !have(need)).collect();
        let reason = match (&notes.not_run, missing.as_slice()) {
            (Some(reason), _) => Some(reason.clone()),
            (None, []) => None,
            (None, missing) => Some(format!("needs {missing:?}")),
        };
        if let Some(reason) = reason {
            self.left_out.push((line, reason));
            if kind == "console" {
                let mut unread = Page::default();
                unread.take_commands(line, body, Vec::new())?;
                self.left_out_commands.extend(unread.commands());
            }
            let instead = notes.instead.map(|script| (line, Step::Setup(script)));
            self.steps.extend(instead);
            return Ok(());
        }
        if let Some(path) = notes.file {
            let text = body.to_owned();
            self.steps.push((line, Step::File { path, text }));
            return Ok(());
        }
        match kind {
            "console" => {
                let begin = self.steps.len();
                self.take_commands(line, body, notes.exits.clone())?;
                for (_, step) in self.steps[begin..].iter_mut().filter(|_| notes.is_each) {
                    if let Step::Command { exits, .. } = step {
                        exits.clone_from(&notes.exits);
                    }
                }
                Ok(())
            }
            "sh" | "bash" | "shell" | "indented" | "" => Err(format!(
                "a block of {kind:?} that nothing is done with: make it `console`, or a file"
            )),
            // A part of a file, or what is drawn: nobody types it.
            _ => Ok(()),
        }
    }

    fn commands(self) -> impl Iterator<Item = String> {
        self.steps.into_iter().filter_map(|(_, step)| match step {
            Step::Command { line, .. } => Some(line),
            _ => None,
        })
    }

    fn take_commands(
        &mut self,
        first: usize,
        body: &str,
        last_exits: Vec<i32>,
    ) -> Result<(), String> {
        let begin = self.steps.len();
        let mut lines = body.lines().enumerate();
        while let Some((index, text)) = lines.next() {
            if let Some(command) = text
                .strip_prefix(['#', '$'])
                .and_then(|rest| rest.strip_prefix(' '))
            {
                let mut line = command.to_owned();
                while line.ends_with('\\') {
                    let (_, more) = lines.next().ok_or("a command without its end")?;
                    line = format!("{line}\n{more}");
                }
                let (shown, exits) = (Vec::new(), vec![0]);
                let command = Step::Command { line, shown, exits };
                self.steps.push((first + 1 + index, command));
            } else if let Some((_, Step::Command { shown, .. })) = self.steps[begin..].last_mut() {
                shown.push(text.trim_end().to_owned());
            } else {
                return Err("a block of commands that begins with no command".to_owned());
            }
        }
        match self.steps[begin..].last_mut() {
            Some((_, Step::Command { exits, .. })) if !last_exits.is_empty() => *exits = last_exits,
            Some(_) => {}
            None => return Err("a block of commands without any".to_owned()),
        }
        Ok(())
    }
}

impl Notes {
    fn is_empty(&self) -> bool {
        self.file.is_none()
            && self.exits.is_empty()
            && self.needs.is_empty()
            && self.instead.is_none()
            && self.not_run.is_none()
    }
}

/// Whether what was printed is what the page shows. A page that shows nothing promises nothing.
pub fn is_as_shown(shown: &[String], printed: &[&str]) -> bool {
    fn lines(shown: &[String], printed: &[&str]) -> bool {
        match shown.split_first() {
            None => printed.is_empty(),
            Some((first, rest)) if first.trim() == "…" => {
                (0..=printed.len()).any(|skipped| lines(rest, &printed[skipped..]))
            }
            Some((first, rest)) => printed
                .split_first()
                .is_some_and(|(line, others)| within(first, line) && lines(rest, others)),
        }
    }
    shown.is_empty() || lines(shown, printed)
}

/// One line, in which `…` stands for anything.
fn within(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
