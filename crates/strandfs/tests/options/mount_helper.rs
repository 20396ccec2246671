//! The ways through mount(8): fstab lines, both types, named configurations, remounts, users.

use crate::need_root;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::files::{errno, get, put};
use crate::support::system::{Automount, Daemons, System, helper};
use crate::support::{Pool, Run, mounts, run, strandfs};
use strandfs_options::table::{Status, find};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// How many pools are mounted on each other here.
fn depth(mountpoint: &Path) -> usize {
    let list = mounts::list();
    let here = list
        .iter()
        .filter(|(path, kind, _)| path == mountpoint && kind == "fuse.strandfs");
    here.count()
}

fn flags(mountpoint: &Path) -> String {
    run("findmnt", ["-n", "-o", "OPTIONS", text(mountpoint)])
        .ok()
        .stdout
}

#[test]
fn a_line_of_mergerfs_mounts_with_only_its_type_changed() {
    need_root!();
    let pool = Pool::tmpfs(3).prepare();
    let (a, b, c) = (pool.on(0, ""), pool.on(1, ""), pool.on(2, ""));
    put(b.join("old"), "kept");
    // Refused by versions that do not move files yet.
    let moves = find("moveonenospc").is_some_and(|(option, _)| option.status == Status::Active);
    let moving = if moves { "moveonenospc=true," } else { "" };
    let line = format!(
        "{a}:{b}=RO:{c}=NC,10M {root} strandfs cache.files=auto-full,category.create=mfs,\
         {moving}minfreespace=4M,fsname=pool,dropcacheonclose=true,func.getattr=newest,use_ino,\
         allow_other,nofail 0 0\n",
        a = a.display(),
        b = b.display(),
        c = c.display(),
        root = pool.root().display(),
    );
    let _system = System::new(&pool, &line);
    let _daemons = Daemons::at(pool.root());
    let mounted = run("mount", ["-a"]).ok();
    assert!(
        mounted
            .stderr
            .contains("option use_ino: obsolete and ignored"),
        "a note: {mounted:?}"
    );
    assert_eq!(depth(pool.root()), 1);
    put(pool.path("new"), "written");
    assert_eq!(pool.holders("new"), [0], "neither RO nor NC takes it");
    assert_eq!(get(pool.path("old")), b"kept");
    let source = run("findmnt", ["-n", "-o", "SOURCE", text(pool.root())]).ok();
    assert_eq!(source.stdout.trim(), "pool");
    let status = pool.status();
    assert_eq!(status.options["func.getattr"], "newest");
    assert_eq!(status.origins["func.getattr"], "fstab");
    assert_eq!(status.origins["func.open"], "default");
    // As often as one likes; libmount does not recognise the line by its source.
    run("mount", ["-a"]).ok();
    assert_eq!(depth(pool.root()), 1);
    // Everything else is told what is there.
    let again = run("mount", [text(pool.root())]);
    assert_eq!((again.code(), depth(pool.root())), (32, 1), "{again:?}");
    assert!(again.stderr.contains("mounted here already"), "{again:?}");
    run("umount", [text(pool.root())]).ok();
}

#[test]
fn every_word_for_mount_is_understood() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let line = format!(
        "{} {} fuse.strandfs auto,nofail,_netdev,x-systemd.requires=/,x-systemd.automount,\
         x-gvfs-show,X-mount.mkdir,comment=pool,users,minfreespace=0,ro,noatime,exec 0 0\n",
        pool.on(0, "").display(),
        pool.root().display(),
    );
    let system = System::new(&pool, &line);
    let _daemons = Daemons::at(pool.root());
    run("mount", ["-a", "-v"]).ok();
    let flags = flags(pool.root());
    for flag in ["ro", "nosuid", "nodev", "noatime"] {
        assert!(
            flags.split(',').any(|word| word == flag),
            "{flag} in {flags}"
        );
    }
    assert!(!flags.contains("noexec"), "{flags}");
    let refused = errno(fs::write(pool.path("f"), "x"));
    assert_eq!(refused, rustix::io::Errno::ROFS);
    run("umount", [text(pool.root())]).ok();
    // As mount.fuse3 of libfuse starts it where there is no helper of our own.
    system.remove_helper("mount.fuse.strandfs");
    if crate::support::command::have("mount.fuse3") {
        run("mount", [text(pool.root())]).ok();
        assert_eq!(depth(pool.root()), 1);
    }
}

#[test]
fn a_name_stands_for_its_configuration() {
    need_root!();
    let pool = Pool::tmpfs(2).prepare();
    let root = pool.root().display();
    let system = System::new(
        &pool,
        &format!("media {root} strandfs defaults,nofail 0 0\n"),
    );
    let _daemons = Daemons::at(pool.root());
    let missing = run("mount", [text(pool.root())]);
    assert_eq!(missing.code(), 1, "{missing:?}");
    assert!(
        missing.stderr.contains("/etc/strandfs/media.toml"),
        "{missing:?}"
    );
    let toml = format!(
        "# all of it\nbranches = ['{}', {{ path = '{}', mode = 'NC' }}]\nminfreespace = 0\n\
         ro = true\n[cache]\nattr = '7s'\n",
        pool.on(0, "").display(),
        pool.on(1, "").display()
    );
    system.write("strandfs/media.toml", &toml);
    run("mount", [text(pool.root())]).ok();
    // mount(8) writes a `rw` that is in no line; the file decides.
    assert!(
        flags(pool.root()).starts_with("ro,"),
        "{}",
        flags(pool.root())
    );
    let shown = strandfs(["config", "show", text(pool.root()), "--origin"]).ok();
    assert!(
        shown
            .stdout
            .contains("\"cache.attr\" = \"7s\"  # /etc/strandfs/media.toml:6\n"),
        "{shown:?}"
    );
    // Root's mounts by mount(8) honour set-user-id bits and devices, as those of any filesystem.
    assert!(
        !flags(pool.root()).contains("nosuid"),
        "{}",
        flags(pool.root())
    );
    run("umount", [text(pool.root())]).ok();
    // Options in fstab override the file.
    system.write(
        "fstab",
        &format!("media {root} strandfs cache.attr=9s 0 0\n"),
    );
    run("mount", ["-a"]).ok();
    assert_eq!(pool.status().options["cache.attr"], "9s");
    // Where a directory has that name, mount(8) hands its path over.
    run("umount", [text(pool.root())]).ok();
    fs::create_dir(pool.outside("media")).unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.arg(pool.root()).current_dir(pool.outside(""));
    let mounted = mount.output().unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    assert_eq!(pool.status().branches.len(), 2, "{mounted:?}");
}

#[test]
fn the_helper_ends_as_mount_expects() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let _daemons = Daemons::at(pool.root());
    let (branch, root) = (pool.on(0, ""), text(pool.root()).to_owned());
    let branch = text(&branch);
    let call = |args: &[&str]| -> Run { run(&helper(&pool), args) };
    let said = |args: &[&str], code: i32, part: &str| {
        let run = call(args);
        assert_eq!((run.code(), depth(pool.root())), (code, 0), "{run:?}");
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    };
    said(&[branch], 1, "Usage");
    said(
        &[branch, &root, "-o", "categroy.create=mfs"],
        1,
        "category.create",
    );
    said(&[branch, &root, "-o", "cache.attr=1x"], 1, "cache.attr");
    said(&[branch, &root, "-t", "ext4"], 1, "strandfs");
    said(&["/none", &root], 32, "/none");
    said(&[branch, "/none"], 32, "/none");
    said(&[branch, &root, "-N", "/none"], 32, "namespace");
    // Fake, and sloppy.
    said(&[branch, &root, "-f"], 0, "");
    said(&[branch, &root, "-fo", "nonsense=1"], 1, "nonsense");
    said(&[branch, &root, "-sfo", "nonsense=1"], 0, "nonsense");
    let pid = std::process::id().to_string();
    let verbose = call(&[
        branch,
        &root,
        "-n",
        "-v",
        "-N",
        &format!("/proc/{pid}/ns/mnt"),
    ]);
    // The namespace of the test's main thread is not that of the test: nothing shows here.
    assert_eq!(depth(pool.root()), 0, "{verbose:?}");
    assert!(verbose.stdout.contains("mounted on"), "{verbose:?}");
    let unmount = ["-t", &pid, "-m", "umount", &root];
    run("nsenter", unmount).ok();
    call(&[branch, &root, "-o", "nofail,rw"]).ok();
    assert_eq!(depth(pool.root()), 1);
}

/// The disks of fstab were not there yet, and the pool wrote to the directories beneath without a word.
#[test]
fn a_branch_that_fstab_mounts_something_on_is_named_when_nothing_is_there() {
    need_root!();
    let pool = Pool::tmpfs(2).prepare();
    let [there, bare] = [0, 1].map(|number| pool.on(number, "").canonicalize().unwrap());
    mounts::detach(&bare);
    let line = |path: &Path| format!("disk {} tmpfs defaults 0 0\n", path.display());
    let _system = System::new(&pool, &(line(&there) + &line(&bare)));
    let _daemons = Daemons::at(pool.root());
    let mount = || {
        let said = strandfs(pool.mount_args(&[])).ok().stderr;
        run("umount", [text(pool.root())]).ok();
        said
    };
    let said = mount();
    let named = |path: &Path| format!("x-systemd.requires-mounts-for={}", path.display());
    assert!(said.contains(&named(&bare)), "{said}");
    assert!(!said.contains(&named(&there)), "{said}");
    put(bare.join(".strandfs.branch"), "");
    let said = mount();
    assert!(!said.contains(&named(&bare)), "it belongs there: {said}");
}

/// Options had been changed when the kernel refused the flags.
#[test]
fn a_remount_that_the_kernel_refuses_changes_nothing() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let before = pool.status().options["cache.attr"].clone();
    let writer = fs::File::create(pool.path("f")).unwrap();
    let helper = helper(&pool);
    let change = "remount,ro,cache.attr=7";
    let remount = || run(&helper, ["none", text(pool.root()), "-o", change]);
    let refused = remount();
    assert_ne!(refused.code(), 0, "{refused:?}");
    assert_eq!(pool.status().options["cache.attr"], before);
    drop(writer);
    crate::support::eventually("it is closed", std::time::Duration::from_secs(20), || {
        remount().code() == 0
    });
    assert_eq!(pool.status().options["cache.attr"], "7s");
    assert!(flags(pool.root()).starts_with("ro"));
}

/// Has a pool of one branch mounted with these options by its line in fstab. What is returned is dropped in
/// order, before the pool.
fn mounted_by_fstab(pool: &Pool, options: &str) -> (Daemons, System) {
    let (branch, root) = (pool.on(0, ""), pool.root());
    let line = format!(
        "{} {} strandfs {options} 0 0\n",
        branch.display(),
        root.display()
    );
    let system = System::new(pool, &line);
    let daemons = Daemons::at(root);
    run("mount", ["-a"]).ok();
    (daemons, system)
}

#[test]
fn a_remount_changes_flags_and_what_can_change_while_mounted() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let _mounted = mounted_by_fstab(&pool, "cache.attr=5,func.getattr=newest");
    let root = text(pool.root());
    put(pool.path("f"), "x");
    run("mount", ["-o", "remount,ro,nosuid", root]).ok();
    assert!(
        flags(pool.root()).starts_with("ro,nosuid"),
        "{}",
        flags(pool.root())
    );
    assert_eq!(
        errno(fs::write(pool.path("f"), "y")),
        rustix::io::Errno::ROFS
    );
    run("mount", ["-o", "remount,rw", root]).ok();
    fs::write(pool.path("f"), "y").unwrap();
    run(
        "mount",
        ["-o", "remount,category.create=ff,cache.entry=3s", root],
    )
    .ok();
    let options = &pool.status().options;
    assert_eq!(
        (&options["func.mkdir"], &options["cache.entry"]),
        (&"ff".into(), &"3s".into())
    );
    assert_eq!(options["func.getattr"], "newest", "as fstab has it");
    let refused = run("mount", ["-o", "remount,fsname=other,cache.entry=4s", root]);
    assert_eq!(refused.code(), 32, "{refused:?}");
    assert!(refused.stderr.contains("fsname"), "{refused:?}");
    let slip = run("mount", ["-o", "remount,cache.atr=1", root]);
    assert!(slip.stderr.contains("cache.attr"), "{slip:?}");
    assert_eq!(pool.status().options["cache.attr"], "5s");
    // What neither fstab nor the remount names stays.
    assert_eq!(pool.status().options["cache.entry"], "3s");
}

#[test]
fn a_remount_with_sync_or_dirsync_reaches_the_server() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let _mounted = mounted_by_fstab(&pool, "defaults");
    let root = text(pool.root());
    let shown = || {
        let status = pool.status();
        ["sync", "dirsync"].map(|name| status.options[name] == "true")
    };
    assert_eq!(shown(), [false, false]);
    run("mount", ["-o", "remount,sync,dirsync", root]).ok();
    assert_eq!(shown(), [true, true]);
    // A remount leaves the kernel's own dirsync alone, of any filesystem.
    assert!(
        flags(pool.root()).contains(",sync"),
        "{}",
        flags(pool.root())
    );
    run("mount", ["-o", "remount,async", root]).ok();
    assert_eq!(shown(), [false, true]);
    assert!(!flags(pool.root()).contains(",sync"));
    // What the server was told otherwise stays.
    strandfs(["set", root, "sync=true"]).ok();
    run("mount", ["-o", "remount,noexec", root]).ok();
    assert_eq!(shown(), [true, true]);
}

/// Packages may install the helper as a copy or a hard link instead of a symlink.
#[test]
fn a_helper_that_is_a_copy_of_the_program_mounts() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let _daemons = Daemons::at(pool.root());
    let copy = pool.outside("copy");
    fs::create_dir(&copy).unwrap();
    let copy = copy.join("mount.strandfs");
    fs::copy(crate::support::command::binary(), &copy).unwrap();
    for setuid in ["", ",setuid=root"] {
        let options = format!("minfreespace=0{setuid}");
        let branch = pool.on(0, "");
        run(
            text(&copy),
            [text(&branch), text(pool.root()), "-o", &options],
        )
        .ok();
        assert!(mounts::is_mounted(pool.root()));
        run("umount", [pool.root()]).ok();
    }
}

#[test]
fn an_automount_point_is_mounted_while_its_visitor_waits() {
    need_root!();
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap();
    if !filesystems.contains("autofs") {
        crate::support::say("skipped: needs autofs in the kernel (mount_helper)");
        return;
    }
    let pool = Pool::tmpfs(1).prepare();
    put(pool.on(0, "f"), "there");
    let _daemons = Daemons::at(pool.root());
    let point = Automount::at(pool.root());
    let mut visitor = Command::new("cat");
    visitor.arg(pool.path("f")).stdout(Stdio::piped());
    // Another group than that of the mount, which alone may look at the mountpoint now.
    let visitor = visitor.process_group(0).spawn().unwrap();
    let request = point.request();
    let branch = pool.on(0, "");
    run(
        &helper(&pool),
        [text(&branch), text(pool.root()), "-o", "nofail"],
    )
    .ok();
    point.answer(request);
    let read = visitor.wait_with_output().unwrap();
    assert_eq!(read.stdout, b"there");
}
