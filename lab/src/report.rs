//! Results as one HTML page that needs nothing else: tables, charts drawn as SVG, light and dark as
//! the reader's system is set.

mod bars;
mod curves;
mod facts;
mod frame;
mod markup;
mod scale;
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
    if sources.len() > 1 {
        contents(&mut out, sources);
    }
    for (number, source) in sources.iter().enumerate() {
        out.open("section", &[("id", &format!("result{number}"))]);
        section(&mut out, source);
        out.close("section");
    }
    out.close("body");
    out.close("html");
    format!("<!DOCTYPE html>\n{}", out.finish())
}

fn contents(out: &mut Markup, sources: &[Source<'_>]) {
    out.open("ul", &[]);
    for (number, source) in sources.iter().enumerate() {
        out.open("li", &[]);
        let name = format!("{} (bench {})", source.name, source.report.kind.name());
        out.leaf("a", &[("href", &format!("#result{number}"))], &name);
        out.close("li");
    }
    out.close("ul");
}

fn section(out: &mut Markup, source: &Source<'_>) {
    let report = source.report;
    out.leaf(
        "h2",
        &[],
        &format!("bench {}, {}", report.kind.name(), source.name),
    );
    facts::machine(out, report);
    facts::warnings(out, report);
    if !report.verdicts.is_empty() {
        out.leaf("h3", &[], "Where the time goes");
        for verdict in &report.verdicts {
            waterfall::chart(out, verdict);
        }
    }
    let curves = curves::block_sizes(report);
    if !curves.is_empty() {
        out.leaf("h3", &[], "By block size");
        curves.iter().for_each(|chart| chart.draw(out));
    }
    out.leaf("h3", &[], "Figures");
    text(
        out,
        "Bars are medians, whiskers 95 % bootstrap intervals (of fewer than five samples: the \
         smallest and the largest), dots single samples.",
    );
    for workload in report.workloads() {
        bars::chart(out, report, workload);
    }
    let latencies = curves::latencies(report);
    if !latencies.is_empty() {
        out.leaf("h3", &[], "Latency");
        latencies.iter().for_each(|chart| chart.draw(out));
    }
    out.leaf("h3", &[], "All figures");
    facts::figures(out, report);
    out.leaf("h3", &[], "How each subject was made");
    facts::subjects(out, report);
}

#[cfg(test)]
mod tests;
