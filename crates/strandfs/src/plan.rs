//! From the arguments of a mount to its settings and mountpoint.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use serde::{Deserialize, Serialize};
use strandfs_options::branch::reach;
use strandfs_options::layers::LoadError;
use strandfs_options::{BranchError, Layers, Loaded, OptionError, Origin, Settings, config, table};
use strandfs_pool::admin::features;
use strandfs_pool::state::mounts::{Forbids, survey};

use crate::args::MountArgs;
use crate::check;
use crate::failure::Failure;

/// What is to be mounted, and where.
pub struct MountPlan {
    /// What the settings are made of, to make them again.
    pub layers: Layers,
    /// Complete and without conflicts.
    pub settings: Settings,
    /// Absolute and without symlinks.
    pub mountpoint: PathBuf,
    /// What the pool's mount forbids.
    pub forbids: Forbids,
    /// What to tell the user, a sentence each.
    pub said: Vec<String>,
}

/// A plan on its way to the server in the background.
#[derive(Serialize, Deserialize)]
struct Sent {
    layers: Layers,
    settings: Settings,
    /// Need not be text.
    mountpoint: Vec<u8>,
    forbids: u8,
    said: Vec<String>,
    /// Branches that have been waited for in vain.
    silent: Vec<Vec<u8>>,
}

impl MountPlan {
    /// The plan as a file that the server gets as its standard input.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn send(self) -> io::Result<File> {
        let branches = self.settings.pool.branches.iter();
        let silent = branches.filter(|branch| reach::is_silent(&branch.path));
        let silent = silent.map(|branch| branch.path.clone().into_os_string().into_vec());
        let sent = Sent {
            silent: silent.collect(),
            layers: self.layers,
            settings: self.settings,
            mountpoint: self.mountpoint.into_os_string().into_vec(),
            forbids: self.forbids.bits(),
            said: self.said,
        };
        let mut file = File::from(memfd_create("strandfs-plan", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&sent)?)?;
        file.rewind()?;
        Ok(file)
    }

    /// In the server: the plan it was started with. Standard input leads nowhere afterwards.
    ///
    /// # Errors
    /// There is none: only [`crate::daemon`] starts a server so.
    pub fn receive() -> io::Result<MountPlan> {
        let sent: Sent = serde_json::from_reader(io::stdin().lock())?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        let silent = sent.silent.into_iter().map(OsString::from_vec);
        reach::note_silent(&silent.map(PathBuf::from).collect::<Vec<_>>());
        Ok(MountPlan {
            layers: sent.layers,
            settings: sent.settings,
            mountpoint: OsString::from_vec(sent.mountpoint).into(),
            forbids: Forbids::from_bits_truncate(sent.forbids),
            said: sent.said,
        })
    }
}

/// Reads the options and files, and looks at the mountpoint and the branches. Changes nothing,
/// except that a dead mount on the mountpoint is cleared away.
///
/// # Errors
/// Anything in them that keeps the pool from being mounted.
pub fn make(args: &MountArgs) -> Result<MountPlan, Failure> {
    no_option_among(&args.paths)?;
    let (layers, loaded, mountpoint) = load(args)?;
    let layers = layers.settle(&loaded);
    let mut settings = loaded.settings;
    // Nobody but a person at a command line forgets which word is which.
    let by_order = !args.from_mount && layers.file.is_none() && args.paths.contains(&mountpoint);
    let mountpoint = check::mountpoint(&mountpoint, settings.mount.occupied.by_pool())?;
    settings.pool.mountpoint = mountpoint.to_str().map(str::to_owned);
    check::branches(&settings, &mountpoint)?;
    let silent = check::silent(&settings)?;
    if by_order {
        check::order(&settings, &mountpoint)?;
    }
    if args.from_mount && rustix::process::geteuid().is_root() {
        // As for any filesystem in fstab; whoever does not want it writes nosuid or nodev.
        settings.mount.flags.suid.get_or_insert(true);
        settings.mount.flags.dev.get_or_insert(true);
    }
    if let Some(file) = &settings.logging.file {
        // The server in the background has another working directory.
        let file = std::path::absolute(file).map_err(Failure::system("finding log.file"))?;
        settings.logging.file = file.to_str().map(str::to_owned);
    }
    let mut said = silent;
    said.extend(features::settle(&mut settings));
    let conflicts = settings
        .check_all()
        .map_err(|(first, others)| Failure::Conflicts { first, others })?;
    let notices = loaded.notices.iter().chain(&conflicts);
    said.extend(notices.map(ToString::to_string));
    said.extend(without_root(&settings));
    said.extend(check::surprises(&settings, &mountpoint));
    let survey = survey(&settings, Forbids::all().difference(forbidden(&settings)));
    said.extend(survey.said);
    Ok(MountPlan {
        forbids: survey.forbidden_by_all | forbidden(&settings),
        layers,
        settings,
        mountpoint,
        said,
    })
}

/// An option without `-o` before it would be taken for a branch or the mountpoint.
fn no_option_among(words: &[String]) -> Result<(), Failure> {
    let is_option = |word: &&String| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| table::find(name).is_some()) && !Path::new(word).exists()
    };
    match words.iter().find(is_option) {
        Some(option) => Err(Failure::Refused(option_needs_o(option))),
        None => Ok(()),
    }
}

/// What is said of an option in a place where none is expected.
pub fn option_needs_o(option: &str) -> String {
    format!("{option} is an option of the pool: write it behind -o, as in -o {option}")
}

/// What the options forbid.
fn forbidden(settings: &Settings) -> Forbids {
    let flags = &settings.mount.flags;
    // `fusermount3` allows neither.
    let is_root = rustix::process::geteuid().is_root();
    let mut forbids = Forbids::empty();
    forbids.set(Forbids::SUID, !is_root || !flags.suid.unwrap_or(false));
    forbids.set(Forbids::DEV, !is_root || !flags.dev.unwrap_or(false));
    forbids.set(Forbids::EXEC, flags.noexec);
    forbids
}

/// The layers, what they say, and the mountpoint as it was given.
fn load(args: &MountArgs) -> Result<(Layers, Loaded, String), Failure> {
    let file = args
        .paths
        .first()
        .and_then(|source| config::named_by(source));
    let paths = match file {
        Some(_) => args.paths.get(1..).unwrap_or_default(),
        None => args.paths.as_slice(),
    };
    let mut options = args.options.clone();
    if args.read_only {
        options.push("ro".to_owned());
    }
    let mut layers = Layers {
        origin: match args.from_mount {
            true => Origin::MountOptions,
            false => Origin::CommandLine,
        },
        options,
        sloppy: args.sloppy,
        ..Layers::default()
    };
    layers.file.clone_from(&file);
    let loaded = layers.load_options();
    let loaded = loaded.map_err(|error| explain(error, args))?;
    let set = loaded.settings.pool.mountpoint.clone();
    let has_branches = !loaded.settings.pool.branches.is_empty();
    if let ([word], None, None, false) = (&args.paths[..], &file, &set, has_branches) {
        return Err(one_word(word));
    }
    // Behind the name of a file, and from mount(8), the mountpoint always comes last.
    let last_is_mountpoint = args.from_mount || file.is_some() || set.is_none();
    let (branches, mountpoint) = match (paths.split_last(), set) {
        (Some((last, branches)), _) if last_is_mountpoint => (branches, last.clone()),
        (_, Some(set)) => (paths, set),
        (_, None) => return Err(Failure::NoMountpoint),
    };
    layers.branches = branches.to_vec();
    let loaded = layers.add_branches(loaded);
    let loaded = loaded.map_err(|error| explain(error, args))?;
    Ok((layers, loaded, mountpoint))
}

/// A word alone is either half of a pool, or the name of a configuration that is not there.
fn one_word(word: &str) -> Failure {
    let path = PathBuf::from(word);
    match config::place_of(word) {
        _ if path.is_dir() => Failure::OnlyOne(path),
        _ if is_file_name(word) => Failure::NoFile(path),
        Some(file) => Failure::NoSource { name: path, file },
        None => Failure::OnlyOne(path),
    }
}

/// Whether a word can only be meant as the name of a configuration file.
fn is_file_name(word: &str) -> bool {
    word.ends_with(".toml")
}

/// A bare word that stands for nothing may have been meant as any of three things.
fn explain(error: LoadError, args: &MountArgs) -> Failure {
    match error {
        LoadError::Config(errors) => Failure::Config(errors),
        LoadError::Option(OptionError::Branch(BranchError::Missing { path }))
            if args.paths.first().map(Path::new) == Some(&path) =>
        {
            match config::place_of(&path.to_string_lossy()) {
                _ if is_file_name(&path.to_string_lossy()) => Failure::NoFile(path),
                Some(file) => Failure::NoSource { name: path, file },
                None => OptionError::Branch(BranchError::Missing { path }).into(),
            }
        }
        LoadError::Option(error) => Failure::Option(error),
    }
}

/// What a pool loses when its server is not root.
fn without_root(settings: &Settings) -> Option<String> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return None;
    }
    let others = match settings.mount.allow_other {
        Some(true) => "other users act with this user's rights on the branches",
        _ => "other users cannot enter",
    };
    Some(format!(
        "mounted by user {user}, not by root: no passthrough, so data takes the way through the \
         server; no notice of changes made on the branches behind the pool's back; files of other \
         users only as far as this user may touch them, and none can be given to others; {others}"
    ))
}
