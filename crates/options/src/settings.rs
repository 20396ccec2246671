//! The typed value of every option.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::branch::{self, BranchError, BranchSpec};
use crate::error::{Effect, Notice, OptionError};
use crate::listen::Listen;
use crate::mount_options;
use crate::origin::{self, Origin, Origins};
use crate::policies::Policies;
use crate::policy::Policy;
use crate::readdir::ReaddirRule;
use crate::size::{MessageSize, MinFreeSpace};
use crate::table::{self, Clash, OptionDef, Refused, Status, TABLE};
use crate::words::{
    CacheFiles, Coherence, CrossMounts, FlushOnClose, FollowSymlinks, InodeCalc, LinkExdev,
    NfsOpenHack, OnMissing, PassthroughIo, PassthroughUnheld, PinThreads, RenameExdev,
    StatfsIgnore, StatfsMode, Subtype, Transport, XattrMode, parse_bool,
};

mod mount;
mod notify;

pub use mount::{MountFlags, Occupied, SecurityContexts};
pub use notify::NotifySettings;

/// The value of every option. A field is named like its option, with `.` and `-` as `_`; what it
/// means is in the option's entry in [`TABLE`] (see [`crate::help_full`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // The table documents each option once; a test ties the two together.
pub struct Settings {
    /// In order; paths are unique and real. Empty until `branches` is set.
    pub branches: Vec<BranchSpec>,
    pub branches_mount_timeout: Duration,
    pub branches_mount_timeout_fail: bool,
    pub on_missing: OnMissing,
    pub cross_mounts: CrossMounts,
    /// `None`: branches are told apart by their filesystems alone.
    pub branch_marker: Option<String>,
    /// Zero: only when something is mounted or unmounted.
    pub branch_check_interval: Duration,
    pub branch_slow_after: Duration,
    /// Zero: never.
    pub branch_deadline: Duration,
    /// `None`: the last argument.
    pub mountpoint: Option<String>,
    pub minfreespace: MinFreeSpace,
    /// `None`: made from the branches, see [`Settings::source_name`].
    pub fsname: Option<String>,
    pub subtype: Subtype,
    /// `func.*` and `category.*`.
    pub policies: Policies,
    pub func_readdir: ReaddirRule,
    pub ignorepponrename: bool,
    pub statfs: StatfsMode,
    pub statfs_ignore: StatfsIgnore,
    pub passthrough_io: PassthroughIo,
    /// 1 or 2.
    pub passthrough_max_stack_depth: u32,
    pub passthrough_headroom: MinFreeSpace,
    pub passthrough_unheld: PassthroughUnheld,

    /// The policy that chooses the branch; `None`: files stay.
    pub moveonenospc: Option<Policy>,
    /// `Size(0)`: nothing moves ahead of time.
    pub relocate_ahead: MinFreeSpace,
    /// Per second; 0 for no bound.
    pub relocate_rate_bytes: u64,
    /// The longest a write waits for room; zero: none waits.
    pub relocate_hold: Duration,
    pub link_exdev: LinkExdev,
    pub rename_exdev: RenameExdev,

    pub coherence: Coherence,
    pub cache_files: CacheFiles,
    /// At least one; each 1 to 15 bytes.
    pub cache_files_process_names: Vec<String>,
    /// `None`, as in the three below: the server chooses by what it can watch.
    pub cache_attr: Option<Duration>,
    pub cache_entry: Option<Duration>,
    pub cache_negative_entry: Option<Duration>,
    pub cache_readdir: Option<bool>,
    pub cache_symlinks: bool,
    /// `None`: the server chooses.
    pub cache_statfs: Option<Duration>,
    pub cache_writeback: bool,
    pub dropcacheonclose: bool,

    pub async_read: bool,
    pub direct_io_allow_mmap: bool,
    pub parallel_direct_writes: bool,
    pub flush_on_close: FlushOnClose,
    pub nullrw: bool,
    pub preload: bool,
    pub fuse_msg_size: MessageSize,
    /// KiB; 0: the kernel's own.
    pub readahead: u64,

    /// See [`Settings::most_threads`].
    pub threads: i32,
    pub process_thread_count: i32,
    pub pin_threads: PinThreads,
    /// How requests come.
    pub transport: Transport,
    /// A nice value. `None`: -10 where that is allowed.
    pub scheduling_priority: Option<i32>,
    pub proxy_ioprio: bool,

    pub xattr: XattrMode,
    pub security_capability: bool,
    pub posix_acl: bool,
    pub kernel_permissions_check: bool,
    pub export_support: bool,
    pub allow_idmap: bool,
    pub handle_killpriv: bool,
    pub handle_killpriv_v2: bool,

    pub debug: bool,
    /// `None`: the system's log, or standard error.
    pub log_file: Option<String>,
    /// Zero: slow requests are not logged.
    pub slow_log: Duration,
    /// `notify.*`.
    pub notify: NotifySettings,
    /// Where the metrics are told to whoever collects them.
    pub metrics_listen: Listen,

    pub inodecalc: InodeCalc,
    pub symlinkify: bool,
    pub symlinkify_timeout: Duration,
    pub follow_symlinks: FollowSymlinks,
    pub link_cow: bool,
    pub nfsopenhack: NfsOpenHack,
    /// `None`: the branch's owner, as for `gid`.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Permission bits that nothing shows; `None`: the branch's permissions.
    pub umask: Option<u32>,
    /// `None`: on when mounting as root.
    pub allow_other: Option<bool>,
    pub auto_unmount: bool,
    pub core_dumps: bool,
    /// `None`: the server runs as whoever mounts.
    pub setuid: Option<String>,
    pub mount_flags: MountFlags,
    pub contexts: SecurityContexts,
    /// What may be on the mountpoint already.
    pub occupied: Occupied,

    /// The configuration file that was read last; reading it is the work of [`crate::Layers`].
    pub config: Option<String>,
    /// Where each value comes from. Two settings are equal whatever their origins.
    pub origins: Origins,
}

/// What `passthrough.headroom` is by default.
const HEADROOM: MinFreeSpace = MinFreeSpace::Smaller {
    size: 10 << 30,
    percent: 10,
};

impl Default for Settings {
    /// The documented defaults; a test compares them with the table.
    fn default() -> Self {
        Self {
            branches: Vec::new(),
            branches_mount_timeout: Duration::ZERO,
            branches_mount_timeout_fail: false,
            on_missing: OnMissing::Fail,
            cross_mounts: CrossMounts::System,
            branch_marker: None,
            branch_check_interval: Duration::from_secs(5),
            branch_slow_after: Duration::from_secs(1),
            branch_deadline: Duration::from_secs(30),
            mountpoint: None,
            minfreespace: MinFreeSpace::default(),
            fsname: None,
            subtype: Subtype::Strandfs,
            policies: Policies::default(),
            func_readdir: ReaddirRule::Sequential,
            ignorepponrename: false,
            statfs: StatfsMode::Base,
            statfs_ignore: StatfsIgnore::None,
            passthrough_io: PassthroughIo::Auto,
            passthrough_max_stack_depth: 1,
            passthrough_headroom: HEADROOM,
            passthrough_unheld: PassthroughUnheld::Auto,
            moveonenospc: Some(crate::policies::Category::Create.default_policy()),
            relocate_ahead: MinFreeSpace::Size(0),
            relocate_rate_bytes: 64 << 20,
            relocate_hold: Duration::from_secs(300),
            link_exdev: LinkExdev::Passthrough,
            rename_exdev: RenameExdev::Passthrough,
            coherence: Coherence::Auto,
            cache_files: CacheFiles::Off,
            cache_files_process_names: vec!["rtorrent".to_owned(), "qbittorrent-nox".to_owned()],
            cache_attr: None,
            cache_entry: None,
            cache_negative_entry: None,
            cache_readdir: None,
            cache_symlinks: false,
            cache_statfs: None,
            cache_writeback: false,
            dropcacheonclose: false,
            async_read: true,
            direct_io_allow_mmap: true,
            parallel_direct_writes: true,
            flush_on_close: FlushOnClose::OpenedForWrite,
            nullrw: false,
            preload: false,
            fuse_msg_size: MessageSize::default(),
            readahead: 0,
            threads: 0,
            process_thread_count: -1,
            pin_threads: PinThreads::Off,
            transport: Transport::Auto,
            scheduling_priority: None,
            proxy_ioprio: false,
            xattr: XattrMode::Passthrough,
            security_capability: true,
            posix_acl: true,
            kernel_permissions_check: true,
            export_support: true,
            allow_idmap: true,
            handle_killpriv: true,
            handle_killpriv_v2: true,
            debug: false,
            log_file: None,
            slow_log: Duration::ZERO,
            notify: NotifySettings::default(),
            metrics_listen: Listen::Nowhere,
            inodecalc: InodeCalc::DevinoHash,
            symlinkify: false,
            symlinkify_timeout: Duration::from_secs(3600),
            follow_symlinks: FollowSymlinks::Never,
            link_cow: false,
            nfsopenhack: NfsOpenHack::Off,
            uid: None,
            gid: None,
            umask: None,
            allow_other: None,
            auto_unmount: false,
            core_dumps: false,
            setuid: None,
            mount_flags: MountFlags::default(),
            contexts: SecurityContexts::default(),
            occupied: Occupied::default(),
            config: None,
            origins: Origins::default(),
        }
    }
}

impl Settings {
    /// Sets one option, at mount or in a configuration. Options take effect in the order of the
    /// calls: a later `category.create` overrides an earlier `func.mkdir` and the reverse.
    ///
    /// `name` may be an alias or opposite, with `_` for `-`. `None` is a bare flag, which means
    /// true. Setting `branches` asks the filesystem (see [`branch::edit()`]).
    ///
    /// # Errors
    /// The option is unknown or not there yet, the value is missing or not accepted; the settings
    /// are then unchanged.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<Effect, OptionError> {
        self.set_from(&Origin::CommandLine, name, value)
    }

    /// As [`Settings::set`], which takes the value for one of the command line.
    ///
    /// # Errors
    /// As [`Settings::set`].
    pub fn set_from(
        &mut self,
        origin: &Origin,
        name: &str,
        value: Option<&str>,
    ) -> Result<Effect, OptionError> {
        let (option, opposite) = find(name)?;
        let notice = |text: String| Notice {
            option: name.to_owned(),
            text,
        };
        match option.status {
            Status::Active => {
                self.assign(origin, option, opposite, name, value)?;
                Ok(Effect {
                    option,
                    notice: None,
                })
            }
            Status::Renamed { to } => {
                let (target, opposite) = find(to)?;
                self.assign(origin, target, opposite, name, value)?;
                Ok(Effect {
                    option: target,
                    notice: Some(notice(format!("obsolete name, {to} is set instead"))),
                })
            }
            Status::Obsolete { why } => Ok(Effect {
                option,
                notice: Some(notice(format!("obsolete and ignored, {why}"))),
            }),
            Status::MountWord => Ok(Effect {
                option,
                notice: None,
            }),
        }
    }

    /// As [`Settings::set`], for a pool that is mounted.
    ///
    /// # Errors
    /// Also [`OptionError::NotAtRunTime`] for options that are fixed at mount.
    pub fn set_at_run_time(
        &mut self,
        name: &str,
        value: Option<&str>,
    ) -> Result<Effect, OptionError> {
        let (option, _) = find(name)?;
        let target = match option.status {
            Status::Renamed { to } => find(to)?.0,
            _ => option,
        };
        if target.status == Status::Active && !target.run_time {
            return Err(OptionError::NotAtRunTime {
                option: target.name,
            });
        }
        self.set_from(&Origin::RunTime, name, value)
    }

    fn assign(
        &mut self,
        origin: &Origin,
        option: &'static OptionDef,
        opposite: bool,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), OptionError> {
        let text = match value.or(option.value.bare) {
            Some(text) => text,
            None => {
                return Err(OptionError::MissingValue {
                    option: name.to_owned(),
                    accepted: option.value.accepted,
                });
            }
        };
        let before = origin::Values::of(self);
        let assigned = if opposite {
            (option.value.set)(self, invert(text))
        } else {
            (option.value.set)(self, text)
        };
        if assigned.is_ok() {
            before.note_changes(self, option, origin);
        }
        assigned.map_err(|refused| match refused {
            Refused::Branch(error) => OptionError::Branch(error),
            Refused::Value => OptionError::BadValue {
                option: name.to_owned(),
                value: text.to_owned(),
                accepted: option.value.accepted,
                suggestion: table::nearest_value(option, text),
            },
        })
    }

    /// The value of an option as text that [`Settings::set`] accepts, or `None` when no such
    /// option has a value. Two values cannot be set as they read: a category whose functions
    /// differ (`ff,mfs`), and branches that were never set (empty).
    pub fn get(&self, name: &str) -> Option<String> {
        let (mut option, mut opposite) = table::find(name)?;
        if let Status::Renamed { to } = option.status {
            (option, opposite) = table::find(to)?;
        }
        if option.status != Status::Active {
            return None;
        }
        let text = (option.value.get)(self);
        Some(match opposite {
            true => invert(&text).to_owned(),
            false => text,
        })
    }

    /// Applies a `-o` string in order: `NAME[=VALUE]` separated by commas. A comma belongs to a
    /// value when escaped (`\,`), inside double quotes around the whole value, and in `branches=`
    /// where mergerfs users write it plain: inside braces, and before a number after a mode
    /// (`branches=/a=NC,10G:/b`). Empty items are skipped.
    ///
    /// # Errors
    /// The first error; the settings are then unchanged.
    pub fn parse_mount_options(&mut self, text: &str) -> Result<Vec<Notice>, OptionError> {
        let mut changed = self.clone();
        let mut notices = Vec::new();
        for item in mount_options::split(text)? {
            let effect = changed.set(item.name, item.value.as_deref())?;
            notices.extend(effect.notice);
        }
        *self = changed;
        Ok(notices)
    }

    /// Appends branches, as each positional argument of the command line does.
    ///
    /// # Errors
    /// As [`branch::edit()`]; the settings are then unchanged.
    pub fn add_branches(&mut self, list: &str) -> Result<(), OptionError> {
        self.add_branches_from(&Origin::CommandLine, list)
    }

    /// As [`Settings::add_branches`], which takes them for arguments of the command line.
    ///
    /// # Errors
    /// As [`Settings::add_branches`].
    pub fn add_branches_from(&mut self, origin: &Origin, list: &str) -> Result<(), OptionError> {
        self.branches = branch::edit(&self.branches, &format!("+>{list}"))?;
        self.origins.set("branches", origin);
        Ok(())
    }

    /// Puts another list of branches in place of the present one, for a pool that is mounted. The
    /// paths must be real and different.
    ///
    /// # Errors
    /// [`BranchError::NoneLeft`] if the list is empty; the settings are then unchanged.
    pub fn set_branches_at_run_time(
        &mut self,
        branches: Vec<BranchSpec>,
    ) -> Result<(), OptionError> {
        if branches.is_empty() {
            return Err(BranchError::NoneLeft.into());
        }
        self.branches = branches;
        self.origins.set("branches", &Origin::RunTime);
        Ok(())
    }

    /// Looks for options that exclude each other. To be called once all are set.
    ///
    /// # Errors
    /// [`OptionError::Conflict`] when both were asked for by name. When one is merely a default
    /// that gives way, a notice says so.
    pub fn check(&self) -> Result<Vec<Notice>, OptionError> {
        self.check_all().map_err(|(first, _)| first)
    }

    /// As [`Settings::check`], for whoever can show more than one sentence.
    ///
    /// # Errors
    /// Every [`OptionError::Conflict`]: the first and the others.
    pub fn check_all(&self) -> Result<Vec<Notice>, (OptionError, Vec<OptionError>)> {
        let mut notices = Vec::new();
        let mut refused = Vec::new();
        let conflicts = TABLE.iter().flat_map(|option| {
            option
                .conflicts
                .iter()
                .map(move |conflict| (option, conflict))
        });
        for (option, conflict) in conflicts {
            let written = |name: &str| format!("{name}={}", self.get(name).unwrap_or_default());
            match (conflict.clash)(self) {
                Clash::None => {}
                Clash::GivesWay(text) => notices.push(Notice {
                    option: option.name.to_owned(),
                    text: text.to_owned(),
                }),
                Clash::Refused => refused.push(OptionError::Conflict {
                    first: written(option.name),
                    second: written(conflict.with),
                    why: conflict.why,
                }),
            }
        }
        let mut refused = refused.into_iter();
        match refused.next() {
            None => Ok(notices),
            Some(first) => Err((first, refused.collect())),
        }
    }

    /// What `df` and `/proc/mounts` show as the source: `fsname`, or else the branch paths without
    /// the directories they share, joined by `:` (a single branch in full).
    pub fn source_name(&self) -> String {
        if let Some(name) = &self.fsname {
            return name.clone();
        }
        let paths: Vec<&Path> = self
            .branches
            .iter()
            .map(|branch| branch.path.as_path())
            .collect();
        let shared = match paths.as_slice() {
            [] | [_] => None,
            [first, others @ ..] => first.ancestors().skip(1).find(|dir| {
                others
                    .iter()
                    .all(|path| path.starts_with(dir) && path != dir)
            }),
        };
        let names: Vec<String> = paths
            .iter()
            .map(|path| match shared {
                Some(shared) => path.strip_prefix(shared).unwrap_or(path),
                None => path,
            })
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        names.join(":")
    }
}

/// The option a name means, and whether it is the opposite (`rw` of `ro`).
fn find(name: &str) -> Result<(&'static OptionDef, bool), OptionError> {
    table::find(name).ok_or_else(|| OptionError::unknown(name))
}

/// The value for `noX` in terms of `X`. What is no boolean (`auto`, a slip) stays.
fn invert(text: &str) -> &str {
    match parse_bool(text) {
        Ok(true) => "false",
        Ok(false) => "true",
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests;
