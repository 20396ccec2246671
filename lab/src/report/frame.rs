//! What all charts have: a figure with a caption, lines and words at places, an axis below rows.

use super::markup::Markup;
use super::scale::Scale;
use super::unit;

/// Of every chart: what a phone shows without scrolling. Wide pages put several beside each other.
pub const WIDTH: f64 = 440.0;
/// Colours in the style sheet.
pub const COLOURS: usize = 8;
/// Room left and right of an axis, so that numbers at its ends are whole.
const SIDE: f64 = 16.0;
const TOP: f64 = 6.0;
const FOOT: f64 = 40.0;
/// Of the words above a bar.
const WORDS: f64 = 16.0;
/// A letter is about so wide.
const LETTER: f64 = 6.4;

/// A figure of this height; `draw` fills it.
pub fn figure(out: &mut Markup, caption: &str, height: f64, draw: impl FnOnce(&mut Markup)) {
    out.open("figure", &[]);
    out.leaf("figcaption", &[], caption);
    out.open(
        "svg",
        &[
            ("xmlns", "http://www.w3.org/2000/svg"),
            ("viewBox", &format!("0 0 {WIDTH} {height}")),
            ("role", "img"),
            ("aria-label", caption),
        ],
    );
    draw(out);
    out.close("svg");
    out.close("figure");
}

/// A straight line from (x, y) to (x, y).
pub fn line(out: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(at);
    out.empty(
        "line",
        &[
            ("x1", &x1),
            ("y1", &y1),
            ("x2", &x2),
            ("y2", &y2),
            ("class", class),
        ],
    );
}

/// Words that begin at, end at or surround a place (`start`, `end`, `middle`).
pub fn words(out: &mut Markup, class: &str, (x, y): (f64, f64), anchor: &str, words: &str) {
    let (x, y) = (at(x), at(y));
    let place = [
        ("x", x.as_str()),
        ("y", y.as_str()),
        ("text-anchor", anchor),
        ("class", class),
    ];
    out.leaf("text", &place, words);
}

/// A point.
pub fn dot(out: &mut Markup, class: &str, (x, y): (f64, f64), radius: &str) {
    let (x, y) = (at(x), at(y));
    out.empty(
        "circle",
        &[("cx", &x), ("cy", &y), ("r", radius), ("class", class)],
    );
}

/// A filled rectangle.
pub fn block(out: &mut Markup, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
    let [x, y, width, height] = [x, y, width, height].map(at);
    out.empty(
        "rect",
        &[
            ("x", &x),
            ("y", &y),
            ("width", &width),
            ("height", &height),
            ("class", class),
        ],
    );
}

/// A coordinate.
pub fn at(value: f64) -> String {
    format!("{value:.1}")
}

/// A name in the room for so many letters. Names differ at their ends as often as at their beginnings:
/// what is left out is in the middle.
pub fn shorten(name: &str, room: usize) -> String {
    let end = room / 2;
    let length = name.chars().count();
    if length <= room {
        return name.to_owned();
    }
    let begin: String = name.chars().take(room - end - 1).collect();
    let end: String = name.chars().skip(length - end).collect();
    format!("{begin}…{end}")
}

/// A subject's name in this room, in full where the pointer rests on it.
pub fn name(out: &mut Markup, (x, y): (f64, f64), width: f64, name: &str) {
    let shown = shorten(name, (width / LETTER).max(8.0) as usize);
    if shown == name {
        return words(out, "", (x, y), "start", name);
    }
    out.open("g", &[]);
    out.leaf("title", &[], name);
    words(out, "", (x, y), "start", &shown);
    out.close("g");
}

/// Rows of a bar below its name and figures, and an axis below all.
pub struct Rows {
    /// The axis, in shown units.
    pub scale: Scale,
    /// How many.
    pub count: usize,
    /// Of a bar.
    pub height: f64,
}

impl Rows {
    /// Of the whole chart.
    pub fn chart_height(&self) -> f64 {
        self.bottom() + FOOT
    }

    fn bottom(&self) -> f64 {
        TOP + self.row() * self.count as f64
    }

    fn row(&self) -> f64 {
        WORDS + self.height + 8.0
    }

    /// Where a value is.
    pub fn x(&self, value: f64) -> f64 {
        SIDE + self.scale.place(value) * (WIDTH - 2.0 * SIDE)
    }

    /// The middle of a row's bar.
    pub fn y(&self, row: usize) -> f64 {
        TOP + self.row() * row as f64 + WORDS + self.height / 2.0
    }

    /// Marks, numbers, and what they count.
    pub fn axis(&self, out: &mut Markup, unit: &str) {
        let bottom = self.bottom();
        for mark in self.scale.marks() {
            let x = self.x(mark);
            line(out, "grid", (x, TOP), (x, bottom));
            words(out, "soft", (x, bottom + 16.0), "middle", &unit::mark(mark));
        }
        words(out, "soft", (SIDE, bottom + 34.0), "start", unit);
    }

    /// The row's name and figures.
    pub fn label(&self, out: &mut Markup, row: usize, subject: &str, figures: &str) {
        let y = self.y(row) - self.height / 2.0 - 4.0;
        let right = WIDTH - SIDE;
        let taken = figures.chars().count() as f64 * LETTER + 12.0;
        name(out, (SIDE, y), right - SIDE - taken, subject);
        words(out, "", (right, y), "end", figures);
    }

    /// A bar between two values.
    pub fn bar(&self, out: &mut Markup, row: usize, colour: usize, from: f64, to: f64) {
        let (start, end) = (self.x(from.min(to)), self.x(from.max(to)));
        let class = format!("f{}", colour % COLOURS);
        let top = self.y(row) - self.height / 2.0;
        block(
            out,
            &class,
            (start, top),
            ((end - start).max(0.5), self.height),
        );
    }

    /// What is saved: an outline with an arrow's head at its end, unlike any bar.
    pub fn gain(&self, out: &mut Markup, row: usize, from: f64, to: f64) {
        let (start, end, y) = (self.x(from), self.x(to), self.y(row));
        let left = start.min(end);
        let size = ((start - end).abs().max(0.5), self.height);
        block(out, "gain", (left, y - self.height / 2.0), size);
        for side in [-4.0, 4.0] {
            line(out, "whisker", (end, y), ((end + 6.0).min(WIDTH), y + side));
        }
    }

    /// An interval.
    pub fn whisker(&self, out: &mut Markup, row: usize, low: f64, high: f64) {
        let (low, high, y) = (self.x(low), self.x(high), self.y(row));
        line(out, "whisker", (low, y), (high, y));
        for end in [low, high] {
            line(out, "whisker", (end, y - 4.0), (end, y + 4.0));
        }
    }
}
