//! Changing a pool while it serves: the control socket, SIGHUP, and reading the configuration again.

use std::path::Path;
use std::sync::Arc;

use strandfs_fuse::Session;
use strandfs_options::{Layers, Notice};
use strandfs_pool::{Admin, Changed, Pool, reconfigure};

/// Opens the ways to change the pool while it serves.
pub fn control(pool: &Arc<Pool>, session: &mut Session, layers: Layers) {
    pool.set_reload(Box::new(move |pool| reload(pool, &layers)));
    if let Err(error) = pool.listen() {
        tracing::warn!(%error, "no control socket; the control file is there");
    }
    let pool = Arc::downgrade(pool);
    session.on_hangup(move || {
        let Some(pool) = pool.upgrade() else { return };
        // Not on the thread that waits for signals: opening branches may take its time.
        let reload = move || match pool.reload() {
            Ok(changed) => {
                let options = changed.options.join(",");
                tracing::info!(options, "the configuration was read again");
                changed
                    .notices
                    .iter()
                    .for_each(|line| tracing::warn!("{line}"));
            }
            Err(refused) => tracing::error!("the configuration stays as it was: {refused}"),
        };
        let thread = std::thread::Builder::new().name("strandfs-reload".to_owned());
        if let Err(error) = thread.spawn(reload) {
            tracing::error!(%error, "no thread to read the configuration again");
        }
    });
}

/// Makes the settings anew from what the pool was mounted with; files as they are now. Changes
/// made while mounted end with it.
fn reload(pool: &Admin, layers: &Layers) -> Result<Changed, String> {
    let known = pool.view().settings.pool.branches.clone();
    let loaded = layers
        .load_knowing(&known)
        .map_err(|error| error.to_string())?;
    let changed = reconfigure(pool, move |settings| {
        let mut next = loaded.settings;
        let mut notices = loaded.notices;
        let stays = |path: &Path| next.pool.branches.iter().any(|branch| branch.path == path);
        let leave = settings.pool.branches.iter().map(|branch| &branch.path);
        notices.extend(leave.filter(|path| !stays(path)).map(|path| Notice {
            option: "branches".to_owned(),
            text: format!(
                "{} is not in the configuration and has left the pool; what it holds is no longer \
                 seen there",
                path.display()
            ),
        }));
        // What the way in decided, and what was made of the name of the mountpoint.
        next.mount.flags.suid = next.mount.flags.suid.or(settings.mount.flags.suid);
        next.mount.flags.dev = next.mount.flags.dev.or(settings.mount.flags.dev);
        next.pool.mountpoint.clone_from(&settings.pool.mountpoint);
        // Relative only among options, which are what they were; the directory is another now.
        let relative = |file: &String| !file.starts_with('/');
        if next.logging.file.as_ref().is_some_and(relative) {
            next.logging.file.clone_from(&settings.logging.file);
        }
        *settings = next;
        Ok(notices)
    });
    Ok(changed?)
}
