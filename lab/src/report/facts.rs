//! What was measured on, how sure the figures are, and the figures in full.

use super::markup::{Markup, text};
use super::unit::{Quantity, number};
use crate::result::Report;
use crate::spread;
use crate::stats::{estimate, median_absolute_deviation, variation};

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
    out.open("table", &[]);
    let heading = [
        "workload",
        "subject",
        "median",
        "95 % from",
        "to",
        "MAD",
        "CoV",
        "samples",
        "against",
        "speed",
    ];
    row(out, "th", heading.map(str::to_owned).as_slice());
    for series in &report.series {
        let quantity = Quantity::of(series);
        let values = quantity.values(series);
        let Some(found) = estimate(&values) else {
            continue;
        };
        let unit = quantity.shown(found.median);
        let show = |value: f64| format!("{} {}", number(value * unit.scale), unit.name);
        let mark = if series.unstable { "~" } else { "" };
        let base = report.base_of(&series.subject);
        let ratio = base
            .and_then(|base| report.find(base, &series.workload))
            .and_then(|base| series.speed(base));
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        row(
            out,
            "td",
            &[
                series.workload.clone(),
                series.subject.clone(),
                format!("{mark}{}", show(found.median)),
                show(found.low),
                show(found.high),
                optional(median_absolute_deviation(&values).map(show)),
                optional(variation(&values).map(|it| format!("{:.1} %", it * 100.0))),
                found.samples.to_string(),
                optional(base.map(str::to_owned)),
                optional(ratio.map(|it| spread::describe_ratio(&it))),
            ],
        );
    }
    out.close("table");
    out.close("div");
}

/// Commands, versions, and what holds the bytes.
pub fn subjects(out: &mut Markup, report: &Report) {
    out.open("div", &[("class", "wide")]);
    out.open("table", &[]);
    let heading = ["subject", "made by", "with", "kept on"];
    out.open("tr", &[]);
    for title in heading {
        out.leaf("th", &[("class", "name")], title);
    }
    out.close("tr");
    for subject in &report.subjects {
        let tools: Vec<String> = subject
            .tools
            .iter()
            .map(|(name, version)| format!("{name}: {version}"))
            .collect();
        let storage = subject.storage.as_ref();
        let kept = storage.map(|it| format!("{}; {}", it.describe(), it.mount_options));
        out.open("tr", &[]);
        out.leaf("td", &[("class", "name")], &subject.name);
        for words in [
            subject.commands.join("; "),
            tools.join("; "),
            kept.unwrap_or_default(),
        ] {
            out.leaf("td", &[("class", "words")], &words);
        }
        out.close("tr");
    }
    out.close("table");
    out.close("div");
}

/// A row whose first two cells are names, and whose last two are words that may be broken.
fn row(out: &mut Markup, kind: &'static str, cells: &[String]) {
    out.open("tr", &[]);
    for (place, cell) in cells.iter().enumerate() {
        let class: &[(&str, &str)] = match place {
            0 | 1 => &[("class", "name")],
            8.. => &[("class", "brief")],
            _ => &[],
        };
        out.leaf(kind, class, cell);
    }
    out.close("tr");
}
