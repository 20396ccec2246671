//! Directories that may never answer: a mount whose server hangs, a dead disk. Who asks one inside the
//! kernel may not even be killed, and a process ends with its last thread: so whoever can, has another
//! process ask first ([`ask_first`]).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::resolve::directories;
use super::{RawBranch, escape_path, parse, pattern};

/// Asks for each of these words, items of a branch list without braces, in another process; whether it
/// answered in time.
pub type Ask = fn(words: &[String], patience: Duration) -> Vec<bool>;

static ASK: OnceLock<Ask> = OnceLock::new();

/// How long a directory may take to answer, unless it is said: a disk that sleeps has to wake up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What has been waited for in vain is not waited for as long again.
const AGAIN: Duration = Duration::from_secs(1);

/// What answered is not asked again for so long.
const FRESH: Duration = Duration::from_secs(2);

/// What came of the last question, and when.
static ANSWERS: Mutex<Option<HashMap<String, (bool, Instant)>>> = Mutex::new(None);

/// Has `ask` used from here on, in this whole process. Without it no directory is asked first. Once.
pub fn ask_first(ask: Ask) {
    let _ = ASK.set(ask);
}

/// In the process that asks: does what [`super::resolve()`] does with the word, and looks into what it
/// finds, which it returns. May take for ever.
pub fn touch(word: &str) -> Vec<PathBuf> {
    let found = directories(word, &[]).unwrap_or_default();
    for path in &found {
        let entry = fs::read_dir(path).ok().and_then(|mut dir| dir.next());
        drop(entry);
    }
    found
}

/// For each of the words whether it does not answer.
pub(super) fn silent(words: &[String], patience: Duration) -> Vec<bool> {
    let Some(ask) = ASK.get() else {
        return vec![false; words.len()];
    };
    let before: Vec<Option<bool>> = words.iter().map(|word| known(word)).collect();
    let by_answer = |wanted: Option<bool>| {
        let words = words.iter().zip(&before);
        let of_these = words.filter(|(_, answer)| **answer == wanted);
        of_these.map(|(word, _)| word.clone()).collect::<Vec<_>>()
    };
    for (words, patience) in [
        (by_answer(None), patience),
        (by_answer(Some(false)), patience.min(AGAIN)),
    ] {
        if !words.is_empty() {
            let answers = ask(&words, patience);
            words
                .into_iter()
                .zip(answers)
                .for_each(|(word, answer)| note(word, answer));
        }
    }
    let answers = words.iter().map(|word| known(word) == Some(false));
    answers.collect()
}

/// Whether a word answered, as far as that is known still.
fn known(word: &str) -> Option<bool> {
    let answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (answer, when) = *answers.as_ref()?.get(word)?;
    (!answer || when.elapsed() < FRESH).then_some(answer)
}

fn note(word: String, answer: bool) {
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let answers = answers.get_or_insert_default();
    answers.retain(|_, (answer, when)| !*answer || when.elapsed() < FRESH);
    answers.insert(word, (answer, Instant::now()));
}

/// Whether a directory did not answer when it was asked the last time. Asks nothing.
pub fn is_silent(path: &Path) -> bool {
    known(&word_of(path)) == Some(false)
}

/// Those of the directories that do not answer, all asked at once.
pub fn find_silent<'a>(
    paths: impl IntoIterator<Item = &'a Path>,
    patience: Duration,
) -> Vec<&'a Path> {
    let paths: Vec<&Path> = paths.into_iter().collect();
    let words: Vec<String> = paths.iter().map(|path| word_of(path)).collect();
    let silent = silent(&words, patience).into_iter();
    let found = paths.into_iter().zip(silent);
    found
        .filter(|(_, silent)| *silent)
        .map(|(path, _)| path)
        .collect()
}

/// Notes what another process has waited for already.
pub fn note_silent(paths: &[PathBuf]) {
    if ASK.get().is_some() {
        paths.iter().for_each(|path| note(word_of(path), false));
    }
}

/// Asks for everything that these lists name, so that what does not answer is waited for once, and not
/// once for each list. A list may be a change ([`super::edit()`]); one that is wrong is left out.
pub fn ask_lists<'a>(lists: impl IntoIterator<Item = &'a str>, patience: Duration) {
    let lists = lists
        .into_iter()
        .map(|list| list.trim_start_matches(['=', '+', '<', '>', '-', '~']));
    let items: Vec<RawBranch> = lists
        .filter_map(|list| parse(list).ok())
        .flatten()
        .collect();
    let words = items
        .iter()
        .filter_map(|item| pattern::expand_braces(&item.pattern).ok());
    silent(&words.flatten().collect::<Vec<_>>(), patience);
}

/// The real path, if it is there and answers.
pub fn canonicalize(path: &Path) -> Option<PathBuf> {
    match find_silent([path], PATIENCE).is_empty() {
        true => fs::canonicalize(path).ok(),
        false => None,
    }
}

/// As it is written in a list. A name that is not UTF-8 is no branch's.
fn word_of(path: &Path) -> String {
    escape_path(&path.to_string_lossy())
}
