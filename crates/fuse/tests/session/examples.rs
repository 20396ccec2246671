//! Each example is mounted, used as its head says, and unmounted. (`hello` is used by most other tests
//! of this binary.)

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::thread;
use std::time::{Duration, Instant};

use strandfs_fuse::{UnmountMode, unmount};

use crate::support::{Mountpoint, Server, can_mount, eventually};

/// Unmounts it; what the example said about its life, after how it ended.
fn unmounted(mut server: Server, mountpoint: &Mountpoint) -> String {
    unmount(mountpoint.path(), UnmountMode::IfUnused).unwrap();
    server.end(mountpoint);
    let last = server.line();
    let rest = last.strip_prefix("ended: Unmounted");
    rest.unwrap_or_else(|| panic!("{last}")).to_owned()
}

#[test]
fn memory_keeps_files_directories_and_links() {
    if !can_mount() {
        return;
    }
    let mountpoint = Mountpoint::new();
    let server = Server::start_example("memory", &mountpoint, &[]);
    let at = |name: &str| mountpoint.file(name);
    let long: Vec<u8> = (0..300_000_u32).map(|byte| byte as u8).collect();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), &long).unwrap();
    assert!(fs::read(at("d/f")).unwrap() == long);
    fs::hard_link(at("d/f"), at("g")).unwrap();
    assert_eq!(fs::metadata(at("g")).unwrap().nlink(), 2);
    symlink("d/f", at("s")).unwrap();
    assert!(fs::read(at("s")).unwrap() == long);
    fs::set_permissions(at("g"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(at("d/f")).unwrap().mode(), 0o100_600);

    let refused = fs::remove_dir(at("d")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty);
    fs::rename(at("d/f"), at("d/moved")).unwrap();
    assert!(fs::metadata(at("d/f")).is_err());
    fs::remove_file(at("d/moved")).unwrap();
    fs::remove_dir(at("d")).unwrap();
    let names = fs::read_dir(mountpoint.path()).unwrap();
    let names: HashSet<_> = names.map(|found| found.unwrap().file_name()).collect();
    assert_eq!(names, HashSet::from(["g".into(), "s".into()]));

    let mut options = File::options();
    let mut open = options.read(true).write(true).open(at("g")).unwrap();
    fs::remove_file(at("g")).unwrap();
    open.write_all(b"deleted").unwrap();
    let mut start = [0; 7];
    open.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"deleted");
    drop(open);
    unmounted(server, &mountpoint);
}

#[test]
fn passthrough_shows_a_directory_and_sees_none_of_its_data() {
    if !can_mount() {
        return;
    }
    let (mountpoint, directory) = (Mountpoint::new(), tempfile::tempdir().unwrap());
    let long = vec![7; 1 << 20];
    fs::write(directory.path().join("f"), &long).unwrap();
    fs::create_dir(directory.path().join("not shown")).unwrap();
    let of = directory.path().to_str().unwrap();
    let server = Server::start_example("passthrough", &mountpoint, &[of]);
    let names = fs::read_dir(mountpoint.path()).unwrap();
    let names: Vec<_> = names.map(|found| found.unwrap().file_name()).collect();
    assert_eq!(names, ["f"]);
    let mut options = File::options();
    let mut file = options
        .read(true)
        .write(true)
        .open(mountpoint.file("f"))
        .unwrap();
    let second = File::open(mountpoint.file("f")).unwrap();
    file.write_all(b"written").unwrap();
    let mut all = Vec::new();
    (&second).read_to_end(&mut all).unwrap();
    assert!(all[..7] == *b"written" && all[7..] == long[7..]);
    assert!(fs::read(directory.path().join("f")).unwrap() == all);
    drop((file, second));
    fs::write(mountpoint.file("f"), "short").unwrap();
    assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"short");
    let said = unmounted(server, &mountpoint);
    // As where the directory's filesystem can be the target of passthrough.
    if kernel_passes_through() {
        assert_eq!(said, ", 0 reads and writes seen");
    }
}

/// Linux 6.9 and later.
fn kernel_passes_through() -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 9)
}

#[test]
fn notifications_bring_what_is_new_though_all_is_cached() {
    if !can_mount() {
        return;
    }
    let mountpoint = Mountpoint::new();
    let server = Server::start_example("notifications", &mountpoint, &[]);
    let count = || -> u64 {
        let text = fs::read_to_string(mountpoint.file("count")).unwrap();
        text.trim().parse().unwrap()
    };
    let first = count();
    eventually("the number to grow", || count() >= first + 2);
    let is_there = || fs::metadata(mountpoint.file("odd")).is_ok();
    eventually("the name to come", is_there);
    eventually("the name to go", || !is_there());
    let mut names = HashSet::new();
    eventually("listings with the name and without", || {
        names.insert(fs::read_dir(mountpoint.path()).unwrap().count());
        names == HashSet::from([1, 2])
    });
    // Far more often than it changes.
    let (began, mut reads) = (Instant::now(), 0_u64);
    while began.elapsed() < Duration::from_millis(500) {
        count();
        reads += 1;
    }
    thread::sleep(Duration::from_millis(10));
    let said = unmounted(server, &mountpoint);
    let seen = said
        .strip_prefix(", ")
        .and_then(|said| said.split_once(' '));
    let seen: u64 = seen.unwrap().0.parse().unwrap();
    eprintln!("{seen} requests, and {reads} reads at the end alone");
    assert!(seen < reads, "{seen} requests for {reads} reads");
}

#[test]
fn readdirplus_spares_the_lookups() {
    if !can_mount() {
        return;
    }
    let mountpoint = Mountpoint::new();
    let server = Server::start_example("readdirplus", &mountpoint, &[]);
    let mut inodes = HashSet::new();
    for found in fs::read_dir(mountpoint.path()).unwrap() {
        inodes.insert(found.unwrap().metadata().unwrap().ino());
    }
    assert_eq!(inodes.len(), 1000);
    let said = unmounted(server, &mountpoint);
    let number = |place: usize| -> u64 {
        let part = said.split(", ").nth(place).unwrap();
        part.split(' ').next().unwrap().parse().unwrap()
    };
    assert!(number(1) < 100, "{said}");
    assert!(number(2) < 100, "{said}");
}

#[test]
fn io_uring_serves_reads_and_says_how_they_come() {
    if !can_mount() {
        return;
    }
    let switch = "/sys/module/fuse/parameters/enable_uring";
    let switched_on = fs::write(switch, "Y").is_ok();
    let mountpoint = Mountpoint::new();
    let server = Server::start_example("io_uring", &mountpoint, &[]);
    let transport = server.line();
    let expected = if switched_on {
        "io_uring with "
    } else {
        "/dev/fuse: "
    };
    assert!(transport.starts_with(expected), "{transport}");
    let path = mountpoint.file("zeros");
    thread::scope(|scope| {
        for reader in 0..8 {
            let file = File::open(&path).unwrap();
            scope.spawn(move || {
                let mut block = [1; 4096];
                for number in 0..500 {
                    let at = (8 * number + reader) * block.len() as u64;
                    file.read_exact_at(&mut block, at).unwrap();
                    assert!(block == [0; 4096]);
                    block.fill(1);
                }
            });
        }
    });
    let mut end = [1; 8];
    let file = File::open(&path).unwrap();
    assert_eq!(file.read_at(&mut end, (1 << 30) - 3).unwrap(), 3);
    drop(file);
    unmounted(server, &mountpoint);
}
