//! Every link of a document leads to something: a file of the repository, and in it the heading. The
//! book's pages lead to pages of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::repo_root;

/// What a document links to, and what can be linked to in it.
#[derive(Default)]
struct Document {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

fn read(text: &str) -> Document {
    let mut document = Document::default();
    let mut heading = None::<String>;
    let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
    for event in Parser::new_ext(text, options) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                document.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                // A second heading of the same words has a number behind it.
                let mut unique = anchor.clone();
                for number in 1.. {
                    if document.anchors.insert(unique.clone()) {
                        break;
                    }
                    unique = format!("{anchor}-{number}");
                }
            }
            _ => {}
        }
    }
    document
}

/// A heading as the end of an address, as mdBook and the hosts of repositories make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// The path without `..`, by its text: a page that is shown through a symlink is looked at from there.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

fn pages_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        // The book shows documents from elsewhere through symlinks.
        if entry.file_type().unwrap().is_dir() {
            pages_below(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "md") {
            found.push(path);
        }
    }
}

/// What is wrong with the links of these documents, all named by their own paths.
fn dead_links(documents: &BTreeMap<PathBuf, Document>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, document) in documents {
        for link in &document.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => plain(&path.parent().unwrap_or(Path::new("")).join(file)),
            };
            let Ok(target) = target.canonicalize() else {
                wrong.push(format!("{}: {link} leads nowhere", path.display()));
                continue;
            };
            if !anchor.is_empty()
                && documents
                    .get(&target)
                    .is_none_or(|there| !there.anchors.contains(anchor))
            {
                wrong.push(format!("{}: {link}: no such heading", path.display()));
            }
        }
    }
    wrong
}

fn documents(paths: Vec<PathBuf>) -> BTreeMap<PathBuf, Document> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, read(&text))
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let root = repo_root();
    let mut paths = Vec::new();
    for dir in ["docs", "book/src"] {
        pages_below(&root.join(dir), &mut paths);
    }
    for entry in fs::read_dir(&root)
        .unwrap()
        .chain(fs::read_dir(root.join("crates")).unwrap())
    {
        let path = entry.unwrap().path();
        let readme = path.join("README.md");
        if readme.exists() {
            paths.push(readme);
        } else if path.extension().is_some_and(|kind| kind == "md") {
            paths.push(path);
        }
    }
    assert!(paths.len() > 30, "{paths:?}");
    let wrong = dead_links(&documents(paths));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_book_names_each_of_its_pages_and_leads_to_no_other() {
    let source = repo_root().join("book/src");
    let summary = read(&fs::read_to_string(source.join("SUMMARY.md")).unwrap());
    let named: BTreeSet<PathBuf> = summary.links.iter().map(|link| source.join(link)).collect();
    assert_eq!(named.len(), summary.links.len(), "a page is named twice");
    let mut paths = Vec::new();
    pages_below(&source, &mut paths);
    for path in paths {
        let is_shown = path.is_symlink() || path.ends_with("SUMMARY.md") || named.contains(&path);
        assert!(is_shown, "{} is not in SUMMARY.md", path.display());
    }
    for (path, document) in documents(named.iter().cloned().collect()) {
        for link in document.links.iter().filter(|link| !link.contains("://")) {
            let (file, _) = link.split_once('#').unwrap_or((link, ""));
            let target = plain(&path.parent().unwrap().join(file));
            // What is no page is copied to the site.
            let is_file = target.is_file() && target.extension().is_none_or(|kind| kind != "md");
            assert!(
                file.is_empty() || named.contains(&target) || is_file,
                "{}: {link} is no page of the book",
                path.display()
            );
        }
    }
}

#[test]
fn dead_links_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.md"), dir.path().join("b.md"));
    fs::write(&b, "# What `it` is: *all*\n## Two\n## Two\n").unwrap();
    let complaints = |text: &str| {
        fs::write(&a, text).unwrap();
        dead_links(&documents(vec![a.clone(), b.clone()])).len()
    };
    assert_eq!(
        complaints("[x](b.md) [x](b.md#what-it-is-all) [x](b.md#two-1) [x](https://x#y)"),
        0
    );
    assert_eq!(complaints("# Here\n[x](#here) `[x](none.md)`"), 0);
    assert_eq!(
        complaints("[x](none.md) [x](b.md#none) [x](#here) [x](b.md#two-2)"),
        4
    );
}
