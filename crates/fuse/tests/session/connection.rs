//! Notifications and backing files.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use strandfs_fuse::{Connection, End, Errno, NodeId};

use crate::lab::{Bench, CACHED, FAST};
use crate::support::{can_mount, on_each_transport};

#[test]
fn invalidated_attributes_are_asked_again() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 4);
        let path = bench.mountpoint.file("fast");
        assert_eq!(fs::metadata(&path).unwrap().len(), 7);
        *bench.lab.content.lock().unwrap() = b"longer content".to_vec();
        assert_eq!(
            fs::metadata(&path).unwrap().len(),
            7,
            "from the kernel's cache"
        );
        bench.connection().invalidate_inode(FAST, -1, 0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 14);
        assert_eq!(bench.finish(), End::Unmounted);
    });
}

#[test]
fn invalidated_names_are_looked_up_again() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new(4);
    let path = bench.mountpoint.file("fast");
    let mut expected = 0;
    let look = |expected: usize| {
        fs::metadata(&path).unwrap();
        assert_eq!(bench.lab.lookups.load(Ordering::SeqCst), expected);
    };
    let connection = bench.connection();
    let invalidations: [&dyn Fn() -> Result<(), Errno>; 4] = [
        &|| connection.invalidate_entry(NodeId::ROOT, "fast".as_ref()),
        &|| connection.expire_entry(NodeId::ROOT, "fast".as_ref()),
        &|| connection.delete_entry(NodeId::ROOT, FAST, "fast".as_ref()),
        &|| connection.increment_epoch(),
    ];
    for invalidate in invalidations {
        expected += 1;
        look(expected);
        look(expected);
        match invalidate() {
            // This kernel is older than the notification.
            Err(Errno::INVAL) => expected -= 1,
            result => result.unwrap(),
        }
    }
    look(expected + 1);
    assert_eq!(bench.finish(), End::Unmounted);
}

#[test]
fn what_the_kernel_does_not_know_is_invalid_already() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new(4);
    let connection = bench.connection();
    let unknown = NodeId(4711);
    connection.invalidate_inode(unknown, 0, 0).unwrap();
    connection.invalidate_entry(unknown, "x".as_ref()).unwrap();
    connection.expire_entry(NodeId::ROOT, "x".as_ref()).unwrap();
    connection
        .delete_entry(NodeId::ROOT, unknown, "x".as_ref())
        .unwrap();
    connection.store(unknown, 0, b"x").unwrap();
    connection.wake_poll(4711).unwrap();
    connection.resend().unwrap();
    assert_eq!(connection.retrieve(unknown, 0, 1), Err(Errno::NOENT));
    match connection.prune(&[FAST, unknown]) {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => panic!("{errno}"),
    }
    assert_eq!(bench.finish(), End::Unmounted);
}

#[test]
fn stored_data_is_read_from_the_page_cache_and_retrieved() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 4);
        let path = bench.mountpoint.file("cached");
        let file = File::open(&path).unwrap();
        let mut content = [0; 7];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"content");
        let connection = bench.connection();
        assert_eq!(connection.retrieve(CACHED, 0, 7).unwrap(), b"content");
        connection.store(CACHED, 3, b"TENT").unwrap();
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"conTENT");
        assert_eq!(connection.retrieve(CACHED, 2, 5).unwrap(), b"nTENT");
        drop(file);
        let connection = connection.clone();
        assert_eq!(bench.finish(), End::Unmounted);
        assert_eq!(connection.retrieve(CACHED, 0, 7), Err(Errno::NOTCONN));
    });
}

#[test]
fn a_backing_file_is_read_without_the_server() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new(4);
    let connection = bench.connection();
    let mut backing = tempfile::tempfile().unwrap();
    backing.write_all(b"from below").unwrap();
    backing.seek(SeekFrom::Start(0)).unwrap();
    let id = match connection.open_backing(backing.as_fd()) {
        Ok(id) => id,
        Err(Errno::NOTTY) => {
            eprintln!("SKIPPED: this kernel has no passthrough");
            return;
        }
        Err(errno) => panic!("{errno}"),
    };
    drop(backing);
    *bench.lab.backing.lock().unwrap() = Some(id);
    let file = File::open(bench.mountpoint.file("through")).unwrap();
    connection.close_backing(id);
    let mut content = [0; 10];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"from below");
    drop(file);

    let device = File::open("/dev/null").unwrap();
    assert_eq!(connection.open_backing(device.as_fd()), Err(Errno::INVAL));
    assert_eq!(bench.finish(), End::Unmounted);
}

#[test]
fn a_connection_over_nothing_serves_unit_tests() {
    let null = File::options().write(true).open("/dev/null").unwrap();
    let connection = Connection::from_device(Arc::new(null.into()));
    connection.invalidate_inode(FAST, 0, 0).unwrap();
    connection.expire_entry(NodeId::ROOT, "x".as_ref()).unwrap();
    let file = tempfile::tempfile().unwrap();
    assert_eq!(connection.open_backing(file.as_fd()), Err(Errno::NOTTY));
}
