//! Failures that nobody asked for: a disk that breaks, a server that does not answer, a limit that
//! is reached. Each is logged with its operation, path, branch and errno. What programs provoke
//! (a name that is not there, a permission that is missing) is not.

use std::ffi::OsStr;

use rustix::io::Errno;
use strandfs_fuse::{Context, NodeId};

use crate::base::branch::is_dead_server;
use crate::base::calls;
use crate::base::error::{Error, Result};
use crate::state::{State, paths};

/// An errno that is logged: its name, and what the administrator can do.
type Fault = (Errno, &'static str, &'static str);

const DISK: &str = "the branch's disk or filesystem failed: see the kernel's log (dmesg)";
const OUT_OF_USE: &str = "the branch is out of use (see strandfs status and on-missing)";
const DAMAGED: &str = "the branch's filesystem is damaged: unmount and check it";
const NETWORK: &str = "the server of the branch's network filesystem does not answer";
const LIMIT: &str = "the server has too many open files: raise LimitNOFILE or fs.file-max";

/// Every errno that is logged.
const FAULTS: [Fault; 23] = [
    (Errno::IO, "EIO", DISK),
    (Errno::REMOTEIO, "EREMOTEIO", DISK),
    (Errno::NODEV, "ENODEV", DISK),
    (Errno::NOMEDIUM, "ENOMEDIUM", DISK),
    (Errno::UCLEAN, "EUCLEAN", DAMAGED),
    (Errno::BADMSG, "EBADMSG", DAMAGED),
    (
        Errno::STALE,
        "ESTALE",
        "the file was replaced behind the pool's back, or its branch is gone",
    ),
    (
        Errno::NOSPC,
        "ENOSPC",
        "no branch that may be used has room: see strandfs explain",
    ),
    (Errno::DQUOT, "EDQUOT", "a disk quota is used up"),
    (Errno::NOMEM, "ENOMEM", "memory ran out"),
    (Errno::MFILE, "EMFILE", LIMIT),
    (Errno::NFILE, "ENFILE", LIMIT),
    (Errno::TIMEDOUT, "ETIMEDOUT", NETWORK),
    (Errno::HOSTDOWN, "EHOSTDOWN", NETWORK),
    (Errno::HOSTUNREACH, "EHOSTUNREACH", NETWORK),
    (Errno::NETDOWN, "ENETDOWN", NETWORK),
    (Errno::NETUNREACH, "ENETUNREACH", NETWORK),
    (Errno::CONNREFUSED, "ECONNREFUSED", NETWORK),
    (Errno::CONNRESET, "ECONNRESET", NETWORK),
    (Errno::CONNABORTED, "ECONNABORTED", NETWORK),
    (
        Errno::NOTCONN,
        "ENOTCONN",
        "the server behind the branch is dead",
    ),
    (Errno::SHUTDOWN, "ESHUTDOWN", DISK),
    (Errno::NOLINK, "ENOLINK", NETWORK),
];

/// What was asked for: the operation, of which node, and the name in it where the request has one.
pub(crate) type RequestName<'a> = (&'static str, NodeId, Option<&'a OsStr>);

/// Carries a request out, and makes its error an errno for the kernel, a line of the log and a
/// note of the branch's health.
pub(crate) fn told<T>(
    pool: &State,
    cx: &Context<'_>,
    asked: RequestName<'_>,
    request: impl FnOnce() -> Result<T>,
) -> strandfs_fuse::Result<T> {
    calls::forget_longest();
    request().map_err(|error| {
        // What is answered later has not failed.
        if !cx.worker.is_deferred() && !error.expected {
            note_failure(pool, asked, error);
        }
        match error.errno {
            // By any other errno a program, or the kernel (ESTALE), would ask once more.
            _ if error.took_effect => Errno::IO,
            // Programs would take the pool's own server for dead.
            errno if is_dead_server(errno) => Errno::IO,
            // The kernel takes it for the word of the whole pool, and asks no branch any more.
            Errno::NOSYS if !error.expected => Errno::OPNOTSUPP,
            errno => errno,
        }
    })
}

/// Logs a request's failure if it is one that nobody asked for.
#[cold]
fn note_failure(pool: &State, (operation, node, name): RequestName<'_>, error: Error) {
    let fault = FAULTS.iter().find(|fault| fault.0 == error.errno);
    let Some((errno, errno_name, advice)) = fault else {
        return;
    };
    let node = pool.nodes.get(node);
    let path = paths::shown_path(pool, node.as_ref(), name);
    let blamed = error.branch;
    // What is done to a file is done to its own inode.
    let own = || {
        let file = node.as_ref().filter(|node| !node.is_dir())?;
        Some(file.primary()?.branch)
    };
    let view = pool.view();
    let culprit = blamed.or_else(own);
    if let (Some(branch), None) = (culprit.and_then(|id| view.branch(id)), blamed) {
        branch.health().note(*errno);
    }
    let missing = view.missing.iter().find(|m| Some(m.id) == culprit);
    let (branch, advice) = match missing {
        Some(missing) => (Some(&missing.spec.path), OUT_OF_USE),
        None => {
            let branch = culprit.and_then(|id| view.branch(id));
            (branch.map(|branch| &branch.path), *advice)
        }
    };
    let branch = branch.map(|path| path.display().to_string());
    macro_rules! say {
        ($level:ident) => {
            tracing::$level!(
                operation,
                path,
                branch,
                errno = errno_name,
                advice,
                "request failed"
            )
        };
    }
    match *errno {
        Errno::NOSPC | Errno::DQUOT | Errno::STALE => say!(warn),
        _ => say!(error),
    }
}
