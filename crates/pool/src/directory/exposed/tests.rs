use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::io::Errno;
use strandfs_options::{Policy, Settings};

use super::*;
use crate::base::branch::BranchState;
use crate::directory::{choose, lookup};
use crate::pool::Pool;
use crate::state::node::Names;

const MAKER: u32 = 7;

/// A pool of two branches with `up/d` on each, on the second with an `up` of this mode.
fn pool(house: &Path, mode: u32) -> Arc<Pool> {
    let mut settings = Settings::default();
    for (name, mode) in [("one", 0o755), ("other", mode)] {
        let branch = house.join(name);
        fs::create_dir_all(branch.join("up/d")).unwrap();
        for (dir, mode) in [("", 0o755), ("up", mode), ("up/d", 0o755)] {
            fs::set_permissions(branch.join(dir), fs::Permissions::from_mode(mode)).unwrap();
        }
        settings.add_branches(branch.to_str().unwrap()).unwrap();
    }
    settings.parse_mount_options("minfreespace=0").unwrap();
    Pool::new(settings).unwrap()
}

fn node(pool: &Arc<Pool>, path: &str) -> Arc<Node> {
    let mut at = NodeId::ROOT;
    for name in path.split('/') {
        at = lookup::lookup(pool, at, OsStr::new(name)).unwrap().node;
    }
    pool.node(at).unwrap()
}

/// Whether anything new in a directory may go to the second branch where the first has refused it.
fn goes_to_the_second(pool: &Arc<Pool>, dir: &Arc<Node>) -> bool {
    let view = pool.view();
    let set = set::dir_set(pool, dir).unwrap();
    let tried = [view.branches[0].id];
    match choose::pick_for_create(pool, &view, Policy::Ff, (dir, &set), MAKER, &tried) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.errno, Errno::ROFS);
            false
        }
    }
}

#[test]
fn a_directory_above_that_cannot_be_found_counts_as_one_that_lets_others_in() {
    let house = tempfile::tempdir().unwrap();
    let pool = pool(house.path(), 0o755);
    let dir = node(&pool, "up/d");
    assert!(goes_to_the_second(&pool, &dir));
    pool.coherence.changes.structure_changed();
    // So that its descriptors need not be looked for.
    set::dir_set(&pool, &dir).unwrap();
    dir.place_mut().names = Names::default();
    assert!(!goes_to_the_second(&pool, &dir));
    // What is not known of the copy that is shown is borne.
    let (view, set) = (pool.view(), set::dir_set(&pool, &dir).unwrap());
    let picked = choose::pick_for_create(&pool, &view, Policy::Ff, (&dir, &set), MAKER, &[]);
    assert_eq!(picked.unwrap()[0].id, view.branches[0].id);
}

#[test]
fn a_slow_branch_that_was_not_asked_for_a_directory_above_is_not_let_have_anything_before_it_is() {
    for (mode, is_fit) in [(0o777, false), (0o755, true)] {
        let house = tempfile::tempdir().unwrap();
        let pool = pool(house.path(), mode);
        let (up, dir) = (node(&pool, "up"), node(&pool, "up/d"));
        set::dir_set(&pool, &dir).unwrap();
        let view = Arc::clone(&pool.view());
        let slow = &view.branches[1];
        // What a slow branch said last counts.
        choose::space(&pool, &view, slow).unwrap();
        slow.health().change(BranchState::Slow, "a test");
        // As when its descriptors had to make room for others.
        up.place_mut().dirs = None;
        assert_eq!(goes_to_the_second(&pool, &dir), is_fit, "{mode:o}");
    }
}
