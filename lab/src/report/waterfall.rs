//! Where the time goes: the layers' parts, each beginning where the one before it ends.

use super::frame::{Rows, figure};
use super::markup::{Markup, text};
use super::scale::Scale;
use super::unit::{Quantity, Shown, number};
use crate::result::Verdict;

const SHARE: Shown = Shown {
    name: "%",
    scale: 100.0,
};

/// The verdict's sentence, and its parts if it has any.
pub fn chart(out: &mut Markup, verdict: &Verdict) {
    let about = format!("{}, {}", verdict.subject, verdict.about);
    text(out, &format!("{about}: {}", verdict.text));
    if verdict.parts.is_empty() {
        return;
    }
    let starts: Vec<f64> = verdict
        .parts
        .iter()
        .scan(0.0, |sum, part| {
            let start = *sum;
            *sum += part.seconds.median;
            Some(start)
        })
        .collect();
    let ends: Vec<f64> = starts
        .iter()
        .zip(&verdict.parts)
        .flat_map(|(start, part)| [start + part.seconds.low, start + part.seconds.high])
        .collect();
    let whole = ends.iter().copied().fold(0.0, f64::max);
    // Over all rows there is no common unit of work: the parts are shares of the time.
    let (unit, axis) = match verdict.per.as_str() {
        "" => (SHARE, "% of the time".to_owned()),
        per => {
            let unit = Quantity::Time.shown(whole);
            (unit, format!("{} for one {per}", unit.name))
        }
    };
    let rows = Rows {
        scale: Scale::linear(ends.iter().map(|it| it * unit.scale)),
        count: verdict.parts.len(),
        height: 26.0,
        right: 190.0,
    };
    let caption = format!("{about}: {axis} (less is better)");
    figure(out, &caption, rows.chart_height(), |out| {
        rows.axis(out, &axis);
        for (row, (start, part)) in starts.iter().zip(&verdict.parts).enumerate() {
            let (start, it) = (start * unit.scale, part.seconds);
            let [median, low, high] = [it.median, it.low, it.high].map(|it| it * unit.scale);
            let shown = [median, low, high].map(number);
            let figures = format!("{} [{} {}] {}", shown[0], shown[1], shown[2], unit.name);
            let name = match median < 0.0 {
                true => format!("{}: saves time", part.layer),
                false => part.layer.clone(),
            };
            rows.label(out, row, &name, &figures);
            // A negative part runs backwards, and is no bar of a cost.
            match median < 0.0 {
                true => rows.gain(out, row, start, start + median),
                false => rows.bar(out, row, row, start, start + median),
            }
            rows.whisker(out, row, start + low, start + high);
        }
    });
}
