//! `cache.*`: what the kernel keeps, and for how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::{CacheFiles, Coherence};

/// `cache.*`: what the kernel keeps, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct CachingSettings {
    pub coherence: Coherence,
    pub files: CacheFiles,
    /// At least one; each 1 to 15 bytes.
    pub files_process_names: Vec<String>,
    /// `None`, as in the three below: the server chooses by what it can watch.
    pub attr: Option<Duration>,
    pub entry: Option<Duration>,
    pub negative_entry: Option<Duration>,
    pub readdir: Option<bool>,
    pub symlinks: bool,
    /// `None`: the server chooses.
    pub statfs: Option<Duration>,
    pub writeback: bool,
    pub dropcacheonclose: bool,
}

impl Default for CachingSettings {
    fn default() -> Self {
        Self {
            coherence: Coherence::Auto,
            files: CacheFiles::Off,
            files_process_names: vec!["rtorrent".to_owned(), "qbittorrent-nox".to_owned()],
            attr: None,
            entry: None,
            negative_entry: None,
            readdir: None,
            symlinks: false,
            statfs: None,
            writeback: false,
            dropcacheonclose: false,
        }
    }
}
