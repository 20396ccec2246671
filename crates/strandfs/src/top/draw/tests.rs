use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::*;
use crate::top::frame::{BranchRow, Frame, Row, Traffic};
use crate::top::lines;
use strandfs_pool::metrics::User;

/// Where the captures of the documentation are; `STRANDFS_WRITE_CAPTURES=1` writes them anew.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/top.md");

fn branch(path: &str, health: &str, disk: Option<Traffic>) -> BranchRow {
    BranchRow {
        path: path.to_owned(),
        mode: "RW".to_owned(),
        health: health.to_owned(),
        available_bytes: Some(118 << 30),
        total_bytes: Some(3700 << 30),
        calls: Row {
            per_s: 412.0,
            mean_ns: Some(84_000.0),
            p99_ns: Some(2_097_152.0),
            ..Row::default()
        },
        server: Traffic {
            read: 0.0,
            written: 1_200_000.0,
        },
        disk,
        disk_busy_percent: disk.map(|_| 71.0),
        io_errors: u64::from(health == "slow") * 3,
    }
}

fn operation(name: &str, per_s: f64, mean_ns: f64) -> Row {
    Row {
        name: name.to_owned(),
        per_s,
        mean_ns: Some(mean_ns),
        p99_ns: Some(mean_ns * 9.0),
        errors_per_s: if name == "lookup" { 12.0 } else { 0.0 },
        parts: Some([2.0, 31.0, 67.0]),
    }
}

fn user(pid: u32, uid: u32, command: Option<&str>, open_files: u64) -> User {
    User {
        pid,
        uid: Some(uid),
        command: command.map(str::to_owned),
        open_files,
        open_for_writing: open_files / 2,
    }
}

fn frame() -> Frame {
    let disk = |read: f64, written: f64| {
        Some(Traffic {
            read: read * f64::from(1 << 20),
            written: written * f64::from(1 << 20),
        })
    };
    Frame {
        mountpoint: "/mnt/pool".to_owned(),
        pid: 1234,
        uptime: std::time::Duration::from_secs(700_000),
        total: Row {
            per_s: 1204.0,
            mean_ns: Some(41_000.0),
            p99_ns: Some(1_048_576.0),
            ..Row::default()
        },
        errors_per_s: 12.0,
        threads: (4, 64),
        open_files: 131,
        passthrough_percent: Some(97.0),
        cache_percent: Some(88.0),
        branches: vec![
            branch("/mnt/disk1", "ok", disk(118.0, 0.0)),
            branch("/mnt/disk2", "slow", disk(0.0, 2.5)),
            branch("/srv/nas/exports/films and series", "ok", None),
            BranchRow {
                path: "/mnt/disk4".to_owned(),
                mode: "RO".to_owned(),
                health: "missing".to_owned(),
                ..BranchRow::default()
            },
        ],
        operations: vec![
            operation("lookup", 800.0, 22_000.0),
            operation("open", 240.0, 61_000.0),
            operation("getattr", 120.0, 9_000.0),
            operation("readdirplus", 44.0, 2_100_000.0),
        ],
        users: vec![
            user(4242, 0, Some("jellyfin"), 96),
            user(977, 0, Some("smbd"), 31),
            user(31_337, 1000, Some("rsync"), 3),
            user(555, 1000, None, 1),
        ],
        users_left_out: 2,
        moves: vec!["moving /films/old.mkv ahead of time, 64M/s finished".to_owned()],
    }
}

fn picture(frame: &Frame, look: &Look, width: u16, height: u16) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(frame, &People::default(), look, area, &mut buffer);
    lines(&buffer)
}

fn keys() -> Look {
    Look {
        keys: true,
        ..Look::default()
    }
}

#[test]
fn the_pictures_in_the_documentation_are_what_is_drawn() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut drawn = page.clone();
    for (width, height) in [(80, 24), (200, 24)] {
        let mark = format!("<!-- note: {width} columns -->\n```text\n");
        let begin = drawn.find(&mark).unwrap() + mark.len();
        let end = begin + drawn[begin..].find("```").unwrap();
        let lines = picture(&frame(), &keys(), width, height);
        drawn.replace_range(begin..end, &format!("{}\n", lines.join("\n")));
    }
    if std::env::var_os("STRANDFS_WRITE_CAPTURES").is_some() {
        std::fs::write(PAGE, &drawn).unwrap();
    }
    assert!(drawn == page, "STRANDFS_WRITE_CAPTURES=1 writes them anew");
}

#[test]
fn everything_fits_at_any_size_and_what_does_not_is_counted() {
    let mut many = frame();
    many.branches = (0..300)
        .map(|n| branch(&format!("/mnt/disk{n}"), "ok", None))
        .collect();
    many.users = (0..64).map(|n| user(n, n, Some("x"), 1)).collect();
    for (width, height) in [(80, 24), (200, 50), (80, 10), (20, 5), (1, 1), (300, 2)] {
        for look in [
            keys(),
            Look {
                help: true,
                ..keys()
            },
        ] {
            let lines = picture(&many, &look, width, height);
            assert_eq!(lines.len(), usize::from(height));
        }
    }
    let lines = picture(&many, &keys(), 80, 24);
    let said = lines.join("\n");
    assert!(said.contains("more branches"), "{said}");
    assert!(said.contains("more processes"), "{said}");
    assert!(lines.last().unwrap().contains("q quit"), "{said}");
    let scrolled = Look {
        scrolled: 5000,
        ..keys()
    };
    let said = picture(&many, &scrolled, 80, 24).join("\n");
    assert!(said.contains("/mnt/disk299"), "{said}");
}

#[test]
fn names_cannot_command_the_terminal() {
    let evil = "evil\x1b[31m\nname";
    let mut forged = frame();
    forged.users[2].command = Some(evil.to_owned());
    forged.branches[0].path = evil.to_owned();
    forged.moves = vec![evil.to_owned()];
    for width in [80, 200] {
        let said = picture(&forged, &keys(), width, 24).join("");
        assert!(!said.contains('\x1b') && said.contains("evil"), "{said}");
    }
}

#[test]
fn there_is_no_colour_where_none_is_wanted() {
    let colours = |colour: bool| {
        let area = Rect::new(0, 0, 80, 24);
        let mut buffer = Buffer::empty(area);
        let look = Look { colour, ..keys() };
        draw(&frame(), &People::default(), &look, area, &mut buffer);
        let cells = buffer.content.iter();
        cells
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 0);
}

#[test]
fn trouble_is_said_in_place_of_the_keys() {
    let look = Look {
        trouble: Some("no figures for 7 s: its server does not answer".to_owned()),
        ..keys()
    };
    let lines = picture(&frame(), &look, 80, 24);
    assert!(lines.last().unwrap().starts_with("no figures for 7 s"));
}
