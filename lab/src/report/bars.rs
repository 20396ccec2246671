//! One workload on all subjects: bars from zero, with intervals and the samples themselves.

use super::frame::{Rows, dot, figure};
use super::markup::Markup;
use super::scale::Scale;
use super::unit::{Quantity, number, time_of};
use crate::result::{Report, Series};
use crate::stats::{Estimate, estimate};

struct Bar<'a> {
    name: &'a str,
    colour: usize,
    found: Estimate,
    values: Vec<f64>,
    unstable: bool,
}

/// Draws the chart of a workload; nothing where it has no samples.
pub fn chart(out: &mut Markup, report: &Report, workload: &str) {
    let series: Vec<&Series> = report
        .series
        .iter()
        .filter(|it| it.workload == workload)
        .collect();
    let Some(first) = series.first() else { return };
    let quantity = Quantity::of(first);
    let bars: Vec<Bar<'_>> = series
        .iter()
        .filter(|it| Quantity::of(it) == quantity)
        .filter_map(|it| bar(report, it, quantity))
        .collect();
    let typical = bars.iter().map(|it| it.found.median).fold(0.0, f64::max);
    if bars.is_empty() {
        return;
    }
    let shown = quantity.shown(report.kind, typical);
    let what = match quantity {
        Quantity::Throughput => "throughput",
        Quantity::Rate => "operations",
        Quantity::Time => time_of(first),
    };
    let caption = format!("{workload}: {what}, {} ({})", shown.name, quantity.better());
    let highest = bars
        .iter()
        .flat_map(|it| it.values.iter().copied().chain([it.found.high]))
        .map(|it| it * shown.scale);
    let rows = Rows {
        scale: Scale::linear(highest),
        count: bars.len(),
        height: 12.0,
    };
    figure(out, &caption, rows.chart_height(), |out| {
        rows.axis(out, shown.name);
        for (row, bar) in bars.iter().enumerate() {
            let it = bar.found;
            let mark = if bar.unstable { "~" } else { "" };
            let [median, low, high] =
                [it.median, it.low, it.high].map(|it| number(it * shown.scale));
            let figures = format!("{mark}{median} [{low} {high}] {}", shown.name);
            rows.label(out, row, bar.name, &figures);
            rows.bar(out, row, bar.colour, 0.0, it.median * shown.scale);
            rows.whisker(out, row, it.low * shown.scale, it.high * shown.scale);
            for value in &bar.values {
                let place = (rows.x(value * shown.scale), rows.y(row));
                dot(out, "dot", place, "2");
            }
        }
    });
}

fn bar<'a>(report: &Report, series: &'a Series, quantity: Quantity) -> Option<Bar<'a>> {
    let values = quantity.values(series);
    let subjects = &report.subjects;
    let colour = subjects.iter().position(|it| it.name == series.subject);
    Some(Bar {
        name: &series.subject,
        colour: colour.unwrap_or(0),
        found: estimate(&values)?,
        values,
        unstable: series.unstable,
    })
}
