//! Commands that root runs on what another user has mounted.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::people::{MALLORY, act_as, command_as};
use crate::support::system::System;
use crate::support::system::{Daemons, pool_of, program};
use crate::support::{Pool, mounts, patient, run, strandfs};
use crate::{need_root, need_tool};

const NONBLOCK: SocketFlags = SocketFlags::NONBLOCK;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server that a user runs may answer whatever she likes: where its control socket is, and which
/// file the pool was made from. Root's commands change nothing because of such answers.
#[test]
fn root_sends_no_change_to_the_pool_of_another_user_and_saves_none() {
    need_root!();
    need_tool!("fusermount3", "setpriv");
    let (pool, system) = pool_of(MALLORY);
    // fusermount3 asks for her name.
    let known = fs::read_to_string("/etc/passwd").unwrap();
    system.write(
        "passwd",
        &format!("{known}mallory:x:{MALLORY}:{MALLORY}::/:/bin/sh\n"),
    );
    let root = pool.root();
    let _daemons = Daemons::at(root);
    let program = program(&pool);
    let file = pool.outside("hers.toml");
    let branch = pool.on(0, "");
    let toml = format!(
        "branches = [\"{}\"]\nminfreespace = \"0\"\nallow-other = true\n",
        text(&branch)
    );
    fs::write(&file, &toml).unwrap();
    let user = MALLORY.to_string();
    let mallory = [format!("--reuid={user}"), format!("--regid={user}")];
    let mount = [
        "--clear-groups",
        text(&program),
        "mount",
        text(&file),
        text(root),
    ];
    let mount = mallory.iter().map(String::as_str).chain(mount);
    run("setpriv", mount).ok();
    assert!(mounts::is_mounted(root));

    let attempts: [&[&str]; 5] = [
        &["set", "--save", text(root), "minfreespace=1M"],
        &["set", text(root), "minfreespace=1M"],
        &["branch", "add", text(root), "/etc"],
        &["branch", "remove", text(root), text(&branch)],
        &["reload", text(root)],
    ];
    for words in attempts {
        let done = run(text(&program), words);
        assert_eq!(done.code(), 8, "{words:?}: {done:?}");
        let why = format!("was mounted by user {MALLORY}, whose server is not trusted");
        assert!(done.stderr.contains(&why), "{words:?}: {}", done.stderr);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), toml);
    // Looking is allowed, and so is ending it.
    let status = run(text(&program), ["status", text(root)]).ok();
    assert!(
        status.stdout.contains("minfreespace=0"),
        "{}",
        status.stdout
    );
    run(text(&program), ["umount", text(root)]).ok();
}

/// Mounts here, in Mallory's name, what nobody will ever serve; the connection lasts as long as what
/// is returned.
fn mount_without_server(pool: &Pool, system: &System, options: &str) -> UnixStream {
    let known = fs::read_to_string("/etc/passwd").unwrap();
    let mallory = format!("{known}mallory:x:{MALLORY}:{MALLORY}::/:/bin/sh\n");
    // fusermount3 asks for her name.
    system.write("passwd", &mallory);
    let (held, theirs) = UnixStream::pair().unwrap();
    let status = command_as(MALLORY, "fusermount3")
        .args(["-o", options, "--", text(pool.root())])
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .status()
        .unwrap();
    assert!(status.success());
    assert!(mounts::any_below(pool.root()));
    held
}

#[test]
fn the_pool_of_another_user_that_never_answers_holds_up_no_look_at_all_pools() {
    need_root!();
    need_tool!("fusermount3");
    for kind in ["strandfs", "mergerfs"] {
        let (pool, system) = pool_of(MALLORY);
        let _daemons = Daemons::at(pool.root());
        let options = format!("subtype={kind},allow_other");
        let _held = mount_without_server(&pool, &system, &options);
        let status = run(text(&program(&pool)), ["status"]);
        let doctor = run(text(&program(&pool)), ["doctor"]);
        assert!(
            !doctor.stdout.contains(text(pool.root())),
            "{}",
            doctor.stdout
        );
        let says = format!("not asked: mounted by user {MALLORY}");
        assert_eq!(
            status.stdout.contains(&says),
            kind == "strandfs",
            "{}",
            status.stdout
        );
    }
}

/// Whoever mounts with fusermount3 chooses the type that is shown and what it is said to be of.
/// Here Mallory mounts what passes for the server of root's volume; were it believed, root would make
/// the block device, and mount what is on it, from her bytes.
#[test]
fn a_volume_that_another_user_mounted_is_not_taken_for_roots() {
    need_root!();
    need_tool!("fusermount3", "losetup", "mkfs.ext4");
    let (pool, system) = pool_of(MALLORY);
    let backing = pool.outside("roots.img");
    let file = fs::File::create(&backing).unwrap();
    file.set_len(8 << 20).unwrap();
    let program = program(&pool);
    let forged = pool.root();
    let _daemons = Daemons::at(forged);
    let options = format!(
        "fsname={},subtype=strandfs-volume,allow_other",
        text(&backing)
    );
    let _held = mount_without_server(&pool, &system, &options);

    let attached = run(
        text(&program),
        ["volume", "attach", "--mkfs", "ext4", text(&backing)],
    )
    .ok();
    let device = attached.stdout.trim().to_owned();
    let below = fs::read_to_string(format!(
        "/sys/block/{}/loop/backing_file",
        device.trim_start_matches("/dev/")
    ));
    run(text(&program), ["volume", "detach", &device]).ok();
    let below = below.unwrap();
    assert!(
        !below.starts_with(text(forged)),
        "{device} is made of {below}"
    );
    let detached = run(text(&program), ["volume", "detach", text(forged)]);
    assert!(
        detached.stderr.contains("is no volume"),
        "{}",
        detached.stderr
    );
}

/// Sockets of Mallory's that take no connections, for as long as they are kept.
fn crowded_sockets(names: impl Iterator<Item = String> + Send) -> Vec<OwnedFd> {
    act_as(MALLORY, || {
        let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, NONBLOCK, None);
        let mut kept = Vec::new();
        for name in names {
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            let (listening, waiting) = (socket().unwrap(), socket().unwrap());
            bind(&listening, &name).unwrap();
            listen(&listening, 0).unwrap();
            connect(&waiting, &name).unwrap();
            assert_eq!(connect(socket().unwrap(), &name), Err(Errno::AGAIN));
            kept.extend([listening, waiting]);
        }
        kept
    })
}

/// Everybody may give sockets the names that control sockets have, with the number of root's server in them.
#[test]
fn sockets_of_others_with_the_number_of_a_server_hold_up_no_command() {
    need_root!();
    let mut pool = Pool::tmpfs(1).option("xattr=nosys").mount();
    let pid = pool.pid();
    let names = (0..30).map(|number| format!("strandfs/control/{pid}/{number:032x}"));
    let _sockets = crowded_sockets(names);
    let began = Instant::now();
    strandfs(["set", text(pool.root()), "cache.attr=7s"]).ok();
    assert_eq!(pool.status().options["cache.attr"], "7s");
    strandfs(["metrics", text(pool.root())]).ok();
    strandfs(["umount", text(pool.root())]).ok();
    let took = began.elapsed();
    assert!(took < patient(Duration::from_secs(20)), "{took:?}");
    assert!(pool.wait_for_exit(Duration::from_secs(10)).is_some());
}

/// Names of sockets are any bytes.
#[test]
fn a_socket_whose_name_is_no_text_hides_no_server() {
    need_root!();
    let mut pool = Pool::tmpfs(1).mount();
    let _socket = act_as(MALLORY, || {
        let name = SocketAddrUnix::new_abstract_name(b"mallory\xff").unwrap();
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, NONBLOCK, None).unwrap();
        bind(&socket, &name).unwrap();
        socket
    });
    let other = pool.outside("other");
    fs::create_dir(&other).unwrap();
    rustix::mount::mount_bind(pool.root(), &other).unwrap();
    // Only of a server that was found it is known that it goes on.
    let unmounted = strandfs(["umount", text(pool.root())]);
    mounts::detach(&other);
    assert_eq!(unmounted.code(), 3, "{unmounted:?}");
    assert!(pool.wait_for_exit(Duration::from_secs(10)).is_some());
}
