//! Nonsense sent to a serving pool's control file: refused or obeyed, the pool serves on.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::support::files::{get, put};
use crate::support::{Pool, say};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use strandfs_options::TABLE;

/// Not fed with nonsense: what names files and directories anywhere, and what makes the pool answer
/// with something else than is asked for.
const LEFT_OUT: [&str; 5] = ["branches", "log.file", "config", "nullrw", "xattr"];

#[test]
fn nonsense_in_the_control_file_harms_nobody() {
    let pool = Pool::tmpfs(2).mount();
    put(pool.path("f"), "served");
    let control = pool.path(".strandfs");
    let mut words: Vec<&str> = TABLE.iter().map(|option| option.example).collect();
    words.extend([
        "true",
        "off",
        "-1",
        "99999999999999999999",
        "\0",
        "user.mergerfs.",
        "cmd.gc",
    ]);
    let options: Vec<&str> = TABLE
        .iter()
        .map(|option| option.name)
        .filter(|name| !LEFT_OUT.contains(name))
        .collect();
    let corpus = "epmfs\n5m\n4G/5%\nauto-full\n0\n";
    let mut number: usize = 0;
    let mut accepted = 0;
    strandfs_fuzz::check("control file of a pool", corpus, &words, |input| {
        number += 1;
        let name = format!("user.strandfs.{}", options[number % options.len()]);
        if setxattr(&control, name.as_str(), input, XattrFlags::empty()).is_ok() {
            accepted += 1;
            // What it became is a value it takes.
            let mut value = vec![0; 8192];
            let length = getxattr(&control, name.as_str(), &mut value[..]).unwrap();
            setxattr(
                &control,
                name.as_str(),
                &value[..length],
                XattrFlags::empty(),
            )
            .unwrap();
        }
        // The nonsense as a name.
        let mut name = b"user.strandfs.".to_vec();
        name.extend(input.iter().take(200).filter(|byte| **byte != 0));
        let known = LEFT_OUT.iter().any(|path| name.ends_with(path.as_bytes()));
        if !known {
            let _ = setxattr(
                &control,
                OsStr::from_bytes(&name),
                b"x",
                XattrFlags::empty(),
            );
            let _ = getxattr(&control, OsStr::from_bytes(&name), &mut [0u8; 64][..]);
        }
        if number.is_multiple_of(64) {
            assert_eq!(get(pool.path("f")), b"served");
        }
    });
    say(&format!(
        "control file: {number} values, {accepted} accepted"
    ));
    assert!(accepted > 0, "some of it makes sense");
    assert_eq!(get(pool.path("f")), b"served");
    pool.status();
}
