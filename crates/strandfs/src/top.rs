//! `strandfs top`: a live picture of a mounted pool.

mod disk;
mod draw;
mod frame;
mod people;
mod sample;
mod screen;
mod units;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::args::top::TopArgs;
use crate::failure::Failure;
use crate::metrics;
use draw::Look;
use frame::{Frame, Sort};
use people::People;

/// Shows a pool until a key ends it, or once.
///
/// # Errors
/// No pool is mounted there, its server does not answer, or there is no terminal.
pub fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let mountpoint = metrics::named(&args.mountpoint)?;
    if args.once {
        return once(&mountpoint, args);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::Refused(
            "top needs a terminal; with --once it prints one picture as text".to_owned(),
        ));
    }
    let look = Look {
        colour: colour(args),
        keys: true,
        ..Look::default()
    };
    screen::run(&mountpoint, args.interval, look).map_err(Failure::system("showing the pool"))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether colour is wanted, see <https://no-color.org>.
fn colour(args: &TopArgs) -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !args.no_color && !forbidden && !dumb
}

/// What happens within one interval, as plain text of any length.
fn once(mountpoint: &Path, args: &TopArgs) -> Result<ExitCode, Failure> {
    let take = || sample::take(mountpoint).map_err(|error| Failure::not_told(mountpoint, &error));
    let before = take()?;
    std::thread::sleep(args.interval);
    let after = take()?;
    let frame = Frame::of(&before, &after, Sort::Name);
    let width = args.width.unwrap_or_else(terminal_width);
    for line in text(&frame, &People::read(), width) {
        println!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The width of the terminal, 80 where there is none.
fn terminal_width() -> u16 {
    let size = ratatui::crossterm::terminal::size().ok();
    size.filter(|_| std::io::stdout().is_terminal())
        .map_or(draw::WIDTH_MIN, |(width, _)| width.max(draw::WIDTH_MIN))
}

/// The picture as lines.
fn text(frame: &Frame, people: &People, width: u16) -> Vec<String> {
    let look = Look::default();
    let area = Rect::new(0, 0, width, draw::height(frame, &look));
    let mut buffer = Buffer::empty(area);
    draw::draw(frame, people, &look, area, &mut buffer);
    lines(&buffer)
}

/// What a buffer shows, without the blanks at the ends of lines.
fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let line = |y: u16| {
        let cells = (area.x..area.right()).filter_map(|x| buffer.cell((x, y)));
        let text: String = cells.map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    (area.y..area.bottom()).map(line).collect()
}
