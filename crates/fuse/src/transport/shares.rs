//! Whose requests block how many threads, and whether one more of theirs may be begun: nobody but
//! root gets so many threads to wait that none is left for others.

use std::collections::HashMap;

use crate::abi::{InHeader, Opcode};

/// One user's requests may block one in so many threads.
pub(super) const SHARE: usize = 3;
/// One in so many threads is left to users none of whose requests blocks.
const RESERVE: usize = 4;
/// The user the kernel does not name.
const UNNAMED: u32 = u32::MAX;

/// Threads whose request blocks, by user.
#[derive(Default)]
pub(super) struct Blocked {
    by_user: HashMap<u32, usize>,
    total: usize,
}

impl Blocked {
    /// A request of this user blocks.
    pub(super) fn add(&mut self, uid: u32) {
        *self.by_user.entry(uid).or_default() += 1;
        self.total += 1;
        self.check_counts();
    }

    /// It is over.
    pub(super) fn remove(&mut self, uid: u32) {
        let Some(count) = self.by_user.get_mut(&uid) else {
            return;
        };
        *count -= 1;
        self.total = self.total.saturating_sub(1);
        if *count == 0 {
            self.by_user.remove(&uid);
        }
        self.check_counts();
    }

    fn check_counts(&self) {
        debug_assert_eq!(self.by_user.values().sum::<usize>(), self.total);
    }

    /// Whether it matters who asks next, with so many threads at most.
    pub(super) fn is_crowded(&self, max_threads: usize) -> bool {
        self.total > 0 && self.total * SHARE + SHARE > max_threads
    }

    /// Whether a further request of this user may block, too. One that ends waiting may where
    /// others may not.
    pub(super) fn may_begin(&self, uid: u32, max_threads: usize, ends_waits: bool) -> bool {
        let own = self.by_user.get(&uid).copied().unwrap_or_default();
        if uid == 0 || own == 0 {
            return true;
        }
        let share = (max_threads / SHARE).max(1);
        let free = max_threads.saturating_sub(self.total);
        // One reads.
        let reserve = (max_threads / RESERVE).max(1) + 1;
        match ends_waits {
            true => own < 2 * share && free > 2,
            false => own < share && free > reserve,
        }
    }
}

/// Whether requests of this kind give back what others wait for.
pub(super) fn ends_waits(opcode: u32) -> bool {
    const ENDING: [Opcode; 5] = [
        Opcode::Setlk,
        Opcode::Flush,
        Opcode::Release,
        Opcode::Releasedir,
        Opcode::Getlk,
    ];
    ENDING.iter().any(|kind| *kind as u32 == opcode)
}

/// Whether requests of this kind never block: they are about the connection, or nobody waits.
pub(super) fn is_never_kept(opcode: u32) -> bool {
    const FREE: [Opcode; 6] = [
        Opcode::Forget,
        Opcode::BatchForget,
        Opcode::Interrupt,
        Opcode::NotifyReply,
        Opcode::Destroy,
        Opcode::Init,
    ];
    FREE.iter().any(|kind| *kind as u32 == opcode)
}

/// Whose request it is. Where the kernel does not name the user (idmapped mounts), the thread that
/// asks tells: for when it matters only.
pub(super) fn user_of(header: &InHeader) -> u32 {
    user(header.uid, header.pid)
}

/// The same of a request's two numbers.
pub(super) fn user(uid: u32, pid: u32) -> u32 {
    if uid != UNNAMED || pid == 0 {
        return uid;
    }
    let status = crate::read_lossy(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let filesystem_uid = line.and_then(|line| line.split_ascii_whitespace().nth(3));
    filesystem_uid
        .and_then(|text| text.parse().ok())
        .unwrap_or(UNNAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MALLORY: u32 = 6101;
    const ALICE: u32 = 6102;

    #[test]
    fn one_user_takes_a_share_and_leaves_the_rest() {
        let mut blocked = Blocked::default();
        assert!(!blocked.is_crowded(8));
        let mut begun = 0;
        while blocked.may_begin(MALLORY, 8, false) {
            blocked.add(MALLORY);
            begun += 1;
        }
        assert_eq!(begun, 2);
        assert!(blocked.is_crowded(8));
        assert!(blocked.may_begin(ALICE, 8, false) && blocked.may_begin(0, 8, false));
        assert!(blocked.may_begin(MALLORY, 8, true), "an unlock goes on");
        blocked.remove(MALLORY);
        assert!(blocked.may_begin(MALLORY, 8, false));
        blocked.remove(MALLORY);
        blocked.remove(MALLORY);
        assert_eq!((blocked.total, blocked.by_user.len()), (0, 0));
    }

    #[test]
    fn many_users_together_leave_some_to_others() {
        let mut blocked = Blocked::default();
        for user in [MALLORY, 6103, 6104] {
            while blocked.may_begin(user, 64, false) {
                blocked.add(user);
            }
        }
        assert!(blocked.total <= 64 - 16, "{}", blocked.total);
        assert!(blocked.may_begin(ALICE, 64, false));
    }

    #[test]
    fn the_asking_thread_tells_who_it_is_where_the_kernel_does_not() {
        let own = rustix::process::getpid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        assert_eq!(user(UNNAMED, own), rustix::process::getuid().as_raw());
        assert_eq!(user(UNNAMED, 0), UNNAMED);
        assert_eq!(user(7, own), 7);
    }
}
