//! Lines: time by block size, latency by percentile; a line for each subject.

use strandfs_options::show_size;

use super::frame::{COLOURS, WIDTH, at, dot, figure, line, name, words};
use super::markup::Markup;
use super::scale::Scale;
use super::unit::{self, Quantity};
use crate::result::{Cache, Kind, Report, Series, Unit};
use crate::stats::{Estimate, estimate};

const LEFT: f64 = 62.0;
const PLOT_RIGHT: f64 = 428.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 220.0;
/// The first line of the key, below the plot.
const KEY: f64 = 276.0;
/// From one of its lines to the next.
const KEY_LINE: f64 = 18.0;
/// Fewer sizes make no curve.
const FEWEST_SIZES: usize = 3;

/// A chart of lines.
pub struct Chart {
    caption: String,
    x_title: &'static str,
    /// Whether the x axis is time rather than something of very different sizes.
    is_linear: bool,
    /// Values on the x axis, with what is written there.
    marks: Vec<(f64, String)>,
    lines: Vec<Line>,
}

struct Line {
    name: String,
    /// The subject's place.
    colour: usize,
    /// x, and seconds with their interval.
    points: Vec<(f64, Estimate)>,
}

/// Time of one call by block size, for workloads that differ in nothing else.
pub fn block_sizes(report: &Report) -> Vec<Chart> {
    let mut groups: Vec<(String, Cache)> = Vec::new();
    for series in &report.series {
        let group = (action(&series.workload), series.cache);
        if block_of(series).is_some() && !groups.contains(&group) {
            groups.push(group);
        }
    }
    let charts = groups.into_iter().map(|(action, cache)| {
        let mut lines = Vec::new();
        let mut sizes: Vec<u64> = Vec::new();
        for (colour, subject) in report.subjects.iter().enumerate() {
            let mut points: Vec<(f64, Estimate)> = Vec::new();
            let own = report.series.iter().filter(|it| it.subject == subject.name);
            for series in
                own.filter(|it| (self::action(&it.workload), it.cache) == (action.clone(), cache))
            {
                let times = Quantity::Time.values(series);
                if let (Some(block), Some(time)) = (block_of(series), estimate(&times)) {
                    points.push((block as f64, time));
                    sizes.push(block);
                }
            }
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            points.dedup_by(|one, other| one.0 == other.0);
            if points.len() >= FEWEST_SIZES {
                let name = subject.name.clone();
                lines.push(Line {
                    name,
                    colour,
                    points,
                });
            }
        }
        sizes.sort_unstable();
        sizes.dedup();
        Chart {
            caption: format!(
                "{action}: time for one call by block size (medians with intervals; less is better)"
            ),
            x_title: "block size",
            is_linear: false,
            marks: sizes
                .into_iter()
                .map(|it| (it as f64, show_size(it)))
                .collect(),
            lines,
        }
    });
    charts.filter(|it| !it.lines.is_empty()).collect()
}

/// Latency by percentile, a chart for each workload that has any.
pub fn latencies(report: &Report) -> Vec<Chart> {
    let charts = report.workloads().into_iter().map(|workload| {
        let mut marks: Vec<(f64, String)> = Vec::new();
        let mut lines = Vec::new();
        for (colour, subject) in report.subjects.iter().enumerate() {
            let Some(series) = report.find(&subject.name, workload) else {
                continue;
            };
            let points = percentiles(series);
            for (percentile, _) in &points {
                if !marks.iter().any(|it| it.0 == tail(*percentile)) {
                    let name = match *percentile >= 100.0 {
                        true => "longest".to_owned(),
                        false => format!("{percentile} %"),
                    };
                    marks.push((tail(*percentile), name));
                }
            }
            let points: Vec<(f64, Estimate)> =
                points.iter().map(|it| (tail(it.0), it.1)).collect();
            if points.len() > 1 {
                let name = subject.name.clone();
                lines.push(Line {
                    name,
                    colour,
                    points,
                });
            }
        }
        marks.sort_by(|one, other| one.0.total_cmp(&other.0));
        Chart {
            caption: format!(
                "{workload}: latency of one operation by percentile (medians with intervals; less is better)"
            ),
            x_title: "share of the operations that took at most so long",
            is_linear: false,
            marks,
            lines,
        }
    });
    charts.filter(|it| !it.lines.is_empty()).collect()
}

/// The slowest hundredth by round, where operations were timed in rounds one after the other.
pub fn over_time(report: &Report) -> Vec<Chart> {
    if report.kind != Kind::Latency {
        return Vec::new();
    }
    let of = |percentile: f64, words: &str| {
        let mut lines = Vec::new();
        for (colour, subject) in report.subjects.iter().enumerate() {
            let own = report.series.iter().find(|it| it.subject == subject.name);
            let samples = own.map_or(&[][..], |it| &it.samples);
            let point = |(round, sample): (usize, &Option<crate::result::Sample>)| {
                let latency = sample.as_ref()?.latency.as_ref()?;
                let found = latency.percentiles.iter().find(|it| it.0 == percentile)?;
                Some(((round + 1) as f64, estimate(&[found.1])?))
            };
            let points: Vec<_> = samples.iter().enumerate().filter_map(point).collect();
            if points.len() > 1 {
                lines.push(Line {
                    name: subject.name.clone(),
                    colour,
                    points,
                });
            }
        }
        Chart {
            caption: format!("{words} by round (less is better)"),
            x_title: "round",
            is_linear: true,
            marks: (1..=report.repetitions)
                .map(|it| (it as f64, it.to_string()))
                .collect(),
            lines,
        }
    };
    let charts = [
        of(50.0, "what half of the operations took at most"),
        of(99.0, "what 99 % of the operations took at most"),
        of(100.0, "the slowest operation"),
    ];
    charts
        .into_iter()
        .filter(|it| !it.lines.is_empty())
        .collect()
}

/// Each percentile's median over the samples, rising.
fn percentiles(series: &Series) -> Vec<(f64, Estimate)> {
    let known: Vec<_> = series
        .samples
        .iter()
        .flatten()
        .filter_map(|it| it.latency.as_ref())
        .collect();
    let Some(first) = known.first() else {
        return Vec::new();
    };
    let of = |percentile: f64| {
        let each = known.iter().filter_map(|it| {
            let found = it.percentiles.iter().find(|it| it.0 == percentile);
            found.map(|it| it.1)
        });
        estimate(&each.collect::<Vec<_>>())
    };
    let mut points: Vec<(f64, Estimate)> = first
        .percentiles
        .iter()
        .filter_map(|(percentile, _)| Some((*percentile, of(*percentile)?)))
        .collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

/// 99 % and 99.9 % as far apart as 90 % and 99 %.
fn tail(percentile: f64) -> f64 {
    1.0 / (1.0 - (percentile / 100.0).min(0.999_999))
}

/// What a workload does, without its block size: `write` of `write-512` and `write 4k`.
fn action(workload: &str) -> String {
    let has_digit = |word: &&str| word.chars().any(|it| it.is_ascii_digit());
    let words = workload.split([' ', '-']).take_while(|it| !has_digit(it));
    words.collect::<Vec<_>>().join(" ")
}

fn block_of(series: &Series) -> Option<u64> {
    let work = series.work;
    if series.unit != Unit::Seconds || work.bytes == 0 {
        return None;
    }
    work.bytes.checked_div(work.operations)
}

impl Chart {
    /// Draws it.
    pub fn draw(&self, out: &mut Markup) {
        let times = || {
            let points = self.lines.iter().flat_map(|it| &it.points);
            points.flat_map(|it| [it.1.low, it.1.median, it.1.high])
        };
        let unit = Quantity::Time.shown(Kind::Layers, times().fold(0.0, f64::max) / 10.0);
        let y_scale = Scale::log(10.0, times().map(|it| it * unit.scale));
        let ends = || self.marks.iter().map(|it| it.0);
        let (least, most) = (
            ends().fold(f64::INFINITY, f64::min),
            ends().fold(0.0, f64::max),
        );
        let x_scale = match self.is_linear {
            true => Scale::Linear { least, most },
            false => Scale::Log { least, most },
        };
        let x = |value: f64| LEFT + 10.0 + x_scale.place(value) * (PLOT_RIGHT - LEFT - 20.0);
        let y = |seconds: f64| BOTTOM - y_scale.place(seconds * unit.scale) * (BOTTOM - TOP);
        let caption = format!("{}, {}", self.caption, unit.name);
        let height = KEY + KEY_LINE * self.lines.len() as f64;
        figure(out, &caption, height, |out| {
            for mark in y_scale.marks() {
                let height = y(mark / unit.scale);
                line(out, "grid", (LEFT, height), (PLOT_RIGHT, height));
                let said = format!("{} {}", unit::mark(mark), unit.name);
                words(out, "soft", (LEFT - 6.0, height + 4.0), "end", &said);
            }
            let mut last = f64::NEG_INFINITY;
            for (value, said) in &self.marks {
                let place = x(*value);
                line(out, "grid", (place, TOP), (place, BOTTOM));
                // Written only where there is room.
                if place - last > 48.0 {
                    words(out, "soft", (place, BOTTOM + 18.0), "middle", said);
                    last = place;
                }
            }
            words(out, "soft", (LEFT, BOTTOM + 40.0), "start", self.x_title);
            for (number, one) in self.lines.iter().enumerate() {
                for (value, it) in &one.points {
                    let place = x(*value);
                    line(out, "interval", (place, y(it.low)), (place, y(it.high)));
                }
                let points: Vec<(f64, f64)> = one
                    .points
                    .iter()
                    .map(|it| (x(it.0), y(it.1.median)))
                    .collect();
                one.draw(out, number, &points);
            }
        });
    }
}

impl Line {
    fn draw(&self, out: &mut Markup, number: usize, points: &[(f64, f64)]) {
        let path: Vec<String> = points
            .iter()
            .map(|it| format!("{},{}", at(it.0), at(it.1)))
            .collect();
        let class = format!("curve {}", self.class());
        out.empty(
            "polyline",
            &[("points", &path.join(" ")), ("class", &class)],
        );
        let fill = format!("f{}", self.colour % COLOURS);
        for point in points {
            dot(out, &fill, *point, "3");
        }
        let height = KEY + KEY_LINE * number as f64;
        let (start, middle) = (16.0, height - 4.0);
        line(out, &class, (start, middle), (start + 24.0, middle));
        dot(out, &fill, (start + 12.0, middle), "3");
        name(
            out,
            (start + 32.0, height),
            WIDTH - start - 48.0,
            &self.name,
        );
    }

    /// More lines than there are colours differ by their dashes.
    fn class(&self) -> String {
        let dashes = ["", " dashed", " dotted"];
        let round = (self.colour / COLOURS) % dashes.len();
        let dash = dashes.get(round).copied().unwrap_or_default();
        format!("s{}{dash}", self.colour % COLOURS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_of_one_action_share_a_chart() {
        for (workload, expected) in [
            ("write-512", "write"),
            ("write 64k", "write"),
            ("read-1m-cached", "read"),
            ("random-read-4k", "random read"),
            ("create", "create"),
        ] {
            assert_eq!(action(workload), expected);
        }
        assert_eq!(show_size(512), "512 B");
        assert_eq!(show_size(4 << 20), "4 MiB");
        assert!((tail(99.0) - 100.0).abs() < 1e-6);
    }
}
