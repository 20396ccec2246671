//! The options of strandfs: one table, and everything that is generated from it.
//!
//! [`TABLE`] says for every option its names, values, default, help and how it reads from and
//! writes to [`Settings`]. The command line, `-o`, run-time control and documentation all come
//! from it; there is no second list. [`Settings`] holds the typed values.
//!
//! ```
//! use strandfs_options::Settings;
//!
//! let mut settings = Settings::default();
//! let notices = settings.parse_mount_options("category.create=mfs,cache.attr=5m,use_ino")?;
//! assert_eq!(settings.caching.attr, Some(std::time::Duration::from_secs(300)));
//! assert_eq!(settings.get("cache.attr").as_deref(), Some("5m"));
//! assert_eq!(notices.len(), 1);
//! # Ok::<(), strandfs_options::OptionError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod branch;
pub mod config;
pub mod duration;
mod error;
pub mod facts;
pub mod fstab;
mod help;
pub mod import;
pub mod layers;
pub mod listen;
pub mod markdown;
mod mount_options;
mod origin;
mod policy;
pub mod readdir;
mod settings;
pub mod size;
pub mod table;
mod wire;
pub mod words;

pub use branch::{BranchError, BranchMode, BranchSpec};
pub use config::{ConfigError, ConfigErrors, ConfigFile};
pub use duration::parse_duration;
pub use error::{Effect, Notice, OptionError};
pub use help::{help_full, help_text};
pub use layers::{Layers, Loaded};
pub use listen::Listen;
pub use mount_options::mount_items;
pub use origin::{Origin, Origins};
pub use policy::{Policy, UnknownPolicy};
pub use readdir::ReaddirRule;
pub use settings::{
    AttributeSettings, CachingSettings, Category, Function, HealthSettings, LoggingSettings,
    MountFlags, MountSettings, NotifySettings, Occupied, PassthroughSettings, Policies,
    PoolSettings, PresentationSettings, RelocationSettings, RequestSettings, SecurityContexts,
    Settings, ThreadSettings,
};
pub use size::{MessageSize, MinFreeSpace, parse_size, show_size};
pub use table::{OptionDef, TABLE};
pub use words::{
    CacheFiles, Coherence, CrossMounts, FlushOnClose, FollowSymlinks, InodeCalc, LinkExdev,
    NfsOpenHack, OnMissing, PassthroughIo, PassthroughUnheld, PinThreads, RenameExdev,
    StatfsIgnore, StatfsMode, Subtype, Transport, XattrMode,
};
