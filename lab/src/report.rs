//! Results as one HTML page that needs nothing else: tables, charts drawn as SVG, light and dark as
//! the reader's system is set.

mod bars;
mod curves;
mod facts;
mod frame;
mod markup;
mod scale;
mod summary;
mod unit;
mod waterfall;

use crate::result::Report;
use markup::{Markup, text};

/// What is shown of one file.
pub struct Source<'a> {
    /// Its name, for the heading.
    pub name: &'a str,
    /// What it holds.
    pub report: &'a Report,
}

const STYLE: &str = include_str!("report/style.css");

/// The page. Well-formed as XML too.
pub fn page(sources: &[Source<'_>]) -> String {
    let mut out = Markup::new();
    let title = match sources {
        [one] => format!("strandfs bench {}: {}", one.report.kind.name(), one.name),
        many => format!("strandfs bench: {} results", many.len()),
    };
    out.open(
        "html",
        &[("lang", "en"), ("xmlns", "http://www.w3.org/1999/xhtml")],
    );
    out.open("head", &[]);
    out.empty("meta", &[("charset", "utf-8")]);
    out.empty(
        "meta",
        &[
            ("name", "viewport"),
            ("content", "width=device-width, initial-scale=1"),
        ],
    );
    // Without this, browsers ask the server of the page, or the disk, for an icon.
    out.empty("link", &[("rel", "icon"), ("href", "data:,")]);
    out.leaf("title", &[], &title);
    out.leaf("style", &[], STYLE);
    out.close("head");
    out.open("body", &[]);
    out.leaf("h1", &[], &title);
    for (number, source) in sources.iter().enumerate() {
        summary(&mut out, number, source, sources.len() > 1);
    }
    contents(&mut out, sources);
    for (number, source) in sources.iter().enumerate() {
        out.open("section", &[("id", &format!("result{number}"))]);
        section(&mut out, number, source);
        out.close("section");
    }
    out.close("body");
    out.close("html");
    format!("<!DOCTYPE html>\n{}", out.finish())
}

/// The answer before everything else.
fn summary(out: &mut Markup, number: usize, source: &Source<'_>, is_named: bool) {
    out.open("div", &[("class", "summary")]);
    if is_named {
        let link = format!("#result{number}");
        out.open("p", &[]);
        let name = format!("{} (bench {})", source.name, source.report.kind.name());
        out.leaf("a", &[("href", &link)], &name);
        out.close("p");
    }
    for sentence in summary::sentences(source.report) {
        text(out, &sentence);
    }
    out.close("div");
}

/// The parts of a result's section: what its anchor ends with, and its title.
const PARTS: [(&str, &str); 7] = [
    ("time", "Where the time goes"),
    ("sizes", "By block size"),
    ("figures", "Figures"),
    ("latency", "Latency"),
    ("table", "All figures"),
    ("notes", "Notes"),
    ("made", "How it was measured"),
];

fn contents(out: &mut Markup, sources: &[Source<'_>]) {
    out.open("nav", &[("aria-label", "contents")]);
    out.leaf("h2", &[], "Contents");
    out.open("ul", &[]);
    for (number, source) in sources.iter().enumerate() {
        out.open("li", &[]);
        let name = format!("{} (bench {})", source.name, source.report.kind.name());
        out.leaf("a", &[("href", &format!("#result{number}"))], &name);
        out.open("ul", &[]);
        for (anchor, title) in PARTS.into_iter().filter(|it| has(source.report, it.0)) {
            out.open("li", &[]);
            let link = format!("#result{number}-{anchor}");
            out.leaf("a", &[("href", &link)], title);
            out.close("li");
        }
        out.close("ul");
        out.close("li");
    }
    out.close("ul");
    out.close("nav");
}

/// Whether a result has such a part.
fn has(report: &Report, part: &str) -> bool {
    match part {
        "time" => !report.verdicts.is_empty(),
        "sizes" => !curves::block_sizes(report).is_empty(),
        "latency" => !curves::latencies(report).is_empty(),
        "notes" => !report.warnings.is_empty(),
        _ => true,
    }
}

fn section(out: &mut Markup, number: usize, source: &Source<'_>) {
    let report = source.report;
    let title = format!("bench {}, {}", report.kind.name(), source.name);
    out.leaf("h2", &[], &title);
    for (anchor, title) in PARTS.into_iter().filter(|it| has(report, it.0)) {
        out.leaf("h3", &[("id", &format!("result{number}-{anchor}"))], title);
        part(out, report, anchor);
    }
}

fn part(out: &mut Markup, report: &Report, part: &str) {
    match part {
        "time" => waterfall::charts(out, report),
        "sizes" => all(out, &curves::block_sizes(report)),
        "figures" => {
            text(
                out,
                "Bars are medians, whiskers 95 % bootstrap intervals (of fewer than five samples: the \
                 smallest and the largest), dots single samples.",
            );
            out.open("div", &[("class", "charts")]);
            let counted = report.in_window();
            for workload in counted.workloads() {
                bars::chart(out, &counted, workload);
            }
            out.close("div");
        }
        "latency" => {
            all(out, &curves::latencies(report));
            all(out, &curves::over_time(report));
        }
        "table" => facts::figures(out, &report.in_window()),
        "notes" => facts::warnings(out, report),
        _ => {
            facts::machine(out, report);
            facts::subjects(out, report);
        }
    }
}

fn all(out: &mut Markup, charts: &[curves::Chart]) {
    out.open("div", &[("class", "charts")]);
    charts.iter().for_each(|chart| chart.draw(out));
    out.close("div");
}

#[cfg(test)]
mod tests;
