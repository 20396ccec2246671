//! Limits how often the same thing is said: a failing disk under a busy program makes thousands
//! of lines a second, and the first few say it all. The rest is counted.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use tracing::Level;

use super::line::Line;

/// So many lines of a kind are written in each [`WINDOW`].
const BURST: u64 = 10;
/// After this long the count starts again.
const WINDOW: Duration = Duration::from_secs(10);
/// Kinds watched at once; what goes beyond shares one count.
const KINDS_MAX: usize = 1024;
/// Fields that make lines of one place different kinds. Paths do not: a full disk refuses
/// thousands of files.
const TELLING: [&str; 4] = ["operation", "branch", "errno", "opcode"];

/// What was said lately.
#[derive(Default)]
pub struct Repeats {
    seen: HashMap<u64, Seen>,
}

struct Seen {
    began: Instant,
    count: u64,
    /// The first line that was held back.
    held: Option<Line>,
}

impl Repeats {
    /// Whether the line is to be written now; if not it is counted.
    pub fn admit(&mut self, line: &Line, now: Instant) -> bool {
        // Whoever asks for details wants them all.
        if line.level > Level::INFO {
            return true;
        }
        let mut kind = kind_of(line);
        if self.seen.len() >= KINDS_MAX && !self.seen.contains_key(&kind) {
            kind = 0;
        }
        let seen = self.seen.entry(kind).or_insert(Seen {
            began: now,
            count: 0,
            held: None,
        });
        seen.count += 1;
        if seen.count <= BURST {
            return true;
        }
        seen.held.get_or_insert_with(|| line.clone());
        false
    }

    /// When there will be something to sum up.
    pub fn next_due(&self) -> Option<Instant> {
        self.seen.values().map(|seen| seen.began + WINDOW).min()
    }

    /// Sums up what was held back in windows that are over.
    pub fn due(&mut self, now: Instant) -> Vec<Line> {
        self.take(
            |seen| now.saturating_duration_since(seen.began) >= WINDOW,
            now,
        )
    }

    /// Sums up everything.
    pub fn all(&mut self, now: Instant) -> Vec<Line> {
        self.take(|_| true, now)
    }

    fn take(&mut self, over: impl Fn(&Seen) -> bool, now: Instant) -> Vec<Line> {
        let ended = self.seen.extract_if(|_, seen| over(seen));
        ended
            .filter_map(|(_, seen)| {
                let mut line = seen.held?;
                let more = grouped(seen.count - BURST);
                let time_s = now.saturating_duration_since(seen.began).as_secs().max(1);
                line.message = format!("{}: {more} more in {time_s} s", line.message);
                line.fields.retain(|(name, _)| TELLING.contains(name));
                Some(line)
            })
            .collect()
    }
}

fn kind_of(line: &Line) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.site.hash(&mut hasher);
    for (name, value) in &line.fields {
        if TELLING.contains(name) {
            (name, value).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(branch: &str, path: &str) -> Line {
        Line {
            fields: vec![("branch", branch.to_owned()), ("path", path.to_owned())],
            ..Line::own(Level::WARN, "request failed".to_owned())
        }
    }

    #[test]
    fn repeats_are_counted_and_summed_up() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        let admitted = (0..1244)
            .filter(|index| repeats.admit(&line("/a", &index.to_string()), start))
            .count();
        assert_eq!(admitted, 10);
        assert!(repeats.admit(&line("/b", "x"), start), "another branch");
        assert!(repeats.due(start + WINDOW / 2).is_empty());
        assert_eq!(repeats.next_due(), Some(start + WINDOW));
        let due = repeats.due(start + WINDOW);
        assert_eq!(due.len(), 1);
        assert_eq!(
            due[0].text(),
            "request failed: 1,234 more in 10 s branch=/a"
        );
        assert!(repeats.next_due().is_none());
        assert!(
            repeats.admit(&line("/a", "x"), start + WINDOW),
            "a new window"
        );
    }

    #[test]
    fn details_are_never_held_back_and_memory_is_bounded() {
        let mut repeats = Repeats::default();
        let now = Instant::now();
        let detail = Line::own(Level::DEBUG, "detail".to_owned());
        assert!((0..100).all(|_| repeats.admit(&detail, now)));
        for index in 0..10_000 {
            repeats.admit(&line(&index.to_string(), ""), now);
        }
        assert!(repeats.seen.len() <= KINDS_MAX + 1);
        assert_eq!(repeats.all(now).len(), 1, "the shared count");
    }

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1234, "1,234"),
            (1_000_000, "1,000,000"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
