//! Idmapped mounts of a pool (`mount_setattr(2)`): what mapped users make belongs to the ids they
//! map to, on the pool and on the branch.

use crate::{need_root, need_tool};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::files::{get, put};
use crate::support::people::{MALLORY, act_as};
use crate::support::{Pool, run};

/// `MOUNT_ATTR_IDMAP` of `linux/mount.h`.
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
/// The first id outside of what the namespace calls 0.
const SHIFT: u32 = 100_000;

/// A process in a user namespace that maps 0.. to `SHIFT`..; ended when dropped.
struct Namespace(Child);

impl Namespace {
    fn new() -> io::Result<Namespace> {
        let child = Command::new("unshare")
            .args(["--user", "sleep", "60"])
            .stdin(Stdio::null())
            .spawn()?;
        let namespace = Namespace(child);
        let proc = format!("/proc/{}", namespace.0.id());
        let own = fs::read_link("/proc/self/ns/user")?;
        crate::support::eventually(
            "the user namespace",
            std::time::Duration::from_secs(5),
            || fs::read_link(format!("{proc}/ns/user")).is_ok_and(|link| link != own),
        );
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("{proc}/{map}"), format!("0 {SHIFT} 65536\n"))?;
        }
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Detaches what was mounted there.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Mounts `source` again on `target`, with ids mapped by the namespace.
fn mount_mapped<'a>(source: &Path, target: &'a Path, by: &Namespace) -> io::Result<Mounted<'a>> {
    use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(rustix::fs::CWD, source, flags)?;
    let namespace = fs::File::open(format!("/proc/{}/ns/user", by.0.id()))?;
    // struct mount_attr: attr_set, attr_clr, propagation, userns_fd.
    let attributes = [MOUNT_ATTR_IDMAP, 0, 0, namespace.as_raw_fd() as u64];
    // SAFETY: the descriptor and both pointers are valid for the call, and the size is that of
    // the structure.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    move_mount(
        &tree,
        "",
        rustix::fs::CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?;
    Ok(Mounted(target))
}

#[test]
fn mapped_users_own_what_they_make() {
    need_root!();
    need_tool!("unshare", "setpriv");
    let options = "category.create=rand,allow-idmap=true";
    let pool = Pool::tmpfs(2).option(options).mount();
    fs::set_permissions(pool.root(), PermissionsExt::from_mode(0o1777)).unwrap();
    put(pool.path("mine"), "root's");
    let namespace = Namespace::new().unwrap();
    let target = tempfile::tempdir().unwrap();
    fs::set_permissions(target.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let _mounted = match mount_mapped(pool.root(), target.path(), &namespace) {
        Ok(mounted) => mounted,
        Err(error) => {
            println!("skipped: this kernel does not map ids of FUSE mounts ({error})");
            return;
        }
    };
    let seen = fs::metadata(target.path().join("mine")).unwrap();
    assert_eq!((seen.uid(), seen.gid()), (SHIFT, SHIFT));
    let script = "set -e; cd \"$0\"; umask 022; for n in 1 2 3 4 5 6; do mkdir d$n; \
        echo text > d$n/f; mv d$n/f d$n/g; ln d$n/g d$n/h; ln -s g d$n/s; chmod 640 d$n/g; done";
    let user = format!("--reuid={}", SHIFT + 5);
    let group = format!("--regid={}", SHIFT + 7);
    let place = target.path().to_str().unwrap();
    run(
        "setpriv",
        [&user, &group, "--clear-groups", "sh", "-c", script, place],
    )
    .ok();
    for number in 1..=6 {
        for name in ["", "/g", "/h", "/s"] {
            let name = format!("d{number}{name}");
            let mapped = fs::symlink_metadata(target.path().join(&name)).unwrap();
            let plain = fs::symlink_metadata(pool.path(&name)).unwrap();
            assert_eq!(
                (mapped.uid(), mapped.gid()),
                (SHIFT + 5, SHIFT + 7),
                "{name}"
            );
            assert_eq!((plain.uid(), plain.gid()), (5, 7), "{name}");
            assert_eq!(plain.ino(), mapped.ino());
        }
        assert_eq!(get(pool.path(format!("d{number}/h"))), b"text\n");
        let mode = fs::metadata(pool.path(format!("d{number}/g")))
            .unwrap()
            .mode();
        assert_eq!(mode & 0o7777, 0o640);
    }
}

#[test]
fn without_the_option_no_ids_are_mapped() {
    need_root!();
    need_tool!("unshare");
    let pool = Pool::tmpfs(1).option("allow-idmap=false").mount();
    let namespace = Namespace::new().unwrap();
    let target = tempfile::tempdir().unwrap();
    assert!(mount_mapped(pool.root(), target.path(), &namespace).is_err());
}

/// Anybody can have an idmapped mount of a FUSE filesystem of their own, in a user namespace: it makes them no
/// strangers, of whom the kernel's word would be taken that was given before a file was closed behind the pool.
#[test]
fn who_has_an_idmapped_mount_of_another_filesystem_is_known_all_the_same() {
    need_root!();
    need_tool!("unshare");
    let stale = "coherence=timeout,cache.attr=300,cache.entry=300";
    let (pool, other) = (Pool::tmpfs(1).option(stale).mount(), Pool::tmpfs(1).mount());
    let namespace = Namespace::new().unwrap();
    let target = tempfile::tempdir().unwrap();
    let _mounted = match mount_mapped(other.root(), target.path(), &namespace) {
        Ok(mounted) => mounted,
        Err(error) => {
            println!("skipped: this kernel does not map ids of FUSE mounts ({error})");
            return;
        }
    };
    let file = pool.path("f");
    put(&file, "root's");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    act_as(MALLORY, || drop(fs::File::open(&file).unwrap()));
    fs::set_permissions(pool.on(0, "f"), PermissionsExt::from_mode(0o600)).unwrap();
    let tried = act_as(MALLORY, || fs::read(&file));
    assert_eq!(
        tried.map_err(|error| error.kind()),
        Err(io::ErrorKind::PermissionDenied)
    );
}
