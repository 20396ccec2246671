use super::*;
use std::collections::HashSet;

fn active() -> impl Iterator<Item = &'static OptionDef> {
    TABLE
        .iter()
        .filter(|option| option.status == Status::Active)
}

#[test]
fn every_name_is_normalised_and_names_one_option() {
    let mut seen = HashSet::new();
    for option in TABLE {
        let names = [option.name]
            .into_iter()
            .chain(option.aliases.iter().copied());
        for name in names.chain(option.opposite) {
            assert!(!name.is_empty() && !name.contains('_'), "{name}");
            assert!(seen.insert(name), "{name} twice");
        }
    }
}

#[test]
fn entries_are_complete() {
    for option in active() {
        assert!(!option.help.is_empty(), "{}", option.name);
        assert!(
            option.help.len() <= 60,
            "{}: help too long for a line",
            option.name
        );
        assert!(!option.help.ends_with('.'), "{}", option.name);
        assert!(!option.example.is_empty(), "{}", option.name);
        assert_ne!(option.group, Group::Compatibility, "{}", option.name);
        for conflict in option.conflicts {
            assert!(find(conflict.with).is_some(), "{}", conflict.with);
        }
    }
    for option in TABLE {
        if let Status::Renamed { to } = option.status {
            assert_eq!(find(to).unwrap().0.status, Status::Active, "{to}");
        }
    }
}

#[test]
fn documented_defaults_are_the_defaults() {
    let settings = Settings::default();
    for option in active() {
        assert_eq!(
            (option.value.get)(&settings),
            option.default,
            "{}",
            option.name
        );
    }
}

#[test]
fn defaults_and_examples_are_accepted_and_read_back() {
    for option in active() {
        if option.name == "branches" {
            // Setting it would ask the filesystem of whoever runs the test.
            crate::branch::parse(option.example).unwrap();
            continue;
        }
        let mut settings = Settings::default();
        (option.value.set)(&mut settings, option.example).unwrap();
        assert_ne!(settings, Settings::default(), "{}: no effect", option.name);
        let text = (option.value.get)(&settings);
        let mut again = Settings::default();
        (option.value.set)(&mut again, &text).unwrap();
        assert_eq!(again, settings, "{}={text}", option.name);
        (option.value.set)(&mut settings, option.default).unwrap();
        assert_eq!(settings, Settings::default(), "{}", option.name);
    }
}

#[test]
fn underscores_are_dashes_and_prefixes_match() {
    assert_eq!(find("posix_acl").unwrap().0.name, "posix-acl");
    assert_eq!(
        find("default_permissions").unwrap().0.name,
        "kernel-permissions-check"
    );
    assert_eq!(find("_netdev").unwrap().0.status, Status::MountWord);
    assert_eq!(
        find("x-systemd.automount").unwrap().0.status,
        Status::MountWord
    );
    assert!(find("x-").is_none());
    assert!(find("").is_none());
    assert!(find("rw").unwrap().1);
}

#[test]
fn slips_get_the_nearest_name() {
    for (slip, meant) in [
        ("cache.file", Some("cache.files")),
        ("catgory.create", Some("category.create")),
        ("cache_attr", Some("cache.attr")),
        ("MINFREESPACE", Some("minfreespace")),
        ("noexce", Some("noexec")),
        ("minfree", Some("minfreespace")),
        ("branch-slow", Some("branch-slow-after")),
        ("min", None),
        ("func", None),
        ("zzzzzz", None),
        ("", None),
    ] {
        assert_eq!(nearest(slip), meant, "{slip}");
    }
}

#[test]
fn what_was_meant_by_a_name_with_too_much_around_it_is_said() {
    let asked = |name: &str| meant(name).unwrap_or_default();
    assert_eq!(
        asked(" minfreespace"),
        "minfreespace, without a blank beside it"
    );
    assert_eq!(asked("category.create:mfs"), "category.create=mfs");
    assert_eq!(asked("pool.branches"), "branches, without pool before it");
    assert!(asked("cache").starts_with("one that begins with cache., such as cache."));
    assert_eq!(asked("cache.atr"), "cache.attr");
    assert_eq!(meant("nonsense"), None);
}
