use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

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

/// Opens the copy on the second branch, as if the first had failed to.
fn open_another_copy(pool: &Arc<Pool>, node: &Arc<Node>) -> Result<OpenReply> {
    let view = Arc::clone(&pool.view());
    let failure = Errno::IO.into();
    let (cx, of) = (request_of(0), (&*view, node));
    let found = open::open_stand_in(pool, &cx, of, libc::O_RDONLY, failure);
    let (branch, file, stat) = found.unwrap();
    assert!(node.open.lock().is_none(), "open without a handle");
    let found = OpenedCopy {
        branch,
        file,
        owned: Owned::from(&stat),
        share: pool.files.admit(0).unwrap(),
        stands_in_for: Some(failure),
        made: false,
    };
    open::register(pool, &cx, &view, node, found, libc::O_RDONLY)
}

/// Its mode was changed, and its size, and the caller told that the file's had been.
#[test]
fn while_another_copy_is_read_what_is_done_to_the_file_is_done_to_the_one_that_is_shown() {
    let house = tempfile::tempdir().unwrap();
    let (pool, node) = pool(house.path());
    open_another_copy(&pool, &node).unwrap();
    let own = fs::metadata(house.path().join("a/f")).unwrap();
    let found = locate::locate(&pool, &node).unwrap();
    assert_eq!(found.branch.id.0, 0);
    assert_eq!(sys::statx_fd(found.fd()).unwrap().stx_ino, own.ino());
    drop(found);
    // Once it has lost its name the copy that is read is no more it than before.
    fs::remove_file(house.path().join("a/f")).unwrap();
    let found = locate::locate_shown(&pool, &node);
    assert!(found.is_err(), "another file");
}

#[test]
fn an_open_that_fails_in_the_end_leaves_no_mode_behind() {
    let house = tempfile::tempdir().unwrap();
    let (pool, node) = pool(house.path());
    let open = || open_another_copy(&pool, &node);
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
