//! What a person who waits sees: a bar with the time left, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};
use strandfs_lab::progress::Step;

/// While it is known how long a run will be.
const PLANNED: &str =
    "{elapsed_precise} {wide_bar:.cyan/blue} {percent} %, about {eta} left: {msg}";
/// While it is not: no bar, and no time left.
const UNPLANNED: &str = "{elapsed_precise} {msg}";

/// Gone when dropped, so that results start on a clean line.
pub struct Bar(ProgressBar);

impl Bar {
    /// Shows nothing until the first step, and nothing at all where standard error is no terminal.
    pub fn new() -> Self {
        Self(ProgressBar::no_length())
    }

    /// Shows a step.
    pub fn show(&self, step: &Step<'_>) {
        let is_planned = step.total > 0;
        // Only a mistake in the template is an error; the default style then shows the same less
        // neatly.
        let template = if is_planned { PLANNED } else { UNPLANNED };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        self.0.set_message(step.what.to_owned());
        if is_planned {
            self.0.set_length(step.total as u64);
            self.0.set_position(step.done as u64);
        }
        self.0.tick();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
