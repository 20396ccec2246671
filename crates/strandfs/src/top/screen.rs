//! The terminal: keys in, pictures out. Another thread asks the server, which may not answer: the
//! keys work all the same.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw::{self, Look};
use super::frame::Frame;
use super::people::People;
use super::sample::{self, Sample};

/// How soon a key, a signal or a new figure is seen.
const TICK: Duration = Duration::from_millis(100);

type News = Result<Sample, String>;

/// Shows the pool until a key or a signal ends it. The terminal is as before then, also after a panic.
///
/// # Errors
/// Those of the terminal.
pub fn run(mountpoint: &Path, interval: Duration, look: Look) -> io::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let (ask, asked) = mpsc::channel();
    let (tell, news) = mpsc::channel();
    let place = mountpoint.to_path_buf();
    std::thread::Builder::new()
        .name("strandfs-top".to_owned())
        .spawn(move || look_often(&place, interval, &asked, &tell))?;
    let screen = Screen {
        people: People::read(),
        look,
        samples: None,
        last: None,
        asked_since: Instant::now(),
        ask,
    };
    let mut terminal = ratatui::try_init()?;
    let outcome = screen.serve(&mut terminal, &news, &ended);
    ratatui::try_restore()?;
    outcome
}

/// Takes a sample each `interval`, or when asked to go on; while it waits nothing is asked of the pool.
fn look_often(mountpoint: &Path, interval: Duration, asked: &Receiver<bool>, tell: &Sender<News>) {
    let mut paused = false;
    loop {
        if !paused {
            let sample = sample::take(mountpoint).map_err(|error| error.to_string());
            if tell.send(sample).is_err() {
                return;
            }
        }
        match asked.recv_timeout(interval) {
            Ok(pause) => paused = pause,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Screen {
    people: People,
    look: Look,
    /// The first two are between which figures are shown.
    samples: Option<(Sample, Sample)>,
    /// The latest.
    last: Option<Sample>,
    asked_since: Instant,
    ask: Sender<bool>,
}

impl Screen {
    fn serve(
        mut self,
        terminal: &mut DefaultTerminal,
        news: &Receiver<News>,
        ended: &AtomicBool,
    ) -> io::Result<()> {
        let mut changed = true;
        while !ended.load(Ordering::Relaxed) {
            for sample in news.try_iter() {
                self.note(sample);
                changed = true;
            }
            if changed {
                terminal.draw(|frame| {
                    let area = frame.area();
                    draw::draw(
                        &self.frame(),
                        &self.people,
                        &self.look,
                        area,
                        frame.buffer_mut(),
                    );
                })?;
            }
            changed = false;
            if event::poll(TICK)? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if !self.press(key) {
                            return Ok(());
                        }
                        changed = true;
                    }
                    Event::Resize(..) => changed = true,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn frame(&self) -> Frame {
        match (&self.samples, &self.last) {
            (Some((before, after)), _) => Frame::of(before, after, self.look.sort),
            // Nothing can have happened yet.
            (None, Some(only)) => Frame::of(only, only, self.look.sort),
            (None, None) => Frame::default(),
        }
    }

    fn note(&mut self, news: News) {
        match news {
            Ok(sample) => {
                if let Some(before) = self.last.replace(sample.clone()) {
                    self.samples = Some((before, sample));
                }
                self.look.trouble = None;
                self.asked_since = Instant::now();
            }
            Err(why) => {
                let seconds = self.asked_since.elapsed().as_secs();
                self.look.trouble = Some(format!("no figures for {seconds} s: {why} (q quits)"));
            }
        }
    }

    /// False if it ends here.
    fn press(&mut self, key: KeyEvent) -> bool {
        let look = &mut self.look;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('s') => look.sort = look.sort.next(),
            KeyCode::Char('?' | 'h') => look.help = !look.help,
            KeyCode::Char(' ') => {
                look.paused = !look.paused;
                let _ = self.ask.send(look.paused);
            }
            KeyCode::Down => {
                let branches = self
                    .last
                    .as_ref()
                    .map_or(0, |last| last.metrics.branches.len());
                look.scrolled = (look.scrolled + 1).min(branches);
            }
            KeyCode::Up => look.scrolled = look.scrolled.saturating_sub(1),
            _ => {}
        }
        true
    }
}
