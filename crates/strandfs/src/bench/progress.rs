//! What a person who waits sees: a bar with the time left, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};
use strandfs_lab::progress::Step;

/// Gone when dropped, so that results start on a clean line.
pub struct Bar(ProgressBar);

impl Bar {
    /// Shows nothing until the first step, and nothing at all where standard error is no terminal.
    pub fn new() -> Self {
        let bar = ProgressBar::no_length();
        let style = ProgressStyle::with_template(
            "{elapsed_precise} {wide_bar:.cyan/blue} {pos}/{len}, {eta} left: {msg}",
        );
        // Only a mistake in the template is an error; the default style then shows the same less
        // neatly.
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Shows a step.
    pub fn show(&self, step: &Step<'_>) {
        self.0.set_length(step.total as u64);
        self.0.set_message(step.what.to_owned());
        self.0.set_position(step.done as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
