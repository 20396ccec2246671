//! Where the time goes: the layers' parts, each beginning where the one before it ends. What answers one question,
//! one row of work on several targets or in several ways, has one scale.

use super::frame::{Rows, figure};
use super::markup::{Markup, text};
use super::scale::Scale;
use super::unit::{Quantity, Shown, number};
use crate::result::{Kind, Report, Verdict};

const SHARE: Shown = Shown {
    name: "%",
    scale: 100.0,
};

/// All answers to every question.
pub fn charts(out: &mut Markup, report: &Report) {
    let question = |it: &Verdict| (it.about.clone(), it.per.clone());
    let mut questions: Vec<(String, String)> = Vec::new();
    for verdict in &report.verdicts {
        if !questions.contains(&question(verdict)) {
            questions.push(question(verdict));
        }
    }
    for asked in questions {
        let own = report.verdicts.iter().filter(|it| question(it) == asked);
        let own: Vec<&Verdict> = own.collect();
        out.leaf("h4", &[], &asked.0);
        out.open("div", &[("class", "charts")]);
        let frame = Frame::around(&own);
        for verdict in own {
            out.open("div", &[]);
            text(out, &format!("{}: {}", verdict.subject, verdict.text));
            frame.draw(out, verdict);
            out.close("div");
        }
        out.close("div");
    }
}

/// The scale and the unit of a question.
struct Frame {
    scale: Scale,
    unit: Shown,
    axis: String,
}

impl Frame {
    fn around(verdicts: &[&Verdict]) -> Self {
        let ends: Vec<f64> = verdicts.iter().flat_map(|it| ends(it)).collect();
        let whole = ends.iter().copied().fold(0.0, f64::max);
        // Over all rows there is no common unit of work: the parts are shares of the time.
        let per = verdicts.first().map_or("", |it| it.per.as_str());
        let (unit, axis) = match per {
            "" => (SHARE, "% of the time".to_owned()),
            per => {
                let unit = Quantity::Time.shown(Kind::Layers, whole);
                (unit, format!("{} for one {per}", unit.name))
            }
        };
        Self {
            scale: Scale::linear(ends.iter().map(|it| it * unit.scale)),
            unit,
            axis,
        }
    }

    fn draw(&self, out: &mut Markup, verdict: &Verdict) {
        if verdict.parts.is_empty() {
            return;
        }
        let rows = Rows {
            scale: self.scale,
            count: verdict.parts.len(),
            height: 14.0,
        };
        let unit = self.unit;
        let about = format!("{}, {}", verdict.subject, verdict.about);
        let caption = format!("{about}: {} (less is better)", self.axis);
        figure(out, &caption, rows.chart_height(), |out| {
            rows.axis(out, &self.axis);
            for (row, (start, part)) in starts(verdict).iter().zip(&verdict.parts).enumerate() {
                let (start, it) = (start * unit.scale, part.seconds);
                let [median, low, high] = [it.median, it.low, it.high].map(|it| it * unit.scale);
                let shown = [median, low, high].map(number);
                let figures = format!("{} [{} {}] {}", shown[0], shown[1], shown[2], unit.name);
                // A negative part runs backwards, and is no bar of a cost.
                let name = match (median < 0.0, high < 0.0) {
                    (true, true) => format!("{}: saves time", part.layer),
                    (true, false) => format!("{}: no cost shown", part.layer),
                    _ => part.layer.clone(),
                };
                rows.label(out, row, &name, &figures);
                match median < 0.0 {
                    true => rows.gain(out, row, start, start + median),
                    false => rows.bar(out, row, row, start, start + median),
                }
                rows.whisker(out, row, start + low, start + high);
            }
        });
    }
}

/// Where each part begins.
fn starts(verdict: &Verdict) -> Vec<f64> {
    let parts = verdict.parts.iter();
    parts
        .scan(0.0, |sum, part| {
            let start = *sum;
            *sum += part.seconds.median;
            Some(start)
        })
        .collect()
}

/// Everything that has to be on the axis.
fn ends(verdict: &Verdict) -> Vec<f64> {
    let starts = starts(verdict);
    let places = starts.iter().zip(&verdict.parts);
    places
        .flat_map(|(start, part)| {
            let it = part.seconds;
            [start + it.low, start + it.high, start + it.median]
        })
        .collect()
}
