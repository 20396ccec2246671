//! What mounts say of access times. The kernel's FUSE keeps none itself: reads through the pool set them as
//! the branch's mount says, whatever the pool's says.

use std::path::Path;

use strandfs_options::Settings;

/// What a mount says of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessTimes {
    noatime: bool,
    relatime: bool,
    lazytime: bool,
}

impl AccessTimes {
    /// By the options of a mount and of its filesystem, as the kernel lists them.
    pub(super) fn of(options: &str, of_filesystem: &str) -> AccessTimes {
        let has = |list: &str, name| list.split(',').any(|word| word == name);
        AccessTimes {
            noatime: has(options, "noatime"),
            relatime: has(options, "relatime"),
            lazytime: has(of_filesystem, "lazytime"),
        }
    }
}

/// For the user, which options of the pool's mount have no effect on which branches. `relatime`, which the
/// kernel's list has for every mount that says nothing, is left out, and `nodiratime`, which holds always:
/// the server reads directories without setting their access time.
pub(super) fn without_effect<'a>(
    settings: &Settings,
    branches: impl Iterator<Item = (&'a Path, AccessTimes)> + Clone,
) -> Vec<String> {
    type Holds = fn(&AccessTimes) -> bool;
    let given = &settings.mount.flags;
    let wishes: [(bool, &str, Holds); 3] = [
        (given.noatime, "noatime", |is| is.noatime),
        (given.strictatime, "strictatime", |is| {
            !is.noatime && !is.relatime
        }),
        (given.lazytime, "lazytime", |is| is.lazytime),
    ];
    let wishes = wishes.into_iter().filter(|(given, ..)| *given);
    let said = wishes.filter_map(|(_, name, holds)| {
        let others = branches.clone().filter(|(_, is)| !holds(is));
        let others: Vec<String> = others.map(|(path, _)| path.display().to_string()).collect();
        (!others.is_empty()).then(|| {
            format!(
                "{name} has no effect: access times are kept as the mounts of the branches say, and \
                 not so on {}; mount these {name}",
                others.join(", ")
            )
        })
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_branches_do_not_do_is_said_once_for_each_option() {
        let branches = [
            ("/a", AccessTimes::of("rw,noatime", "rw,lazytime")),
            ("/b", AccessTimes::of("rw,relatime", "rw")),
            ("/c", AccessTimes::of("rw", "rw")),
        ];
        let branches = branches.iter().map(|(path, is)| (Path::new(path), *is));
        let said = |options: &str| {
            let mut settings = Settings::default();
            settings.parse_mount_options(options).unwrap();
            let said = without_effect(&settings, branches.clone());
            let on = said.iter().filter_map(|line| line.split_once("not so on "));
            on.map(|(_, rest)| rest.to_owned()).collect::<Vec<_>>()
        };
        assert!(said("relatime").is_empty() && said("").is_empty());
        assert_eq!(said("noatime"), ["/b, /c; mount these noatime"]);
        assert_eq!(said("strictatime"), ["/a, /b; mount these strictatime"]);
        assert_eq!(
            said("nodiratime,lazytime"),
            ["/b, /c; mount these lazytime"]
        );
    }
}
