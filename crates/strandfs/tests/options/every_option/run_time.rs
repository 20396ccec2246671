//! The ways to change a pool that is mounted.

use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use strandfs_options::table::OptionDef;

use super::{active, assert_read_back, values};
use crate::need_root;
use crate::support::{Pool, strandfs};

/// The options that are set, each with its value. What every mount has is changed elsewhere, and
/// setting `config` is the command to read a file, not a change of the option.
fn assignments(pool: &Pool) -> Vec<(&'static OptionDef, String)> {
    active()
        .filter(|option| option.name != "config")
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
            let shown = pool.status().options[option.name].clone();
            assert_eq!(shown, values::canonical(option.name, &value), "{key}");
            // Under the prefix of mergerfs numbers are bare; what is read can be set again.
            let now = read(&file, &key).unwrap();
            assert_ne!(now, before, "{key}");
            assert_eq!(set(&now), Ok(()), "{key}={now}");
            assert_eq!(pool.status().options[option.name], shown, "{key}");
            assert_eq!(set(&before), Ok(()), "{key}={before}");
        }
    }
}

#[test]
fn every_option_is_set_through_the_control_socket() {
    need_root!();
    for round in 0..values::ROUNDS {
        let pool = Pool::tmpfs(2).mount();
        let root = pool.root().to_str().unwrap();
        let all = super::assignments(&pool, round);
        let find = |name: &str| strandfs_options::table::find(name).unwrap().0;
        let (live, fixed): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(name, _)| find(name).run_time);
        let mut args = vec!["set".to_owned(), root.to_owned()];
        args.extend(live.iter().map(|(name, value)| format!("{name}={value}")));
        if !live.is_empty() {
            strandfs(args).ok();
            assert_read_back(&pool, &live);
        }
        // One that cannot change is refused, with all that stands beside it.
        let before = pool.status().options.clone();
        for (name, value) in fixed {
            let item = format!("{name}={value}");
            let refused = strandfs(["set", root, "cache.attr=77s", &item]);
            assert_eq!(refused.code(), 2, "{item}: {refused:?}");
            assert!(refused.stderr.contains(name), "{item}: {refused:?}");
        }
        assert_eq!(pool.status().options, before);
    }
}
