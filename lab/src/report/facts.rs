//! What was measured on, how sure the figures are, and the figures in full.

use super::markup::{Markup, text};
use super::unit::{Quantity, number};
use crate::cpu::Cost;
use crate::expense;
use crate::result::Report;
use crate::spread;
use crate::stats::{estimate, median_absolute_deviation, variation};

/// Columns of the figures.
const HEADING: [&str; 12] = [
    "measurement",
    "median",
    "95 % from",
    "to",
    "MAD",
    "CoV",
    "samples",
    "against",
    "speed",
    "CPU, server",
    "CPU, machine",
    "path",
];

/// The machine and the command.
pub fn machine(out: &mut Markup, report: &Report) {
    let it = &report.environment;
    let mut words = format!(
        "Linux {}, {} CPUs ({}), {:.1} GiB of memory, load {:.1} before the run; {}; {} \
         repetitions",
        it.kernel,
        it.cpus,
        it.cpu_model,
        it.memory_bytes as f64 / (1_u64 << 30) as f64,
        it.load_before,
        report.regime.describe(it, &report.noise),
        report.repetitions
    );
    if it.virtual_machine {
        words.push_str("; a virtual machine");
    }
    if report.interrupted {
        words.push_str("; interrupted");
    }
    text(out, &words);
    out.leaf("p", &[("class", "soft")], &report.command.join(" "));
    let settings: Vec<String> = report
        .settings
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    if !settings.is_empty() {
        out.leaf("p", &[("class", "soft")], &settings.join(", "));
    }
}

/// What the reader has to know before the figures.
pub fn warnings(out: &mut Markup, report: &Report) {
    if report.warnings.is_empty() {
        return;
    }
    out.open("ul", &[("class", "warnings")]);
    for warning in &report.warnings {
        out.leaf("li", &[], warning);
    }
    out.close("ul");
}

/// Every series with its statistics.
pub fn figures(out: &mut Markup, report: &Report) {
    out.open("div", &[("class", "wide")]);
    out.open("table", &[("class", "cards")]);
    head(out, &HEADING);
    out.open("tbody", &[]);
    for series in &report.series {
        let quantity = Quantity::of(series);
        let values = quantity.values(series);
        let Some(found) = estimate(&values) else {
            continue;
        };
        let unit = quantity.shown(report.kind, found.median);
        let show = |value: f64| format!("{} {}", number(value * unit.scale), unit.name);
        let mark = if series.unstable { "~" } else { "" };
        let base = report.base_of(&series.subject);
        let ratio = base
            .and_then(|base| report.find(base, &series.workload))
            .and_then(|base| series.speed(base));
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let cpu = expense::of(series);
        let of_cpu = |pick: fn(&Cost) -> Option<f64>| {
            let (per, cost) = cpu.as_ref()?;
            Some(expense::show(*per, pick(cost)?))
        };
        row(
            out,
            &[
                format!("{} on {}", series.workload, series.subject),
                format!("{mark}{}", show(found.median)),
                show(found.low),
                show(found.high),
                optional(median_absolute_deviation(&values).map(show)),
                optional(variation(&values).map(|it| format!("{:.1} %", it * 100.0))),
                found.samples.to_string(),
                optional(base.map(str::to_owned)),
                optional(ratio.map(|it| spread::describe_ratio(&it))),
                optional(of_cpu(|it| Some(it.server?.median))),
                optional(of_cpu(|it| it.machine)),
                optional(expense::path(report, series)),
            ],
        );
    }
    out.close("tbody");
    out.close("table");
    out.close("div");
}

/// Commands, versions, and what holds the bytes.
pub fn subjects(out: &mut Markup, report: &Report) {
    out.open("div", &[("class", "wide")]);
    out.open("table", &[("class", "cards")]);
    head(out, &["subject", "made by", "with", "kept on"]);
    out.open("tbody", &[]);
    for subject in &report.subjects {
        let tools: Vec<String> = subject
            .tools
            .iter()
            .map(|(name, version)| format!("{name}: {version}"))
            .collect();
        let storage = subject.storage.as_ref();
        let kept = storage.map(|it| format!("{}; {}", it.describe(), it.mount_options));
        out.open("tr", &[]);
        out.leaf("th", &[("scope", "row")], &subject.name);
        for (title, words) in [
            ("made by", subject.commands.join("; ")),
            ("with", tools.join("; ")),
            ("kept on", kept.unwrap_or_default()),
        ] {
            out.leaf("td", &[("class", "words"), ("data-label", title)], &words);
        }
        out.close("tr");
    }
    out.close("tbody");
    out.close("table");
    out.close("div");
}

/// The titles of columns.
fn head(out: &mut Markup, titles: &[&str]) {
    out.open("thead", &[]);
    out.open("tr", &[]);
    for title in titles {
        out.leaf("th", &[("scope", "col")], title);
    }
    out.close("tr");
    out.close("thead");
}

/// A row whose first cell names it. On a narrow page each cell is a line with its column's title.
fn row(out: &mut Markup, cells: &[String]) {
    out.open("tr", &[]);
    for (title, cell) in HEADING.iter().zip(cells) {
        match *title == HEADING[0] {
            true => out.leaf("th", &[("scope", "row")], cell),
            false => out.leaf("td", &[("data-label", title)], cell),
        }
    }
    out.close("tr");
}
