//! `strandfs mount`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use strandfs_fuse::{End, MountFlags, MountOptions, Session, Signals, UnmountMode};
use strandfs_options::{Listen, LoggingSettings, OptionError, Settings};
use strandfs_pool::Pool;
use strandfs_pool::state::mounts::Forbids;

use crate::args::MountArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::metrics::listener;
use crate::notifications::Notifications;
use crate::plan::{self, MountPlan};
use crate::turn::Turn;
use crate::{
    as_user, branch_mounts, check, daemon, deaths, guard, last_words, live, logging, notifications,
    notify, privileges, resources,
};

/// `strandfs mount`.
///
/// # Errors
/// As [`start`].
pub fn run(args: &MountArgs) -> Result<ExitCode, Failure> {
    start(args).map(ExitCode::from)
}

/// Mounts a pool and returns how that ended; in the foreground, when the mount has ended.
///
/// # Errors
/// Anything that keeps the pool from being mounted; nothing is mounted then.
pub fn start(args: &MountArgs) -> Result<Exit, Failure> {
    if args.background_server {
        let plan =
            MountPlan::receive().map_err(Failure::system("reading the plan of the mount"))?;
        return prepare(args, plan);
    }
    let plan = plan::make(args)?;
    let user = plan.settings.mount.setuid.as_deref();
    if as_user::is_to_switch(args, user)? {
        return as_user::mount(args, user.unwrap_or_default());
    }
    if args.foreground {
        return prepare(args, plan);
    }
    let mounted = mounted(&plan);
    let exit = daemon::start_server(plan)?;
    // mount(8) says itself what there is to say.
    if exit == Exit::Ok && !args.from_mount {
        tell!("{mounted}");
    }
    Ok(exit)
}

/// What was done, in a line.
fn mounted(plan: &MountPlan) -> String {
    let (mountpoint, count) = (plan.mountpoint.display(), plan.settings.pool.branches.len());
    let branches = if count == 1 { "branch" } else { "branches" };
    format!("mounted {count} {branches} on {mountpoint}; `strandfs status {mountpoint}` shows more")
}

/// Waits for the branches and serves.
fn prepare(args: &MountArgs, mut plan: MountPlan) -> Result<Exit, Failure> {
    let mut waited = branch_mounts::wait(&plan.settings, &plan.mountpoint)?;
    plan.said.append(&mut waited.notices);
    for line in &plan.said {
        say!("{line}");
    }
    serve(args, plan, waited)
}

fn serve(
    args: &MountArgs,
    plan: MountPlan,
    waited: branch_mounts::Waited,
) -> Result<Exit, Failure> {
    let MountPlan {
        layers,
        settings,
        mountpoint,
        forbids,
        said,
    } = plan;
    let mountpoint = mountpoint.as_path();
    let over = settings.mount.occupied.by_pool();
    let notifier = notifications::start(&settings, mountpoint)?;
    let signals = Signals::block().map_err(Failure::system("taking charge of signals"))?;
    // Before the first thread, the log's.
    let refused_priority = resources::set_priority(&settings.threads);
    resources::lift_file_size_limit();
    let still_had = privileges::give_up(settings.mount.core_dumps, privileges::FOR_POOL);
    start_log_for(args, &settings.logging, mountpoint, said)?;
    waited.reap();
    resources::raise_descriptor_limit();
    for refusal in still_had {
        tracing::warn!("more privileges than the server needs: {refusal}");
    }
    if let Some(refusal) = refused_priority {
        tracing::warn!("{refusal}");
    }
    let options = mount_options(&settings, forbids);
    let config = resources::session_config(&settings);
    let auto_unmount = settings.mount.auto_unmount;
    let detach_first = settings.mount.occupied.detach;
    let listen = settings.logging.metrics_listen.clone();
    let pool = Pool::new(settings)?;
    pool.set_mountpoint(mountpoint);
    pool.mounted_so(forbids);
    let below = mountpoint.to_path_buf();
    pool.watch(Box::new(move |old, new| {
        let (old, new) = (&old.logging, &new.logging);
        check_log_file(new, &below)?;
        logging::follow(old, new).map_err(|error| log_file_error(new, error.to_string()))
    }));
    let turn = Turn::take(mountpoint);
    if detach_first {
        detach(mountpoint)?;
    }
    // Somebody may have been faster.
    check::is_free(mountpoint, over)?;
    let _listener = tell_metrics(&pool, &listen, mountpoint)?;
    if args.background_server {
        last_words::keep().map_err(Failure::system("keeping what the server says last"))?;
    }
    let mut guard = None;
    let session = Session::mount_guarded(
        Arc::clone(&pool),
        mountpoint,
        &options,
        config,
        |abort_file| guard = Some(guard::start(mountpoint, abort_file, auto_unmount)),
    );
    // What fails from here on until it serves has been said, and is no sudden death.
    let in_order = |_: &Failure| last_words::end_in_order();
    let mut session = session.map_err(Failure::from).inspect_err(in_order)?;
    let begin = |session: &mut Session| {
        if let Some(guard) = guard {
            let guard = guard?;
            pool.set_guardian(Box::new(move || guard.pid()));
        }
        pool.is_mounted()
            .map_err(Failure::system("looking at the mount"))?;
        pool.start()
            .map_err(|(what, error)| Failure::system(what)(error))?;
        drop(turn);
        live::control(&pool, session, layers);
        tracing::info!(mountpoint = %mountpoint.display(), source = options.fsname, "mounted");
        deaths::tell(mountpoint);
        deaths::forget(mountpoint);
        notifications::attach(notifier, &pool)
    };
    let notifications = begin(&mut session).inspect_err(in_order)?;
    announce(&mut session, args.background_server);
    let end = session
        .serve_with_signals(signals)
        .inspect_err(|error| last_words::note(&error.to_string()))?;
    tracing::info!(mountpoint = %mountpoint.display(), ?end, "unmounted");
    logging::finish();
    Ok(conclude(end, notifications.as_ref()))
}

/// Says whether the server ends in order, and returns how the command ends.
fn conclude(end: End, notifications: Option<&Notifications>) -> Exit {
    match end {
        End::Unmounted | End::Signal(_) => {
            last_words::end_in_order();
            if let Some(notifications) = notifications {
                notifications.end_in_order();
            }
            Exit::Ok
        }
        other => {
            last_words::note(&format!("the connection to the kernel ended: {other:?}"));
            Exit::Failed
        }
    }
}

/// Has the pool's metrics told where the options say. The socket's file goes with what this gives back.
fn tell_metrics(
    pool: &Arc<Pool>,
    listen: &Listen,
    mountpoint: &Path,
) -> Result<listener::KeptFile, Failure> {
    let refuse = |why: String| OptionError::File {
        option: "metrics.listen",
        path: listen.to_string(),
        why,
    };
    if let Listen::Unix(path) = listen {
        let dir = path.parent().and_then(|dir| dir.canonicalize().ok());
        if dir.is_some_and(|dir| dir.starts_with(mountpoint)) {
            return Err(refuse("it lies in the pool".to_owned()).into());
        }
    }
    let pool = Arc::downgrade(pool);
    let ask = move || pool.upgrade().map(|pool| pool.metrics());
    listener::start(listen, Box::new(ask)).map_err(|error| refuse(error.to_string()).into())
}

/// Whoever started the server hears when the mount answers: the waiting parent of one in the
/// background, else a service manager.
fn announce(session: &mut Session, in_background: bool) {
    if in_background {
        session.on_ready(daemon::report_ready);
        return;
    }
    let place = session.mountpoint().to_path_buf();
    session.on_ready(move || notify::ready("pool", &place));
    session.on_ending(notify::stopping);
}

/// Detaches what is mounted on the mountpoint; it lives on for those who use it.
fn detach(mountpoint: &std::path::Path) -> Result<(), Failure> {
    let is_pool = || crate::mounts::find(mountpoint).is_ok_and(|found| found.is_some());
    if !rustix::process::geteuid().is_root() && !is_pool() {
        // fusermount3 would complain of what is not there; it detaches nothing else anyway.
        return Ok(());
    }
    match strandfs_fuse::unmount(mountpoint, UnmountMode::Detach) {
        Ok(()) => {
            tracing::info!(mountpoint = %mountpoint.display(), "detached what was mounted here");
            Ok(())
        }
        // Nothing is mounted here.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        Err(error) => Err(Failure::Unmount {
            path: mountpoint.to_path_buf(),
            why: error.to_string(),
        }),
    }
}

/// Starts the log; of a server in the background it gets what was said, too.
fn start_log_for(
    args: &MountArgs,
    settings: &LoggingSettings,
    mountpoint: &Path,
    said: Vec<String>,
) -> Result<(), Failure> {
    if !args.background_server {
        return start_log(logging::Home::Foreground, settings, mountpoint);
    }
    start_log(logging::Home::Background, settings, mountpoint)?;
    if settings.file.is_none() && !logging::system_log_exists() {
        // What was said is where this goes: to the terminal.
        tracing::warn!(
            "there is no journal and no syslog here: to keep the log, set log.file=PATH or stay in the foreground (-f)"
        );
    } else {
        for line in said {
            tracing::warn!("{line}");
        }
    }
    Ok(())
}

fn start_log(
    home: logging::Home,
    settings: &LoggingSettings,
    mountpoint: &Path,
) -> Result<(), Failure> {
    check_log_file(settings, mountpoint)?;
    logging::start(home, settings)
        .map_err(|error| Failure::Option(log_file_error(settings, error.to_string())))
}

/// A log file in the pool would make the server wait for itself.
fn check_log_file(settings: &LoggingSettings, mountpoint: &Path) -> Result<(), OptionError> {
    let Some(path) = settings.file.as_deref().map(Path::new) else {
        return Ok(());
    };
    let parent = path.parent().and_then(|dir| dir.canonicalize().ok());
    let why = if !path.is_absolute() {
        "it is not an absolute path"
    } else if parent.is_some_and(|dir| dir.starts_with(mountpoint)) {
        "it lies in the pool"
    } else {
        return Ok(());
    };
    Err(log_file_error(settings, why.to_owned()))
}

fn log_file_error(settings: &LoggingSettings, why: String) -> OptionError {
    OptionError::File {
        option: "log.file",
        path: settings.file.clone().unwrap_or_default(),
        why,
    }
}

/// The kernel's side of the options.
fn mount_options(settings: &Settings, forbids: Forbids) -> MountOptions {
    let given = &settings.mount.flags;
    let mut flags = MountFlags::empty();
    let pairs = [
        (given.read_only, MountFlags::READ_ONLY),
        (forbids.contains(Forbids::SUID), MountFlags::NOSUID),
        (forbids.contains(Forbids::DEV), MountFlags::NODEV),
        (forbids.contains(Forbids::EXEC), MountFlags::NOEXEC),
        (given.sync, MountFlags::SYNC),
        (given.dirsync, MountFlags::DIRSYNC),
        (given.noatime, MountFlags::NOATIME),
        (given.nodiratime, MountFlags::NODIRATIME),
        (given.relatime, MountFlags::RELATIME),
        (given.strictatime, MountFlags::STRICTATIME),
        (given.lazytime, MountFlags::LAZYTIME),
    ];
    for (wanted, flag) in pairs {
        flags.set(flag, wanted);
    }
    let contexts = &settings.mount.contexts;
    let labels = [
        ("context", &contexts.context),
        ("fscontext", &contexts.fscontext),
        ("defcontext", &contexts.defcontext),
        ("rootcontext", &contexts.rootcontext),
    ];
    MountOptions {
        fsname: settings.pool.source_name(),
        subtype: settings.pool.subtype.to_string(),
        allow_other: settings
            .mount
            .allow_other
            .unwrap_or_else(|| rustix::process::geteuid().is_root()),
        default_permissions: settings.attributes.kernel_permissions_check,
        flags,
        extra_data: labels
            .iter()
            .filter_map(|(name, label)| label.as_ref().map(|label| format!("{name}={label}")))
            .collect(),
        ..MountOptions::default()
    }
}
