use roxmltree::{Document, ParsingOptions};

use super::*;
use crate::regime::Regime;
use crate::result::{Cache, Kind, Latency, Part, Sample, Series, Subject, Unit, Verdict, Work};
use crate::stats::estimate;

/// A name that would break out of anything that does not escape.
const EVIL: &str = "a\"><script>alert('&')</script>\u{1}";

fn series(subject: &str, workload: &str, unit: Unit, work: Work, values: &[f64]) -> Series {
    let sample = |value: &f64| {
        Some(Sample {
            value: *value,
            latency: (unit == Unit::OperationsPerSecond).then(|| Latency {
                count: 100,
                mean: 1e-3,
                percentiles: vec![(50.0, 1e-3), (99.0, 4e-3), (99.9, 9e-3)],
            }),
            ..Sample::default()
        })
    };
    Series {
        subject: subject.to_owned(),
        workload: workload.to_owned(),
        unit,
        work,
        cache: Cache::Any,
        samples: values.iter().map(sample).collect(),
        unstable: false,
    }
}

fn report() -> Report {
    let mut report = Report::new(Kind::Layers, Regime::Quiet, 1);
    report.warnings.push(format!("a warning about {EVIL}"));
    for name in ["native", EVIL] {
        report.subjects.push(Subject {
            name: name.to_owned(),
            commands: vec![format!("mount {EVIL}")],
            ..Subject::default()
        });
        for (workload, block) in [
            ("write-512", 512),
            ("write 4k", 4096),
            ("write-1m", 1 << 20),
        ] {
            let work = Work {
                operations: 10,
                bytes: 10 * block,
            };
            let times = [0.01, 0.011, 0.012, 0.01, 0.013].map(|it| it * block as f64 / 1e3);
            report
                .series
                .push(series(name, workload, Unit::Seconds, work, &times));
        }
        let rates = [1e5, 1.1e5, 0.9e5];
        let unit = Unit::OperationsPerSecond;
        report
            .series
            .push(series(name, "rand-read", unit, Work::default(), &rates));
        let none = series(name, "never measured", Unit::Seconds, Work::default(), &[]);
        report.series.push(none);
    }
    let part = |layer: &str, values: &[f64]| Part {
        layer: layer.to_owned(),
        seconds: estimate(values).unwrap(),
    };
    report.verdicts.push(Verdict {
        about: "write".to_owned(),
        subject: EVIL.to_owned(),
        layer: Some("disk".to_owned()),
        share: None,
        text: format!("the disk, not {EVIL}"),
        parts: vec![
            part("memory", &[1e-4; 5]),
            part(EVIL, &[-2e-5; 5]),
            part("disk", &[5e-4, 6e-4, 7e-4, 5e-4, 6e-4]),
        ],
        per: "MiB".to_owned(),
        tried: Vec::new(),
    });
    report
}

fn made(reports: &[Report]) -> String {
    let sources: Vec<Source<'_>> = reports
        .iter()
        .map(|report| Source { name: EVIL, report })
        .collect();
    page(&sources)
}

fn parse(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).unwrap()
}

#[test]
fn the_page_is_well_formed_and_nobody_writes_scripts_into_it() {
    let page = made(&[report(), report()]);
    let document = parse(&page);
    let names = document.descendants().filter(roxmltree::Node::is_element);
    for node in names {
        assert_ne!(node.tag_name().name(), "script");
        for attribute in node.attributes() {
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
        }
    }
    assert!(page.contains("&lt;script&gt;"));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = made(&[report()]);
    for node in parse(&page).descendants() {
        for name in ["src", "href"] {
            if let Some(target) = node.attribute(name) {
                assert!(target.starts_with(['#']) || target == "data:,", "{target}");
            }
        }
    }
    for word in ["@import", "url(", "http-equiv"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn every_chart_has_units_and_stays_inside_its_frame() {
    let mut report = report();
    let mut shares = report.verdicts[0].clone();
    shares.per.clear();
    report.verdicts.push(shares);
    let page = made(&[report]);
    let document = parse(&page);
    let charts: Vec<_> = document
        .descendants()
        .filter(|it| it.has_tag_name(("http://www.w3.org/2000/svg", "svg")))
        .collect();
    assert!(page.contains("% of the time (less is better)"));
    // Two waterfalls, curve of the block sizes, four workloads, one latency.
    assert_eq!(charts.len(), 8, "{page}");
    let units = [
        "GB/s", "MB/s", "MiB/s", "KiB/s", "s", "ms", "us", "ns", "op/s", "%",
    ];
    for chart in charts {
        let label = chart.attribute("aria-label").unwrap();
        let mut words = label.split([' ', ',', ':']);
        assert!(words.any(|word| units.contains(&word)), "{label}");
        assert!(label.contains("better"), "{label}");
        let view: Vec<f64> = chart
            .attribute("viewBox")
            .unwrap()
            .split(' ')
            .map(|it| it.parse().unwrap())
            .collect();
        for node in chart.descendants() {
            // Letters of this size are about 6.4 wide; what begins at a place must have room.
            if node.attribute("text-anchor") == Some("start") {
                let x: f64 = node.attribute("x").unwrap().parse().unwrap();
                let letters = node.text().unwrap_or_default().chars().count() as f64;
                assert!(x + 6.4 * letters <= view[2] + 8.0, "{:?}", node.text());
            }
            for (name, most) in [
                ("x", view[2]),
                ("x1", view[2]),
                ("x2", view[2]),
                ("cx", view[2]),
                ("y", view[3]),
                ("y1", view[3]),
                ("y2", view[3]),
                ("cy", view[3]),
            ] {
                if let Some(value) = node.attribute(name) {
                    let value: f64 = value.parse().unwrap();
                    assert!((0.0..=most).contains(&value), "{name}={value} in {label}");
                }
            }
        }
    }
}

#[test]
fn a_bar_is_as_long_as_its_value() {
    let mut report = Report::new(Kind::Matrix, Regime::Quiet, 1);
    for (name, seconds) in [("a", 1.0), ("b", 2.0)] {
        report.subjects.push(Subject {
            name: name.to_owned(),
            ..Subject::default()
        });
        let work = Work {
            operations: 1,
            bytes: 1 << 30,
        };
        let values = [seconds; 5];
        report
            .series
            .push(series(name, "write", Unit::Seconds, work, &values));
    }
    let page = made(&[report]);
    let widths: Vec<f64> = parse(&page)
        .descendants()
        .filter(|it| it.tag_name().name() == "rect")
        .map(|it| it.attribute("width").unwrap().parse().unwrap())
        .collect();
    assert_eq!(widths.len(), 2);
    assert!((widths[0] / widths[1] - 2.0).abs() < 0.01, "{widths:?}");
    assert!(page.contains("1.07 GB/s") && page.contains("537 MB/s") || page.contains("0.54 GB/s"));
}

#[test]
fn the_answer_comes_first_then_the_contents_and_notes_come_after_the_figures() {
    let mut report = report();
    report.verdicts[0].about = crate::layers::judge::ALL_ROWS.to_owned();
    let page = made(&[report]);
    let place = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
    let answer = place("the disk, not ");
    let order = [
        answer,
        place("<nav "),
        place("<h3 id=\"result0-time\""),
        place("<h3 id=\"result0-figures\""),
        place("<h3 id=\"result0-table\""),
        place("<h3 id=\"result0-notes\""),
        place("a warning about"),
        place("<h3 id=\"result0-made\""),
    ];
    assert!(order.is_sorted(), "{order:?}");
    // Every link leads somewhere.
    let document = parse(&page);
    let ids: Vec<&str> = document
        .descendants()
        .filter_map(|it| it.attribute("id"))
        .collect();
    let links = document.descendants().filter_map(|it| it.attribute("href"));
    let inside: Vec<&str> = links.filter_map(|it| it.strip_prefix('#')).collect();
    assert!(inside.len() >= 7, "{inside:?}");
    for link in inside {
        assert!(ids.contains(&link), "{link}");
    }
}

#[test]
fn cells_say_what_they_are_in_and_nothing_is_wider_than_a_phone() {
    let page = made(&[report()]);
    let document = parse(&page);
    for head in document
        .descendants()
        .filter(|it| it.tag_name().name() == "th")
    {
        let scope = head.attribute("scope");
        assert!(matches!(scope, Some("col" | "row")), "{:?}", head.text());
    }
    for cell in document
        .descendants()
        .filter(|it| it.tag_name().name() == "td")
    {
        assert!(cell.attribute("data-label").is_some());
    }
    for chart in document
        .descendants()
        .filter(|it| it.tag_name().name() == "svg")
    {
        assert!(chart.attribute("viewBox").unwrap().starts_with("0 0 440 "));
    }
    assert!(!page.contains("min-width: 46rem"));
    // Style sheets know no escapes: what would need one is not in it.
    let sheet = include_str!("style.css");
    assert!(!sheet.contains(['"', '\'', '<', '>', '&']), "{sheet}");
}

/// A part below zero was drawn as a bar of that length.
#[test]
fn what_saves_time_is_no_bar() {
    let page = made(&[report()]);
    let document = parse(&page);
    let rects = document
        .descendants()
        .filter(|it| it.tag_name().name() == "rect");
    let gains = rects.filter(|it| it.attribute("class") == Some("gain"));
    assert_eq!(gains.count(), 1);
    assert!(page.contains("saves time"));
}

/// One question, two targets: lengths can be compared.
#[test]
fn answers_to_one_question_have_one_scale() {
    let mut report = report();
    let mut slow = report.verdicts[0].clone();
    for part in &mut slow.parts {
        for value in [
            &mut part.seconds.median,
            &mut part.seconds.low,
            &mut part.seconds.high,
        ] {
            *value *= 4.0;
        }
    }
    report.verdicts.push(slow);
    let page = made(&[report]);
    let document = parse(&page);
    let widths: Vec<f64> = document
        .descendants()
        .filter(|it| it.attribute("class") == Some("f0") && it.tag_name().name() == "rect")
        .take(2)
        .map(|it| it.attribute("width").unwrap().parse().unwrap())
        .collect();
    assert!((widths[1] / widths[0] - 4.0).abs() < 0.1, "{widths:?}");
}

#[test]
fn curves_have_intervals() {
    let page = made(&[report()]);
    let document = parse(&page);
    let lines = document
        .descendants()
        .filter(|it| it.attribute("class") == Some("interval"));
    assert!(lines.count() >= 6);
}
