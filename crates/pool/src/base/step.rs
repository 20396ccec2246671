//! The points of a move at which a crash is tried out.

/// Marks a point between two changes. In debug builds the server kills itself at the point whose
/// number is in `STRANDFS_DIE_AT_MOVE_STEP`, counted from 1 over the life of the server, so that
/// tests can look at what a crash leaves.
#[cfg(debug_assertions)]
pub(crate) fn step() {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    static DIE_AT: LazyLock<Option<u32>> = LazyLock::new(|| {
        let text = std::env::var("STRANDFS_DIE_AT_MOVE_STEP").ok()?;
        text.parse().ok()
    });
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let Some(die_at) = *DIE_AT else { return };
    if PASSED.fetch_add(1, Ordering::Relaxed) + 1 == die_at {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // Nothing else of this thread may happen before the signal arrives.
        loop {
            std::thread::park();
        }
    }
}

/// Marks a point between two changes.
#[cfg(not(debug_assertions))]
pub(crate) fn step() {}

/// Whether a move tries to make its copy without a name. In debug builds `STRANDFS_MOVE_NAMED` in
/// the environment says no, as a filesystem without such files would.
pub(crate) fn may_be_nameless() -> bool {
    #[cfg(debug_assertions)]
    {
        use std::sync::LazyLock;
        static NAMED: LazyLock<bool> =
            LazyLock::new(|| std::env::var_os("STRANDFS_MOVE_NAMED").is_some());
        !*NAMED
    }
    #[cfg(not(debug_assertions))]
    true
}
