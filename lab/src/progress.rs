//! How far a run is, for a person who waits.

/// A step that begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// Steps before it, or milliseconds.
    pub done: usize,
    /// Steps, or milliseconds, of the whole run; 0 where that is not known.
    pub total: usize,
    /// What it does.
    pub what: &'a str,
    /// The subject whose calls it makes; empty where no single one is meant.
    pub subject: &'a str,
}

/// Told of each step. It must not take long: it is called between measurements.
pub type Progress<'a> = dyn FnMut(&Step<'_>) + 'a;
