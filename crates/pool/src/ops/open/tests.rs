use std::ffi::OsStr;
use std::fs;

use strandfs_fuse::BackingId;
use strandfs_options::Settings;

use super::*;
use crate::base::test_request::request_of;
use crate::directory::{forget, lookup};
use crate::ops::open;
use crate::pool::Pool;

/// A pool of two branches with a file on each, its node, and how a request comes.
fn pool(house: &std::path::Path) -> (Arc<Pool>, Arc<Node>) {
    let mut settings = Settings::default();
    for name in ["a", "b"] {
        let branch = house.join(name);
        fs::create_dir(&branch).unwrap();
        fs::write(branch.join("f"), name).unwrap();
        settings.add_branches(branch.to_str().unwrap()).unwrap();
    }
    let pool = Pool::new(settings).unwrap();
    let entry = lookup::lookup(&pool, NodeId::ROOT, OsStr::new("f")).unwrap();
    let node = pool.node(entry.node).unwrap();
    (pool, node)
}

#[test]
fn an_open_that_fails_in_the_end_leaves_no_mode_behind() {
    let house = tempfile::tempdir().unwrap();
    let (pool, node) = pool(house.path());
    let view = Arc::clone(&pool.view());
    let stands_in_for = Some(Errno::IO.into());
    let open = || {
        let found = open::open_stand_in(
            &pool,
            &request_of(0),
            (&view, &node),
            libc::O_RDONLY,
            Errno::IO.into(),
        );
        let (branch, file, stat) = found.unwrap();
        assert!(node.open.lock().is_none(), "open without a handle");
        let found = OpenedCopy {
            branch,
            file,
            mode: u32::from(stat.stx_mode),
            share: pool.files.admit(0).unwrap(),
            stands_in_for,
            made: false,
        };
        open::register(&pool, &request_of(0), &view, &node, found, libc::O_RDONLY)
    };
    let reply = open().unwrap();
    let opened = pool.files.get(reply.handle).unwrap();
    assert_eq!(opened.opened_on().unwrap().0.id.0, 1);
    drop(opened);
    let release = Release {
        handle: reply.handle,
        flags: 0,
        flock_owner: None,
        flush: false,
    };
    open::release(&pool, &release).unwrap();
    assert!(node.open.lock().is_none());
    // The kernel forgets the file while it is being opened.
    forget::unref(&pool, &node, 1);
    assert_eq!(open().err(), Some(Errno::STALE.into()));
    assert!(node.open.lock().is_none(), "open without a handle");
}

/// A node that is open through the server, and its handle.
#[cfg(debug_assertions)]
fn opened_by_the_server(house: &std::path::Path) -> (Arc<Node>, Arc<OpenFile>) {
    let (pool, node) = pool(house);
    let read_only = Open {
        flags: libc::O_RDONLY,
        kill_suidgid: false,
    };
    let reply = open::open(&pool, &request_of(0), node.id, &read_only).unwrap();
    let opened = pool.files.get(reply.handle).unwrap();
    (node, opened)
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "a node is open in two modes")]
fn a_node_is_open_in_one_mode() {
    let house = tempfile::tempdir().unwrap();
    let (node, opened) = opened_by_the_server(house.path());
    let mut open = node.open.lock();
    open.as_mut().unwrap().add(&opened, Some(BackingId(7)));
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "open handles")]
fn a_handle_is_released_once() {
    let house = tempfile::tempdir().unwrap();
    let (node, opened) = opened_by_the_server(house.path());
    let mut open = node.open.lock();
    let state = open.as_mut().unwrap();
    state.remove(&opened);
    state.remove(&opened);
}
