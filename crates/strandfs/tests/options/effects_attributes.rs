//! Options about attributes and permissions, by what programs then see and what the kernel asks.

use crate::{need_root, need_tool};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::support::files::{errno, get, name_to_handle, open_by_handle, put};
use crate::support::traffic::requests_of as requests;
use crate::support::{Kind, Pool, run};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr, statvfs};
use rustix::io::Errno;

/// Two files on one branch, the first with attributes.
fn with_attributes(options: &str) -> Pool {
    let mut pool = Pool::tmpfs(1).option(options).prepare();
    put(pool.on(0, "f"), "x");
    let file = pool.on(0, "f");
    setxattr(&file, "user.a", b"value", XattrFlags::empty()).unwrap();
    setxattr(&file, CAPABILITY, &capability(), XattrFlags::empty()).unwrap();
    pool.start();
    pool
}

const CAPABILITY: &str = "security.capability";

/// CAP_NET_RAW, permitted, in the second revision of the form.
fn capability() -> [u8; 20] {
    let mut value = [0; 20];
    value[..4].copy_from_slice(&0x0200_0000_u32.to_le_bytes());
    value[4..8].copy_from_slice(&(1_u32 << 13).to_le_bytes());
    value
}

fn read(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 256];
    let length = getxattr(path, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

#[test]
fn xattr_says_what_attribute_calls_see() {
    need_root!();
    let all = |options: &str| {
        let pool = with_attributes(options);
        let file = pool.path("f");
        let mut list = vec![0; 256];
        let listed = listxattr(&file, &mut list);
        let outcomes = (
            read(&file, "user.a").map(|value| value.len()),
            setxattr(&file, "user.b", b"x", XattrFlags::empty()),
            removexattr(&file, "user.a"),
        );
        (outcomes, listed.map(|length| length > 0))
    };
    let works = ((Ok(5), Ok(()), Ok(())), Ok(true));
    assert_eq!(all("xattr=passthrough"), works);
    let (none, not) = (Errno::NODATA, Errno::OPNOTSUPP);
    let empty = ((Err(none), Err(none), Err(none)), Ok(false));
    assert_eq!(all("xattr=noattr"), empty);
    let refused = ((Err(not), Err(not), Err(not)), Err(not));
    assert_eq!(all("xattr=nosys"), refused);
}

#[test]
fn security_capability_is_passed_on_or_not() {
    need_root!();
    for (options, passed) in [
        ("security-capability=true", true),
        ("security-capability=false", false),
    ] {
        let pool = with_attributes(options);
        let file = pool.path("f");
        let set = setxattr(&file, CAPABILITY, &capability(), XattrFlags::empty());
        let found = read(&file, CAPABILITY);
        if passed {
            assert_eq!((set, found), (Ok(()), Ok(capability().to_vec())));
        } else {
            assert_eq!((set, found), (Err(Errno::NODATA), Err(Errno::NODATA)));
        }
        assert_eq!(read(&file, "user.a").unwrap(), b"value", "{options}");
    }
}

/// Runs a shell line as a user without rights.
fn as_nobody(line: &str) -> crate::support::Run {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    run("setpriv", user.iter().chain(&["sh", "-c", line]))
}

#[test]
fn kernel_permissions_check_keeps_strangers_out() {
    need_root!();
    need_tool!("setpriv");
    for (options, checked) in [
        ("kernel-permissions-check=true", true),
        ("kernel-permissions-check=false,posix-acl=false", false),
    ] {
        let mut pool = Pool::tmpfs(1).option(options).prepare();
        put(pool.on(0, "secret"), "x");
        let mode = PermissionsExt::from_mode(0o600);
        fs::set_permissions(pool.on(0, "secret"), mode).unwrap();
        pool.start();
        let seen = as_nobody(&format!("cat {}", pool.path("secret").display()));
        assert_eq!(seen.status.success(), !checked, "{options}: {seen:?}");
        assert_eq!(seen.stdout == "x", !checked, "{options}: {seen:?}");
    }
}

#[test]
fn export_support_finds_files_by_handle() {
    need_root!();
    let pool = with_attributes("export-support=true");
    let handle = name_to_handle(&pool.path("f")).unwrap();
    let file = open_by_handle(pool.root(), &handle, libc::O_RDONLY).unwrap();
    assert_eq!(crate::support::files::read_all(&file).unwrap(), b"x");
    let pool = with_attributes("export-support=false");
    // Without it there is no handle that could be opened.
    assert_eq!(errno(name_to_handle(&pool.path("f"))), Errno::OPNOTSUPP);
    assert_eq!(get(pool.path("f")), b"x");
}

#[test]
fn statfs_ignore_leaves_out_the_free_space_of_closed_branches() {
    need_root!();
    let free_mib = |option: &str| {
        let pool = Pool::build()
            .branch(Kind::Tmpfs("8m"), "=RW")
            .branch(Kind::Tmpfs("16m"), "=RO")
            .branch(Kind::Tmpfs("32m"), "=NC")
            .option(option)
            .mount();
        let stat = statvfs(pool.root()).unwrap();
        let mib = |blocks: u64| (blocks * stat.f_frsize) >> 20;
        assert_eq!(mib(stat.f_blocks), 56, "the size stays the size");
        mib(stat.f_bavail)
    };
    assert_eq!(free_mib("statfs-ignore=none"), 56);
    assert_eq!(free_mib("statfs-ignore=ro"), 40);
    assert_eq!(free_mib("statfs-ignore=nc"), 8);
}

/// Without passthrough, where the kernel would have to look after set-id bits itself.
const CACHED: &str = "passthrough.io=off,cache.files=full";

#[test]
fn handle_killpriv_v2_spares_a_question_before_each_write() {
    need_root!();
    let asked = |option: &str| {
        let pool = Pool::tmpfs(1).option(CACHED).option(option).mount();
        put(pool.path("f"), "");
        let mut file = OpenOptions::new()
            .append(true)
            .open(pool.path("f"))
            .unwrap();
        let before = requests(&pool, "getxattr");
        (0..20).for_each(|_| file.write_all(b"x").unwrap());
        requests(&pool, "getxattr") - before
    };
    // Asking for the status asks once itself.
    assert!(asked("handle-killpriv-v2=false") >= 20);
    assert!(asked("handle-killpriv-v2=true") < 5);
}

#[test]
fn set_id_bits_fall_whoever_clears_them() {
    need_root!();
    need_tool!("setpriv");
    let set_mode = |path: &Path| {
        fs::set_permissions(path, PermissionsExt::from_mode(0o6777)).unwrap();
    };
    for caching in ["off", "full"] {
        for (v1, v2) in [(true, false), (false, false), (false, true)] {
            let options = format!(
                "passthrough.io=off,cache.files={caching},handle-killpriv={v1},handle-killpriv-v2={v2}"
            );
            let mut pool = Pool::tmpfs(1).option(&options).prepare();
            for name in ["written", "cut", "emptied"] {
                put(pool.on(0, name), "xxxx");
                set_mode(&pool.on(0, name));
            }
            put(pool.on(0, "roots"), "x");
            set_mode(&pool.on(0, "roots"));
            pool.start();
            let line = "cd \"$0\"; echo y >> written; truncate -s 1 cut; : > emptied";
            as_nobody(&line.replace("$0", pool.root().to_str().unwrap())).ok();
            let mode = |name: &str| fs::metadata(pool.on(0, name)).unwrap().mode() & 0o7777;
            for name in ["written", "cut", "emptied"] {
                assert_eq!(mode(name), 0o777, "{name} with {options}");
            }
            // Root keeps them, as on any filesystem.
            let mut file = OpenOptions::new()
                .append(true)
                .open(pool.path("roots"))
                .unwrap();
            file.write_all(b"y").unwrap();
            assert_eq!(mode("roots"), 0o6777, "{options}");
        }
    }
}

#[test]
fn handle_killpriv_is_agreed_with_the_kernel_or_not() {
    need_root!();
    for (options, expected) in [
        ("", vec!["handle_killpriv_v2"]),
        ("handle-killpriv-v2=false", vec!["handle_killpriv"]),
        ("handle-killpriv=false", vec!["handle_killpriv_v2"]),
        ("handle-killpriv-v2=false,handle-killpriv=false", vec![]),
    ] {
        let pool = Pool::tmpfs(1).option(options).mount();
        let features = pool.connection().features;
        let found: Vec<&String> = features
            .iter()
            .filter(|feature| feature.starts_with("handle_killpriv"))
            .collect();
        assert_eq!(found, expected, "{options}");
    }
}
