//! What all charts have: a figure with a caption, lines and words at places, an axis below rows.

use super::markup::Markup;
use super::scale::Scale;
use super::unit;

/// Of every chart.
pub const WIDTH: f64 = 980.0;
/// Colours in the style sheet.
pub const COLOURS: usize = 8;
const NAMES: f64 = 330.0;
const TOP: f64 = 10.0;
const FOOT: f64 = 42.0;

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

/// A name that fits beside a chart. Names differ at their ends as often as at their beginnings:
/// what is left out is in the middle.
pub fn shorten(name: &str) -> String {
    const ROOM: usize = 46;
    const END: usize = 20;
    let length = name.chars().count();
    if length <= ROOM {
        return name.to_owned();
    }
    let begin: String = name.chars().take(ROOM - END - 1).collect();
    let end: String = name.chars().skip(length - END).collect();
    format!("{begin}…{end}")
}

/// A subject's name, in full where the pointer rests on it.
pub fn name(out: &mut Markup, (x, y): (f64, f64), anchor: &str, name: &str) {
    let shown = shorten(name);
    if shown == name {
        return words(out, "", (x, y), anchor, name);
    }
    out.open("g", &[]);
    out.leaf("title", &[], name);
    words(out, "", (x, y), anchor, &shown);
    out.close("g");
}

/// Rows with names on the left, room for figures on the right, and an axis below.
pub struct Rows {
    /// The axis, in shown units.
    pub scale: Scale,
    /// How many.
    pub count: usize,
    /// Of one.
    pub height: f64,
    /// Room on the right.
    pub right: f64,
}

impl Rows {
    /// Of the whole chart.
    pub fn chart_height(&self) -> f64 {
        self.bottom() + FOOT
    }

    fn bottom(&self) -> f64 {
        TOP + self.height * self.count as f64
    }

    /// Where a value is.
    pub fn x(&self, value: f64) -> f64 {
        NAMES + self.scale.place(value) * (WIDTH - NAMES - self.right)
    }

    /// The middle of a row.
    pub fn y(&self, row: usize) -> f64 {
        TOP + self.height * (row as f64 + 0.5)
    }

    /// Marks, numbers, and what they count.
    pub fn axis(&self, out: &mut Markup, unit: &str) {
        let bottom = self.bottom();
        for mark in self.scale.marks() {
            let x = self.x(mark);
            line(out, "grid", (x, TOP), (x, bottom));
            words(out, "soft", (x, bottom + 16.0), "middle", &unit::mark(mark));
        }
        words(out, "soft", (NAMES, bottom + 34.0), "start", unit);
    }

    /// The row's name and figures.
    pub fn label(&self, out: &mut Markup, row: usize, subject: &str, figures: &str) {
        let y = self.y(row) + 4.0;
        name(out, (NAMES - 8.0, y), "end", subject);
        let x = WIDTH - self.right + 8.0;
        words(out, "", (x, y), "start", figures);
    }

    /// A bar between two values.
    pub fn bar(&self, out: &mut Markup, row: usize, colour: usize, from: f64, to: f64) {
        let (start, end) = (self.x(from.min(to)), self.x(from.max(to)));
        let class = format!("f{}", colour % COLOURS);
        let height = self.height - 10.0;
        let top = self.y(row) - height / 2.0;
        block(out, &class, (start, top), ((end - start).max(0.5), height));
    }

    /// What is saved: an outline with an arrow's head at its end, unlike any bar.
    pub fn gain(&self, out: &mut Markup, row: usize, from: f64, to: f64) {
        let (start, end, y) = (self.x(from), self.x(to), self.y(row));
        let height = self.height - 10.0;
        let left = start.min(end);
        let size = ((start - end).abs().max(0.5), height);
        block(out, "gain", (left, y - height / 2.0), size);
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
