//! The preload library: programs that know nothing of it read and write the branch files
//! themselves, and every doubt leaves them with the pool's own descriptor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool};

mod calls;
mod locks;
mod programs;
mod when;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use support::{Builder, Pool, Run, command, run};

/// A pool for which the library is meant: no passthrough, no page cache.
pub fn server_pool(branches: usize) -> Builder {
    Pool::tmpfs(branches).option("passthrough.io=off,cache.files=off,preload=true")
}

/// The library as cargo built it, beside the binary under test or among its dependencies.
pub fn library() -> PathBuf {
    let program = command::binary();
    let dir = program.parent().unwrap();
    let name = "libstrandfs_preload.so";
    let found = [dir.join(name), dir.join("deps").join(name)];
    found
        .into_iter()
        .find(|path| path.exists())
        .expect("the library was built with the tests")
}

/// Runs a program with the library, in `dir`.
pub fn preloaded<A: AsRef<OsStr>>(
    dir: &Path,
    program: &str,
    args: impl IntoIterator<Item = A>,
) -> Run {
    let mut all = vec![
        "-C".into(),
        dir.as_os_str().to_owned(),
        format!("LD_PRELOAD={}", library().display()).into(),
        program.into(),
    ];
    all.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
    run("env", all)
}

/// Runs a Python program with the library, in `dir`.
pub fn python(dir: &Path, program: &str) -> Run {
    preloaded(dir, "python3", ["-c", program])
}

/// Where an open with these flags ends, as the kernel names the descriptor.
pub fn opened(dir: &Path, name: &str, flags: &str) -> PathBuf {
    let program = format!(
        "import os\nfd = os.open({name:?}, {flags}, 0o600)\nprint(os.readlink(f'/proc/self/fd/{{fd}}'))"
    );
    PathBuf::from(python(dir, &program).ok().stdout.trim_end())
}

/// How many requests of this operation the server has had.
pub fn requests(pool: &Pool, operation: &str) -> u64 {
    support::traffic::requests_of(pool, operation)
}
