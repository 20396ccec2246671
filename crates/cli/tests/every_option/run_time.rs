//! The ways to change a pool that is mounted.

use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use strandfs_options::table::OptionDef;

use super::{active, values};
use crate::need_root;
use crate::support::Pool;

/// The options that are set, each with its value. What every mount has is changed elsewhere.
fn assignments(pool: &Pool) -> Vec<(&'static OptionDef, String)> {
    active()
        .filter(|option| values::round(option.name).is_some())
        .map(|option| (option, values::value(option, pool)))
        .collect()
}

fn read(file: &Path, key: &str) -> Result<String, Errno> {
    let mut value = vec![0; 65_536];
    let length = getxattr(file, key, &mut value)?;
    value.truncate(length);
    Ok(String::from_utf8(value).unwrap())
}

#[test]
fn every_option_is_set_through_the_control_file() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    for (file, prefix) in [
        (".strandfs", "user.strandfs."),
        (".mergerfs", "user.mergerfs."),
    ] {
        let file = pool.path(file);
        for (option, value) in assignments(&pool) {
            let key = format!("{prefix}{}", option.name);
            let before = read(&file, &key).unwrap();
            let set = |value: &str| setxattr(&file, &key, value.as_bytes(), XattrFlags::empty());
            if !option.run_time {
                assert_eq!(set(&value), Err(Errno::ROFS), "{key}={value}");
                assert_eq!(read(&file, &key).unwrap(), before, "{key}");
                continue;
            }
            assert_eq!(set(&value), Ok(()), "{key}={value}");
            let shown = pool.status()["options"][option.name].clone();
            assert_eq!(shown, values::canonical(option.name, &value), "{key}");
            // Under the prefix of mergerfs numbers are bare; what is read can be set again.
            let now = read(&file, &key).unwrap();
            assert_ne!(now, before, "{key}");
            assert_eq!(set(&now), Ok(()), "{key}={now}");
            assert_eq!(pool.status()["options"][option.name], shown, "{key}");
            assert_eq!(set(&before), Ok(()), "{key}={before}");
        }
    }
}
