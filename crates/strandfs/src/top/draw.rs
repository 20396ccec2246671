//! A picture of a pool in a rectangle of characters.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};
use strandfs_pool::metrics::User;

use super::frame::{BranchRow, Frame, Row, Sort, Traffic};
use super::people::People;
use super::units::{age, bytes, count, time, whole};
use crate::logging::one_line;

/// The narrowest picture with every column that matters.
pub const WIDTH_MIN: u16 = 80;
/// From here on there are further columns.
const WIDE: u16 = 120;
/// Rows for operations and users at least.
const LOWER_MIN: u16 = 7;
/// Title, figures, an empty row, the heads of the tables, an empty row, the last row.
const FIXED_ROWS: u16 = 7;

/// How the picture is drawn.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Whether there is colour.
    pub colour: bool,
    /// What was sorted by.
    pub sort: Sort,
    /// No new figures are asked for.
    pub paused: bool,
    /// The keys are explained in place of the tables.
    pub help: bool,
    /// So many branches are above the first that is shown.
    pub scrolled: usize,
    /// What the last row says of trouble, in place of the keys.
    pub trouble: Option<String>,
    /// Whether there are keys at all.
    pub keys: bool,
}

/// The rows that everything needs in this width.
pub fn height(frame: &Frame, look: &Look) -> u16 {
    let lower = frame.operations.len().max(frame.users.len() + 1);
    let rows = frame.branches.len() + lower.max(1) + frame.moves.len();
    let rows = u16::try_from(rows).unwrap_or(u16::MAX);
    let keys = u16::from(look.keys || look.trouble.is_some());
    rows.saturating_add(FIXED_ROWS - 1 + keys)
}

/// Draws it.
pub fn draw(frame: &Frame, people: &People, look: &Look, area: Rect, buffer: &mut Buffer) {
    let ink = Ink(look.colour);
    let last = u16::from(look.keys || look.trouble.is_some());
    let mut page = Page {
        area,
        at: area.y,
        end: area.bottom().saturating_sub(last),
    };
    for line in head(frame, &ink, area.width) {
        page.put(buffer, line);
    }
    if look.help {
        page.put(buffer, Line::default());
        HELP.iter()
            .for_each(|line| page.put(buffer, Line::raw(*line)));
    } else {
        tables(frame, people, look, &ink, &mut page, buffer);
    }
    if last > 0 {
        page.at = area.bottom() - 1;
        page.end = area.bottom();
        page.put(buffer, last_line(look, &ink, area.width));
    }
}

const HELP: [&str; 16] = [
    "  q        quit",
    "  s        sort by rate, latency, space or name",
    "  space    pause, and go on",
    "  up down  scroll the branches",
    "  ?        these lines, and back",
    "",
    "  CALLS/s MEAN P99   calls of the server to the branch, and how long they take",
    "  READ/s WRITE/s     what the branch's disk moves, passthrough included; - where",
    "                     there is no single disk (network, tmpfs, ZFS)",
    "  BUSY               part of the time in which the disk had something to do",
    "  POOL-R/s POOL-W/s  what goes through the server",
    "  OPERATION          requests of the kernel; QUEUE, SERVER, BRANCH: where their",
    "                     time goes, waiting for a thread, in the server, in branches",
    "  FILES              files of the pool that the process opened; W: for writing",
    "  P99                99 of 100 take no longer; the true value is more than half",
    "                     of it",
];

/// Where the next line goes.
struct Page {
    area: Rect,
    at: u16,
    end: u16,
}

impl Page {
    fn left(&self) -> u16 {
        self.end.saturating_sub(self.at)
    }

    fn put(&mut self, buffer: &mut Buffer, line: Line<'_>) {
        if self.at < self.end {
            let row = Rect::new(self.area.x, self.at, self.area.width, 1);
            Paragraph::new(line).render(row, buffer);
            self.at += 1;
        }
    }
}

/// Colours, where they are wanted.
struct Ink(bool);

impl Ink {
    fn of(&self, colour: Color) -> Style {
        match self.0 {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn heading(&self) -> Style {
        self.of(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn health(&self, health: &str) -> Style {
        match health {
            "ok" => self.of(Color::Green),
            "slow" | "read-only" => self.of(Color::Yellow).add_modifier(Modifier::BOLD),
            _ => self.of(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    fn errors(&self, errors: f64) -> Style {
        match errors > 0.0 {
            true => self.of(Color::Yellow),
            false => Style::new(),
        }
    }
}

fn head(frame: &Frame, ink: &Ink, width: u16) -> [Line<'static>; 3] {
    if frame.pid == 0 {
        let asking = Line::raw("the server has not answered yet");
        return [asking, Line::default(), Line::default()];
    }
    let ill = frame.branches.iter();
    let ill = ill.filter(|branch| branch.health != "ok").count();
    let health = match ill {
        0 => Span::styled("all branches ok", ink.health("ok")),
        n => Span::styled(format!("{n} not ok"), ink.health("failed")),
    };
    let place = cut_beginning(
        &one_line(&frame.mountpoint),
        usize::from(width.saturating_sub(WIDTH_MIN)) + 24,
    );
    let percent = |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{part:.0}%"));
    let title = Line::from(vec![
        Span::styled(place, Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  pid {}  up {}  ", frame.pid, age(frame.uptime))),
        health,
        Span::raw(format!(
            "  open files {}  threads {}/{}",
            frame.open_files, frame.threads.0, frame.threads.1
        )),
    ]);
    let figures = Line::raw(format!(
        "{}/s requests  mean {}  p99 {}  errors {}/s  passthrough {}  cached {}",
        count(frame.total.per_s),
        duration(frame.total.mean_ns),
        duration(frame.total.p99_ns),
        count(frame.errors_per_s),
        percent(frame.passthrough_percent),
        percent(frame.cache_percent),
    ));
    [title, figures, Line::default()]
}

fn tables(
    frame: &Frame,
    people: &People,
    look: &Look,
    ink: &Ink,
    page: &mut Page,
    buffer: &mut Buffer,
) {
    let width = page.area.width;
    let moves = u16::try_from(frame.moves.len()).unwrap_or(u16::MAX).min(3);
    // Heads of the tables, and the empty row between them.
    let rows = page.left().saturating_sub(3 + moves);
    let wanted = u16::try_from(frame.branches.len()).unwrap_or(u16::MAX);
    let shown = wanted.min(rows.saturating_sub(LOWER_MIN).max(3)).min(rows);
    let w = path_width(frame, width);
    page.put(buffer, branch_head(w, width, ink));
    let first = look
        .scrolled
        .min(frame.branches.len().saturating_sub(shown.into()));
    for branch in frame.branches.iter().skip(first).take(shown.into()) {
        page.put(buffer, branch_line(branch, w, width, ink));
    }
    page.put(
        buffer,
        more(frame.branches.len() - usize::from(shown), "branches"),
    );
    for text in frame.moves.iter().take(moves.into()) {
        page.put(
            buffer,
            Line::styled(cut_end(&one_line(text), width), ink.of(Color::Yellow)),
        );
    }
    lower(frame, people, ink, page, buffer);
}

/// Operations on the left, users on the right.
fn lower(frame: &Frame, people: &People, ink: &Ink, page: &mut Page, buffer: &mut Buffer) {
    let area = page.area;
    let left = if area.width >= WIDE { 66 } else { 42 };
    let left = left.min(area.width);
    let halves = [
        Rect::new(area.x, page.at, left, page.left()),
        Rect::new(area.x + left, page.at, area.width - left, page.left()),
    ];
    let half = |area: Rect| Page {
        area,
        at: area.y,
        end: area.bottom(),
    };
    let mut operations = half(halves[0]);
    operations.put(buffer, operation_head(area.width, ink));
    for row in &frame.operations {
        operations.put(buffer, operation_line(row, area.width, ink));
    }
    if frame.operations.is_empty() {
        operations.put(buffer, Line::raw("no requests"));
    }
    let mut users = half(halves[1]);
    let w = usize::from(halves[1].width.saturating_sub(28)).clamp(8, 16);
    let (pid, user, command, files) = ("PID", "USER", "COMMAND", "FILES");
    let head = format!("{pid:>7} {user:<8} {command:<w$} {files:>5} {:>4}", "W");
    users.put(buffer, Line::styled(head, ink.heading()));
    let room = usize::from(users.left());
    let all = frame.users.len() + usize::try_from(frame.users_left_out).unwrap_or(usize::MAX);
    let shown = if all > room {
        room.saturating_sub(1)
    } else {
        all
    };
    for user in frame.users.iter().take(shown) {
        users.put(buffer, user_line(user, people, w));
    }
    let shown = shown.min(frame.users.len());
    users.put(buffer, more(all.saturating_sub(shown), "processes"));
}

fn user_line(user: &User, people: &People, w: usize) -> Line<'static> {
    let command = match &user.command {
        Some(command) => one_line(command),
        None => "(ended)".to_owned(),
    };
    Line::raw(format!(
        "{:>7} {:<8} {:<w$} {:>5} {:>4}",
        user.pid,
        cut_end(&people.name(user.uid), 8),
        cut_end(&command, u16::try_from(w).unwrap_or(u16::MAX)),
        whole(user.open_files),
        whole(user.open_for_writing),
    ))
}

/// What did not fit; an empty line if all did.
fn more(number: usize, what: &str) -> Line<'static> {
    match number {
        0 => Line::default(),
        n => Line::raw(format!("  … {n} more {what}")),
    }
}

/// The width of the branches' paths: no more than the longest of them needs.
fn path_width(frame: &Frame, width: u16) -> usize {
    let others = if width >= WIDE { 62 + 36 } else { 62 };
    let room = usize::from(width.saturating_sub(others)).max(8);
    let paths = frame.branches.iter().map(|branch| one_line(&branch.path));
    let longest = paths.map(|path| path.chars().count()).max();
    room.min(longest.unwrap_or(0).max(18))
}

fn branch_head(w: usize, width: u16, ink: &Ink) -> Line<'static> {
    let further = match width >= WIDE {
        true => format!(
            " {:>6} {:>5} {:>8} {:>8} {:>4}",
            "P99", "BUSY", "POOL-R/s", "POOL-W/s", "MODE"
        ),
        false => String::new(),
    };
    let text = format!(
        "{:<w$} {:<9} {:>6} {:>5} {:>7} {:>6} {:>7} {:>7} {:>5}{further}",
        "BRANCH", "HEALTH", "FREE", "USED", "CALLS/s", "MEAN", "READ/s", "WRITE/s", "ERR",
    );
    Line::styled(text, ink.heading())
}

fn branch_line(branch: &BranchRow, w: usize, width: u16, ink: &Ink) -> Line<'static> {
    let path = cut_beginning(&one_line(&branch.path), w);
    let used = match (branch.available_bytes, branch.total_bytes) {
        (Some(free), Some(total)) if total > 0 => {
            format!(
                "{:.0}%",
                total.saturating_sub(free) as f64 / total as f64 * 100.0
            )
        }
        _ => "-".to_owned(),
    };
    let free = branch
        .available_bytes
        .map_or("-".to_owned(), |free| bytes(free as f64));
    let disk = |of: fn(Traffic) -> f64| branch.disk.map_or("-".to_owned(), |it| bytes(of(it)));
    let (read, written) = (disk(|it| it.read), disk(|it| it.written));
    let calls = &branch.calls;
    let mut spans = vec![
        Span::raw(format!("{path:<w$} ")),
        Span::styled(format!("{:<9}", branch.health), ink.health(&branch.health)),
        Span::raw(format!(
            " {free:>6} {used:>5} {:>7} {:>6} {read:>7} {written:>7} ",
            count(calls.per_s),
            duration(calls.mean_ns),
        )),
        Span::styled(
            format!("{:>5}", whole(branch.io_errors)),
            ink.errors(branch.io_errors as f64),
        ),
    ];
    if width >= WIDE {
        let busy = branch
            .disk_busy_percent
            .map_or("-".to_owned(), |busy| format!("{busy:.0}%"));
        spans.push(Span::raw(format!(
            " {:>6} {busy:>5} {:>8} {:>8} {:>4}",
            duration(calls.p99_ns),
            bytes(branch.server.read),
            bytes(branch.server.written),
            branch.mode,
        )));
    }
    Line::from(spans)
}

fn operation_head(width: u16, ink: &Ink) -> Line<'static> {
    let further = match width >= WIDE {
        true => format!(" {:>6} {:>6} {:>6}", "QUEUE", "SERVER", "BRANCH"),
        false => String::new(),
    };
    let text = format!(
        "{:<13} {:>6} {:>6} {:>6} {:>5}{further}",
        "OPERATION", "/s", "MEAN", "P99", "ERR/s"
    );
    Line::styled(text, ink.heading())
}

fn operation_line(row: &Row, width: u16, ink: &Ink) -> Line<'static> {
    let mut spans = vec![
        Span::raw(format!(
            "{:<13} {:>6} {:>6} {:>6} ",
            cut_end(&one_line(&row.name), 13),
            count(row.per_s),
            duration(row.mean_ns),
            duration(row.p99_ns),
        )),
        Span::styled(
            format!("{:>5}", count(row.errors_per_s)),
            ink.errors(row.errors_per_s),
        ),
    ];
    if width >= WIDE {
        let part = |at: usize| match &row.parts {
            Some(parts) => format!("{:.0}%", parts.get(at).copied().unwrap_or(0.0)),
            None => "-".to_owned(),
        };
        spans.push(Span::raw(format!(
            " {:>6} {:>6} {:>6}",
            part(0),
            part(1),
            part(2)
        )));
    }
    Line::from(spans)
}

fn duration(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), time)
}

fn last_line(look: &Look, ink: &Ink, width: u16) -> Line<'static> {
    if let Some(trouble) = &look.trouble {
        let text = cut_end(&one_line(trouble), width);
        return Line::styled(text, ink.health("failed"));
    }
    let paused = if look.paused { "  PAUSED" } else { "" };
    let text = format!(
        "q quit  s sort ({})  space pause  ? help{paused}",
        look.sort.name()
    );
    Line::styled(text, Style::new().add_modifier(Modifier::REVERSED))
}

/// The beginning of a text.
fn cut_end(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// The end of a text, where paths differ.
fn cut_beginning(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let end = text.chars().skip(length - width.saturating_sub(1));
    std::iter::once('…').chain(end).collect()
}

#[cfg(test)]
mod tests;
