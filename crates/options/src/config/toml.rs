//! TOML: keys are option names, `cache.files` as a quoted or dotted key or in a table `[cache]`.

use std::path::Path;

use toml_edit::{Array, Document, Item, Key, TableLike, Value};

use super::{ConfigError, Entry};
use crate::branch::{self, BranchMode};
use crate::error::OptionError;
use crate::table::{self, Kind, OptionDef, Status};

/// What a branch may hold when it is written as a table.
const BRANCH_KEYS: [&str; 4] = ["path", "mode", "minfreespace", "glob"];

/// The options in the order they are to be applied: the order of a TOML file means nothing, so a
/// category comes before the functions that differ from it. And what is wrong with the others.
pub(super) fn entries(path: &Path, text: &str) -> (Vec<Entry>, Vec<ConfigError>) {
    let mut reader = Reader {
        path,
        text,
        entries: Vec::new(),
        canonical: Vec::new(),
        errors: Vec::new(),
    };
    match Document::parse(text) {
        Ok(document) => reader.table("", document.as_table()),
        Err(error) => {
            let place = error.span().map(|span| span.start);
            // The parser explains over several lines; its first one says what is wrong.
            let first = error.message().lines().next().unwrap_or_default();
            reader.refuse(
                place,
                format!("this is not TOML ({first}): correct this line"),
            );
        }
    }
    let mut entries = reader.entries;
    entries.sort_by_key(|entry| match entry.name.split('.').next() {
        Some("category") => 0,
        Some("func") => 2,
        _ => 1,
    });
    (entries, reader.errors)
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    entries: Vec<Entry>,
    /// The canonical names of `entries`.
    canonical: Vec<&'static str>,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    fn table(&mut self, prefix: &str, table: &dyn TableLike) {
        for (key, item) in table.iter() {
            let name = format!("{prefix}{key}");
            let place = table
                .get_key_value(key)
                .and_then(|(key, _)| Key::span(key))
                .or_else(|| item.span())
                .map(|span| span.start);
            match table::find(&name) {
                Some((option, _)) => self.option(option, &name, item, place),
                None => match item.as_table_like() {
                    Some(inner) if !inner.is_empty() => self.table(&format!("{name}."), inner),
                    _ => self.unknown(name, place),
                },
            }
        }
    }

    fn option(
        &mut self,
        option: &'static OptionDef,
        name: &str,
        item: &Item,
        place: Option<usize>,
    ) {
        let canonical = match option.status {
            Status::Renamed { to } => table::find(to).map_or(to, |(target, _)| target.name),
            _ => option.name,
        };
        let line = self.line(place);
        if let Some(index) = self.canonical.iter().position(|known| *known == canonical) {
            let first = self.entries.get(index).map_or(0, |entry| entry.line);
            let text = format!("option {name} is set twice (also in line {first}): keep one");
            return self.refuse(place, text);
        }
        let kind = table::find(canonical).map_or(Kind::Nothing, |(target, _)| target.value.kind);
        match value(kind, item) {
            // Where the server is started from is nothing to the file.
            Ok(value) if canonical == "mountpoint" && !value.starts_with('/') => {
                let text =
                    format!("option {name}: {value:?} is not absolute: begin it with a slash");
                self.refuse(place, text);
            }
            Ok(value) => {
                self.canonical.push(canonical);
                self.entries.push(Entry {
                    name: name.to_owned(),
                    value: Some(value),
                    line,
                });
            }
            Err(Wrong { text, at }) => self.refuse(at.or(place), format!("option {name}: {text}")),
        }
    }

    fn unknown(&mut self, name: String, place: Option<usize>) {
        let suggestion = table::meant(&name);
        self.refuse(place, OptionError::Unknown { name, suggestion }.to_string());
    }

    fn refuse(&mut self, place: Option<usize>, text: String) {
        self.errors.push(ConfigError {
            path: self.path.to_owned(),
            line: place.map(|place| self.line(Some(place))),
            text,
            may_pass: false,
        });
    }

    fn line(&self, place: Option<usize>) -> usize {
        let before = self.text.as_bytes().iter().take(place.unwrap_or(0));
        before.filter(|byte| **byte == b'\n').count() + 1
    }
}

/// Why a value is refused, and where, if not where its key is.
struct Wrong {
    text: String,
    at: Option<usize>,
}

fn wrong(text: impl Into<String>) -> Wrong {
    Wrong {
        text: text.into(),
        at: None,
    }
}

/// The value in the text form of the table.
fn value(kind: Kind, item: &Item) -> Result<String, Wrong> {
    match (kind, item) {
        (Kind::Branches, Item::ArrayOfTables(tables)) => {
            let items: Result<Vec<_>, _> = tables.iter().map(|table| branch_table(table)).collect();
            join_branches(items?)
        }
        (Kind::Branches, Item::Value(Value::Array(array))) => {
            let items: Result<Vec<_>, _> = array.iter().map(branch).collect();
            join_branches(items?)
        }
        (Kind::Names, Item::Value(Value::Array(array))) => names(array),
        (_, Item::Value(value)) => scalar(value),
        (_, Item::Table(_)) => Err(wrong(
            "a value is expected, not a table: put the options below it in quotes, as in \
             \"cache.files.process-names\"",
        )),
        _ => Err(wrong("a value is expected, not a list of tables")),
    }
}

fn scalar(value: &Value) -> Result<String, Wrong> {
    match value {
        Value::String(text) => Ok(text.value().clone()),
        Value::Integer(number) => Ok(number.value().to_string()),
        Value::Boolean(truth) => Ok(truth.value().to_string()),
        other => Err(wrong(format!(
            "a text, a whole number or true or false is expected, not {}",
            kind_of(other)
        ))),
    }
}

/// With its article.
fn kind_of(value: &Value) -> String {
    let name = value.type_name();
    let article = if name.starts_with(['a', 'i']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {name}")
}

fn names(array: &Array) -> Result<String, Wrong> {
    let names: Option<Vec<&str>> = array.iter().map(Value::as_str).collect();
    match names {
        Some(names) => Ok(names.join("|")),
        None => Err(wrong("only texts are expected in the list")),
    }
}

fn join_branches(items: Vec<String>) -> Result<String, Wrong> {
    if items.is_empty() {
        return Err(wrong("the list is empty: name at least one directory"));
    }
    Ok(items.join(":"))
}

/// One branch: a path, or a table with a path.
fn branch(value: &Value) -> Result<String, Wrong> {
    let at = value.span().map(|span| span.start);
    let found = match value {
        Value::String(path) => branch_text(path.value(), false, None, None),
        Value::InlineTable(table) => branch_table(table),
        other => Err(wrong(format!(
            "a branch is a path or a table like {{ path = \"/mnt/a\", mode = \"RO\" }}, not {}",
            kind_of(other)
        ))),
    };
    found.map_err(|wrong| Wrong {
        at: wrong.at.or(at),
        ..wrong
    })
}

fn branch_table(table: &dyn TableLike) -> Result<String, Wrong> {
    for (key, item) in table.iter() {
        if !BRANCH_KEYS.contains(&key) {
            let at = item.span().map(|span| span.start);
            let near = BRANCH_KEYS
                .into_iter()
                .min_by_key(|known| strsim::damerau_levenshtein(known, key))
                .unwrap_or("path");
            let text = format!("a branch has no {key:?}: did you mean {near}?");
            return Err(Wrong { text, at });
        }
    }
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(item) => match item.as_value() {
            Some(value) => scalar(value).map(Some),
            None => Err(wrong(format!("{key} of a branch must be a text"))),
        },
    };
    let path = text("path")?.ok_or_else(|| wrong("a branch has no path: write path = \"/...\""))?;
    let glob = match table.get("glob") {
        None => false,
        Some(item) => item
            .as_bool()
            .ok_or_else(|| wrong("glob of a branch must be true or false"))?,
    };
    branch_text(&path, glob, text("mode")?, text("minfreespace")?)
}

/// A branch in the notation of the option.
fn branch_text(
    path: &str,
    glob: bool,
    mode: Option<String>,
    reserve: Option<String>,
) -> Result<String, Wrong> {
    if !path.starts_with('/') {
        return Err(wrong(format!(
            "the branch path {path:?} is not absolute: begin it with a slash"
        )));
    }
    let mode = match mode {
        None => BranchMode::ReadWrite,
        Some(mode) => mode
            .parse()
            .map_err(|_| wrong(format!("{mode:?} is no branch mode: give RW, RO or NC")))?,
    };
    let path = match glob {
        true => branch::escape_pattern(path),
        false => branch::escape_path(path),
    };
    Ok(match reserve {
        None => format!("{path}={mode}"),
        Some(reserve) => format!("{path}={mode},{reserve}"),
    })
}
