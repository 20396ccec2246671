//! `slow.log`: requests that took long, a line of the log each, with where the time went.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use strandfs_fuse::SlowRequest;

use crate::base::branch::BranchHealth;
use crate::base::calls;
use crate::state::{State, paths};

/// A process's name has 15 bytes, that of a kernel thread more.
const COMMAND_MAX_BYTES: u64 = 64;

/// Where the time of a request can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waiting for a thread.
    Queue,
    /// Calls to branches.
    Branch,
    /// The server's own work, and waiting for what is not a branch: a lock, a lease, room.
    Server,
    /// Handing the answer to the kernel.
    Answer,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Branch => "branch",
            Self::Server => "server",
            Self::Answer => "answer",
        }
    }

    /// Where most of the time went.
    fn longest(request: &SlowRequest<'_>) -> Stage {
        let others = request.queued + request.below + request.answering;
        let all = [
            (Stage::Queue, request.queued),
            (Stage::Branch, request.below),
            (Stage::Server, request.whole.saturating_sub(others)),
            (Stage::Answer, request.answering),
        ];
        let longest = all.into_iter().max_by_key(|(_, time)| *time);
        longest.map_or(Stage::Server, |(stage, _)| stage)
    }
}

/// Logs it. The caller may have ended by now.
pub(crate) fn log(pool: &State, request: &SlowRequest<'_>) {
    let node = pool.nodes.get(request.node);
    let path = paths::shown_path(pool, node.as_ref(), request.name);
    let stage = Stage::longest(request);
    let view = pool.view();
    let here = view.branches.iter().map(|b| &**b.health());
    let gone = view.missing.iter().map(|m| &*m.health);
    let branch = slow_branch(stage, here.chain(gone));
    let branch = branch.map(|branch| branch.path().display().to_string());
    let operation = request
        .opcode
        .map(|opcode| format!("{opcode:?}").to_lowercase());
    tracing::warn!(
        operation,
        path,
        branch,
        stage = stage.name(),
        took_ms = milliseconds(request.whole),
        queue_ms = milliseconds(request.queued),
        branch_ms = milliseconds(request.below),
        pid = request.pid,
        command = command_of(request.pid),
        error = request.error.map(tracing::field::display),
        "slow request"
    );
}

/// The branch that a request waited for. One that waited for something else may have asked a branch a trifle.
fn slow_branch<'a>(
    stage: Stage,
    mut branches: impl Iterator<Item = &'a BranchHealth>,
) -> Option<&'a BranchHealth> {
    match stage {
        Stage::Branch => branches.find(|branch| calls::has_longest(branch.calls())),
        Stage::Queue | Stage::Server | Stage::Answer => None,
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The name of a thread, which is whatever it likes to be called: the log escapes it.
fn command_of(thread: u32) -> Option<String> {
    let file = File::open(format!("/proc/{thread}/comm")).ok()?;
    let mut name = Vec::new();
    file.take(COMMAND_MAX_BYTES).read_to_end(&mut name).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::calls::Call;
    use crate::base::error::Error;
    use strandfs_fuse::NodeId;

    #[test]
    fn the_stage_is_where_most_of_the_time_went() {
        let ms = Duration::from_millis;
        let stage = |queued, below, answering| {
            Stage::longest(&SlowRequest {
                opcode: None,
                node: NodeId::ROOT,
                name: None,
                pid: 0,
                uid: 0,
                whole: ms(100),
                queued: ms(queued),
                below: ms(below),
                answering: ms(answering),
                error: None,
            })
        };
        assert_eq!(stage(60, 20, 0), Stage::Queue);
        assert_eq!(stage(20, 60, 0), Stage::Branch);
        assert_eq!(stage(20, 20, 5), Stage::Server);
        assert_eq!(stage(0, 0, 90), Stage::Answer);
        // Clocks that were read one after the other.
        assert_eq!(stage(50, 60, 0), Stage::Branch);
    }

    #[test]
    fn a_branch_is_named_only_where_the_time_went_there() {
        let [quick, slow] = ["/quick", "/slow"].map(|path| BranchHealth::new(Path::new(path)));
        calls::forget_longest();
        for (branch, time) in [(&slow, 2), (&quick, 0)] {
            let wait = || -> Result<(), Error> {
                std::thread::sleep(Duration::from_millis(time));
                Ok(())
            };
            let _ = branch.calls().time(Call::Stat, wait);
        }
        let named = |stage| slow_branch(stage, [&quick, &slow].into_iter()).map(BranchHealth::path);
        assert_eq!(named(Stage::Branch), Some(Path::new("/slow")));
        for stage in [Stage::Queue, Stage::Server, Stage::Answer] {
            assert_eq!(named(stage), None, "{stage:?}");
        }
    }

    #[test]
    fn a_command_is_known_by_its_name_while_it_is_there() {
        assert!(command_of(std::process::id()).is_some());
        assert_eq!(command_of(u32::MAX), None);
    }
}
