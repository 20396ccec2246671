//! A server that dies in a rename leaves nothing of what was replaced.

use std::fs;

use crate::need_root;
use crate::support::Pool;
use crate::support::files::{get, names, put};

/// The replaced file lies on a branch behind that of the file which takes its name.
#[test]
fn a_replaced_file_on_a_branch_behind_goes_though_the_server_died_in_the_rename() {
    need_root!();
    if !cfg!(debug_assertions) {
        return;
    }
    for behind in [vec![1], vec![1, 2]] {
        died_with_copies_on(&behind);
    }
}

fn died_with_copies_on(behind: &[usize]) {
    let mut pool = Pool::tmpfs(3).option("category.create=ff").prepare();
    let (mut step, mut states) = (1, Vec::new());
    loop {
        put(pool.on(0, "d/from"), "new");
        for branch in behind {
            put(pool.on(*branch, "d/to"), format!("old on {branch}"));
        }
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", &step.to_string());
        pool.start();
        let renamed = fs::rename(pool.path("d/from"), pool.path("d/to"));
        if renamed.is_ok() {
            break;
        }
        pool.bury();
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", "0");
        pool.start();
        let done = !pool.path("d/from").exists();
        let shown = get(pool.path("d/to"));
        let expected: (&[u8], Vec<usize>) = match done {
            true => (b"new", vec![0]),
            false => (b"old on 1", behind.to_vec()),
        };
        let context = format!("step {step}, behind on {behind:?}, done: {done}");
        assert_eq!((&*shown, pool.holders("d/to")), expected, "{context}");
        for branch in 0..3 {
            let left = names(pool.on(branch, ""));
            assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
        }
        states.push(done);
        fs::remove_dir_all(pool.path("d")).unwrap();
        pool.stop();
        step += 1;
    }
    assert!(states.is_sorted(), "what each step leaves: {states:?}");
    assert!(states.contains(&false), "{states:?}");
    assert_eq!(pool.holders("d/to"), [0]);
}
