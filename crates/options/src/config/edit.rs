//! Changing options in the text of a TOML file, leaving everything else as it is written.

use toml_edit::{Array, DocumentMut, Item, RawString, TableLike, Value};

use super::write;
use crate::settings::policies::{Category, Function};
use crate::table::{self, Status};

/// The text with these options (canonical names, values in the text form of the table) set. An
/// option that is there keeps its place and comment; a new one comes behind the others. A
/// category takes out its functions, which would override it.
///
/// # Errors
/// A sentence: the text is not TOML, or a value cannot be written as TOML.
pub fn with_options(text: &str, options: &[(String, String)]) -> Result<String, String> {
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| format!("this is not TOML ({})", error.message()))?;
    for (name, value) in options {
        let value: Value = write::value(name, value)
            .parse()
            .map_err(|_| format!("the value of {name} cannot be written as TOML"))?;
        for function in functions_of(name) {
            let given = options.iter().any(|(other, _)| *other == function);
            if !given {
                visit(document.as_table_mut(), "", &function, &mut |table, key| {
                    table.remove(key);
                });
            }
        }
        let mut new = Some(value);
        visit(document.as_table_mut(), "", name, &mut |table, key| {
            if let (Some(item), Some(value)) = (table.get_mut(key), new.take()) {
                replace(item, value);
            }
        });
        if let Some(value) = new {
            document.insert(name, Item::Value(value));
        }
    }
    Ok(document.to_string())
}

/// The functions that the option of a category sets; none for another option.
pub fn functions_of(name: &str) -> Vec<String> {
    let category = match name {
        "category.action" => Category::Action,
        "category.create" => Category::Create,
        "category.search" => Category::Search,
        _ => return Vec::new(),
    };
    let functions = category.functions().map(Function::name);
    functions.map(|name| format!("func.{name}")).collect()
}

type Found<'a> = dyn FnMut(&mut dyn TableLike, &str) + 'a;

/// Calls `found` with the table and key of an option, however its name is written.
fn visit(table: &mut dyn TableLike, prefix: &str, wanted: &str, found: &mut Found<'_>) {
    let keys: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
    for key in keys {
        let name = format!("{prefix}{key}");
        if canonical(&name) == Some(wanted) {
            found(table, &key);
        } else if let Some(inner) = table.get_mut(&key).and_then(Item::as_table_like_mut) {
            visit(inner, &format!("{name}."), wanted, found);
        }
    }
}

fn canonical(name: &str) -> Option<&'static str> {
    let (option, _) = table::find(name)?;
    match option.status {
        Status::Renamed { to } => table::find(to).map(|(target, _)| target.name),
        _ => Some(option.name),
    }
}

fn replace(item: &mut Item, mut new: Value) {
    if let Some(old) = item.as_value() {
        if let (Some(old), Some(list)) = (old.as_array(), new.as_array_mut()) {
            keep_items(old, list);
        }
        *new.decor_mut() = old.decor().clone();
    }
    *item = Item::Value(new);
}

/// Items of a list that are the same stay as they are written, comments and all; new ones are written
/// as those are.
fn keep_items(old: &Array, new: &mut Array) {
    let written: Vec<Written> = written(old);
    let (_, end) = split_comment(end_of(old));
    let first = written.first().map_or("", |item| item.before.as_str());
    // The line a new item is on: one of its own, where the others have that.
    let line = match first.rfind('\n') {
        Some(at) => first.get(at..).unwrap_or_default(),
        None => " ",
    };
    let mut behind = String::new();
    for (number, item) in new.iter_mut().enumerate() {
        let words = plain(item);
        let same = old
            .iter()
            .zip(&written)
            .find(|(known, _)| plain(known) == words);
        let (mut prefix, next) = match same {
            Some((known, how)) => {
                *item = known.clone();
                item.decor_mut().set_suffix(how.after.as_str());
                (how.before.clone(), how.behind.clone())
            }
            None => {
                item.decor_mut().set_suffix("");
                (line.to_owned(), String::new())
            }
        };
        if !prefix.contains('\n') {
            prefix = if number == 0 { first } else { " " }.to_owned();
        }
        if behind.contains('#') && !prefix.contains('\n') {
            prefix.insert(0, '\n');
        }
        item.decor_mut().set_prefix(format!("{behind}{prefix}"));
        behind = next;
    }
    if behind.contains('#') && !end.contains('\n') {
        behind.push('\n');
    }
    let end = format!("{behind}{end}");
    new.set_trailing_comma(old.trailing_comma());
    new.set_trailing("");
    match new.iter_mut().last().filter(|_| !old.trailing_comma()) {
        Some(last) => last.decor_mut().set_suffix(end),
        None => new.set_trailing(end),
    }
}

/// How an item is written.
struct Written {
    /// What stands before it: blanks, lines, comments of its own.
    before: String,
    /// What stands between it and its comma.
    after: String,
    /// The comment that stands behind it on its line.
    behind: String,
}

/// What stands before the bracket that ends a list: behind the last item or behind its comma.
fn end_of(list: &Array) -> &str {
    match list.iter().last().filter(|_| !list.trailing_comma()) {
        Some(last) => text_of(last.decor().suffix()),
        None => text_of(Some(list.trailing())),
    }
}

/// The parser counts a comment behind an item to what follows, the next item or the list's end.
fn written(list: &Array) -> Vec<Written> {
    let prefixes = list.iter().map(|item| text_of(item.decor().prefix()));
    let prefixes: Vec<&str> = prefixes.collect();
    let following = prefixes.iter().skip(1).copied().chain([end_of(list)]);
    let last = prefixes.len().saturating_sub(1);
    let pairs = list.iter().zip(&prefixes).enumerate().zip(following);
    pairs
        .map(|((number, (item, before)), next)| Written {
            before: match number {
                0 => (*before).to_owned(),
                _ => split_comment(before).1.to_owned(),
            },
            after: match number == last && !list.trailing_comma() {
                true => String::new(),
                false => text_of(item.decor().suffix()).to_owned(),
            },
            behind: split_comment(next).0.to_owned(),
        })
        .collect()
}

/// A comment that ends the line before, and the rest.
fn split_comment(text: &str) -> (&str, &str) {
    match text.find('\n').and_then(|at| text.split_at_checked(at)) {
        Some((comment, rest)) if comment.contains('#') => (comment, rest),
        _ => ("", text),
    }
}

fn text_of(raw: Option<&RawString>) -> &str {
    raw.and_then(RawString::as_str).unwrap_or_default()
}

/// What an item says, without how it is written: the fields of a branch in a fixed order, without those
/// that say what holds anyway.
fn plain(item: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string().trim().to_owned(),
    };
    let Some(table) = item.as_inline_table() else {
        return vec![("path".to_owned(), text(item))];
    };
    let field = |(key, value): (&str, &Value)| {
        let value = match key {
            "mode" => text(value).to_ascii_uppercase(),
            _ => text(value),
        };
        (key.to_owned(), value)
    };
    let holds_anyway = |(key, value): &(String, String)| {
        matches!(
            (key.as_str(), value.as_str()),
            ("mode", "RW") | ("glob", "false")
        )
    };
    let fields = table.iter().map(field);
    let mut fields: Vec<_> = fields.filter(|field| !holds_anyway(field)).collect();
    fields.sort();
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(text: &str, options: &[(&str, &str)]) -> String {
        let options: Vec<_> = options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        with_options(text, &options).unwrap()
    }

    #[test]
    fn values_change_in_place_and_comments_stay() {
        let text = "# my pool\nattr_timeout = 7 # short\n\n[cache]\nfiles = \"off\" # why\n";
        let after = edit(text, &[("cache.attr", "9s"), ("cache.files", "full")]);
        let expected =
            "# my pool\nattr_timeout = \"9s\" # short\n\n[cache]\nfiles = \"full\" # why\n";
        assert_eq!(after, expected);
    }

    #[test]
    fn new_options_come_before_the_tables() {
        let after = edit("[cache]\nattr = 7\n", &[("dropcacheonclose", "true")]);
        assert_eq!(after, "dropcacheonclose = true\n[cache]\nattr = 7\n");
        let after = edit("", &[("cache.attr", "5m")]);
        assert_eq!(after, "\"cache.attr\" = \"5m\"\n");
    }

    #[test]
    fn a_category_ends_the_exceptions_to_it() {
        let text = "func.mkdir = \"all\"\nfunc.open = \"ff\"\n\"func.create\" = \"mfs\"\n";
        let after = edit(text, &[("category.create", "lfs")]);
        assert!(
            after.contains("category.create\" = \"lfs\"") && after.contains("open"),
            "{after}"
        );
        assert!(
            !after.contains("mkdir") && !after.contains("func.create"),
            "{after}"
        );
    }

    #[test]
    fn lists_keep_their_shape_and_comments_their_items() {
        let text = "branches = ['/a', \"/b\"] # two\nx = 1\n";
        let one_line = |list| edit(text, &[("branches", list)]);
        assert_eq!(
            one_line("/a=RW:/b=RW:/c=RW"),
            "branches = ['/a', \"/b\", \"/c\"] # two\nx = 1\n"
        );
        assert_eq!(one_line("/b=RW"), "branches = [\"/b\"] # two\nx = 1\n");
        assert_eq!(
            one_line("/c=RW:/a=RW"),
            "branches = [\"/c\", '/a'] # two\nx = 1\n"
        );
        let text = "branches = [\n\t# the old ones\n\t'/a', # first\n\t'/b' # second\n]\n";
        let lines = |list| edit(text, &[("branches", list)]);
        assert_eq!(
            lines("/a=RW:/b=RW:/c=RW"),
            "branches = [\n\t# the old ones\n\t'/a', # first\n\t'/b', # second\n\t\"/c\"\n]\n"
        );
        assert_eq!(
            lines("/a=RW"),
            "branches = [\n\t# the old ones\n\t'/a' # first\n]\n"
        );
        assert_eq!(lines("/b=RW"), "branches = [\n\t'/b' # second\n]\n");
    }

    #[test]
    fn branches_that_stay_are_left_as_they_are() {
        let text = "branches = [\n  '/a', # first\n  { mode = 'NC', path = '/b' },\n]\n";
        let after = edit(text, &[("branches", "/a=RW:/b=NC:/c=RO,1G")]);
        assert!(
            after.contains("  '/a'") && after.contains("{ mode = 'NC', path = '/b' }"),
            "{after}"
        );
        assert!(after.contains("/c") && after.contains("\"1G\""), "{after}");
        assert!(after.parse::<DocumentMut>().is_ok());
        let options = [("branches".to_owned(), "/a=RW".to_owned())];
        assert!(with_options("branches = ", &options).is_err());
    }

    #[test]
    fn wildcards_stay_as_they_are_written() {
        let text = "branches = [{ path = '/d*', glob = true }, '/a'] # mine\n";
        let list = |list| edit(text, &[("branches", list)]);
        assert_eq!(
            list("/d*=RW:/a=RW:/b=RO"),
            "branches = [{ path = '/d*', glob = true }, '/a', \
             { path = \"/b\", mode = \"RO\" }] # mine\n"
        );
        assert_eq!(
            list("/d*=RW"),
            "branches = [{ path = '/d*', glob = true }] # mine\n"
        );
        let tables = "[[branches]]\npath = '/d*'\nglob = true\nmode = 'nc'\n";
        let after = edit(tables, &[("branches", "/d*=NC:/b=RW")]);
        assert!(
            after.contains("\"/d*\", glob = true, mode = \"NC\"") && after.contains("\"/b\""),
            "{after}"
        );
    }
}
