use super::*;
use crate::policy::Policy;
use proptest::prelude::*;
use std::time::Duration;

fn set(name: &str, value: Option<&str>) -> Result<Settings, OptionError> {
    let mut settings = Settings::default();
    settings.set(name, value).map(|_| settings)
}

fn message(name: &str, value: Option<&str>) -> String {
    set(name, value).unwrap_err().to_string()
}

#[test]
fn bare_flags_and_opposites() {
    assert_eq!(
        set("cache.readdir", None).unwrap().caching.readdir,
        Some(true)
    );
    assert!(set("ro", None).unwrap().mount.flags.read_only);
    assert!(!set("rw", None).unwrap().mount.flags.read_only);
    assert!(set("rw", Some("no")).unwrap().mount.flags.read_only);
    assert!(!set("sync_read", None).unwrap().requests.async_read);
    let settings = set("nosuid", None).unwrap();
    assert_eq!(settings.mount.flags.suid, Some(false));
    assert_eq!(settings.get("nosuid").as_deref(), Some("true"));
    assert_eq!(Settings::default().get("nosuid").as_deref(), Some("auto"));
    assert_eq!(set("nosuid", Some("auto")).unwrap(), Settings::default());
}

#[test]
fn refusals_are_one_sentence_with_the_remedy() {
    assert_eq!(
        message("cache.atr", Some("1")),
        "unknown option \"cache.atr\": did you mean cache.attr?"
    );
    assert_eq!(
        message("zzzzzz", None),
        "unknown option \"zzzzzz\": `strandfs mount --help` lists every option"
    );
    assert_eq!(
        message("cache.attr", Some("1.5s")),
        "option cache.attr does not take \"1.5s\": give auto, a whole number of seconds, or one \
         with a unit: 500ms, 30s, 5m, 1h or 1d"
    );
    assert_eq!(
        message("statfs", None),
        "option statfs has no value: write statfs=VALUE, where VALUE is one of base, full"
    );
    assert!(message("threads", Some("+1")).ends_with("leaves the choice to the server"));
    assert!(message("category.create", Some("eplup")).contains("mspmfs"));
    assert!(message("branches", Some("/none")).contains("\"/none\" does not exist"));
}

#[test]
fn obsolete_options_are_accepted_aloud() {
    let mut settings = Settings::default();
    let notices = settings
        .parse_mount_options("use_ino,attr_timeout=5,big_writes,nofail,x-gvfs-show,remember=0")
        .unwrap();
    let said: Vec<String> = notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "option use_ino: obsolete and ignored, inode numbers are always the pool's own",
            "option attr_timeout: obsolete name, cache.attr is set instead",
            "option big_writes: obsolete and ignored, the kernel always does this now",
            "option remember: obsolete and ignored, nodes are found again by handle, so none need \
             be kept in memory",
        ]
    );
    assert_eq!(settings.caching.attr, Some(Duration::from_secs(5)));
    assert_eq!(settings.get("use-ino"), None);
    assert_eq!(settings.get("attr_timeout").as_deref(), Some("5s"));
}

#[test]
fn options_apply_in_order() {
    let mut settings = Settings::default();
    settings
        .parse_mount_options("func.mkdir=all,category.create=mfs,func.create=EPMFS")
        .unwrap();
    assert_eq!(settings.policies.get(Function::Mkdir), Policy::Mfs);
    assert_eq!(settings.policies.get(Function::Create), Policy::EpMfs);
    settings.parse_mount_options("noatime,relatime").unwrap();
    assert!(settings.mount.flags.relatime && !settings.mount.flags.noatime);
}

#[test]
fn an_error_changes_nothing() {
    let mut settings = Settings::default();
    assert!(settings.parse_mount_options("ro,threads=4,nope=1").is_err());
    assert_eq!(settings, Settings::default());
}

#[test]
fn branches_come_from_options_and_arguments() {
    let house = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(house.path()).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    let root = root.to_str().unwrap();
    let mut settings = Settings::default();
    settings
        .parse_mount_options(&format!("branches={root}/a=NC,10G:{root}/b,threads=2"))
        .unwrap();
    settings.add_branches(&format!("{root}/c=ro")).unwrap();
    let text = settings.get("branches").unwrap();
    assert_eq!(text, format!("{root}/a=NC,10G:{root}/b=RW:{root}/c=RO"));
    assert_eq!(settings.pool.source_name(), "a:b:c");
    settings.set("branches", Some("->")).unwrap();
    settings.set("branches", Some("-<")).unwrap();
    assert_eq!(settings.pool.source_name(), format!("{root}/b"));
    settings.set("fsname", Some("pool")).unwrap();
    assert_eq!(settings.pool.source_name(), "pool");
    assert!(settings.add_branches(&format!("{root}/b")).is_err());
    let before = Settings::default();
    assert_eq!(before.pool.source_name(), "");
}

#[test]
fn fixed_options_refuse_to_change_while_mounted() {
    let mut settings = Settings::default();
    settings.set_at_run_time("cache.attr", Some("2")).unwrap();
    settings.set_at_run_time("attr-timeout", Some("3")).unwrap();
    for name in ["threads", "ro", "rw", "fsname"] {
        let refused = settings.set_at_run_time(name, Some("1"));
        assert!(
            matches!(refused, Err(OptionError::NotAtRunTime { .. })),
            "{name}"
        );
    }
    assert!(settings.set_at_run_time("nope", None).is_err());
}

#[test]
fn conflicts_are_refused_or_told() {
    let check = |options: &str| {
        let mut settings = Settings::default();
        settings.parse_mount_options(options).unwrap();
        settings.check()
    };
    assert_eq!(check(""), Ok(vec![]));
    assert_eq!(check("cache.writeback").unwrap().len(), 1);
    assert_eq!(check("nullrw,passthrough.io=off"), Ok(vec![]));
    assert_eq!(
        check("nullrw,passthrough.io=ro").unwrap_err().to_string(),
        "nullrw=true and passthrough.io=ro exclude each other (data in passthrough never reaches \
         the server): remove one of them"
    );
    assert_eq!(check("default_permissions=no").unwrap().len(), 1);
    assert_eq!(
        check("default_permissions=no,posix-acl=no").unwrap().len(),
        1
    );
}

proptest! {
    #[test]
    fn no_value_panics(index in 0..TABLE.len(), value in "\\PC*|[0-9.]{0,30}[a-zA-Z%/]{0,3}") {
        let option = &TABLE[index];
        // A random branch list could be a wildcard over the whole machine.
        if option.name != "branches" {
            let mut settings = Settings::default();
            if settings.set(option.name, Some(&value)).is_ok()
                && let Some(text) = settings.get(option.name)
            {
                let mut again = Settings::default();
                again.set(option.name, Some(&text)).unwrap();
                prop_assert_eq!(again, settings);
            }
        }
    }

    #[test]
    fn no_option_string_panics(text in "[a-z.=,_\\\\\"]*") {
        let _ = Settings::default().parse_mount_options(&text);
    }
}
