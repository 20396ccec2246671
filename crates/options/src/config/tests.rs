use super::*;

fn entries(text: &str) -> Vec<(String, Option<String>, usize)> {
    let file = ConfigFile::parse(Path::new("/etc/strandfs/a.toml"), text).unwrap();
    file.options()
        .map(|(name, value, line)| (name.to_owned(), value.map(str::to_owned), line))
        .collect()
}

fn refused(text: &str) -> Vec<String> {
    let path = Path::new("/x/a.toml");
    let errors = match ConfigFile::parse(path, text) {
        Ok(file) => file.apply(&mut Settings::default()).unwrap_err(),
        Err(errors) => errors,
    };
    errors.to_string().lines().map(str::to_owned).collect()
}

fn one(text: &str) -> (String, Option<String>, usize) {
    let mut found = entries(text);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn keys_are_quoted_dotted_or_in_tables() {
    let expected = |line| ("cache.files".to_owned(), Some("off".to_owned()), line);
    assert_eq!(one("\"cache.files\" = 'off'"), expected(1));
    assert_eq!(one("# why\ncache.files = \"off\""), expected(2));
    assert_eq!(one("[cache]\nfiles = \"off\" # so"), expected(2));
    assert_eq!(one("cache = { files = 'off' }"), expected(1));
    let found = entries("[cache]\nfiles = 'per-process'\n'files.process-names' = ['a', 'b']");
    assert_eq!(found[1].0, "cache.files.process-names");
    assert_eq!(found[1].1.as_deref(), Some("a|b"));
}

#[test]
fn values_have_their_own_types() {
    for (text, value) in [
        ("posix_acl = false", "false"),
        ("threads = 8", "8"),
        ("minfreespace = '4G/5%'", "4G/5%"),
        ("minfreespace = 1_000", "1000"),
        ("cache.attr = 7", "7"),
    ] {
        assert_eq!(one(text).1.as_deref(), Some(value), "{text}");
    }
    for text in [
        "cache.attr = 1.5",
        "cache.attr = 2026-01-01",
        "cache.attr = [1]",
        "[threads]\na = 1",
        "[[threads]]\na = 1",
        "cache.files.process-names = [1]",
    ] {
        let said = refused(text);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("expected"), "{said:?}");
    }
}

#[test]
fn branches_are_taken_literally_unless_asked() {
    let text = |text: &str| one(text).1.unwrap();
    assert_eq!(
        text("branches = ['/a b', '/c:d', '/e*']"),
        "/a b=RW:/c\\:d=RW:/e\\*=RW"
    );
    assert_eq!(
        text("branches = [{ path = '/a', mode = 'nc', minfreespace = '10G' }]"),
        "/a=NC,10G"
    );
    assert_eq!(
        text("branches = [{ path = '/a:*', glob = true }]"),
        "/a\\:*=RW"
    );
    assert_eq!(
        text("[[branches]]\npath = '/a'\n[[branches]]\npath = '/b'\nmode = 'RO'"),
        "/a=RW:/b=RO"
    );
    assert_eq!(text("branches = '/a:/b=RO'"), "/a:/b=RO");
    for (text, word) in [
        ("branches = []", "empty"),
        ("branches = [1]", "path"),
        ("branches = ['a']", "absolute"),
        ("branches = [{ mode = 'RO' }]", "path"),
        ("branches = [{ path = '/a', mod = 'RO' }]", "mean mode"),
        ("branches = [{ path = '/a', mode = 'RX' }]", "RW, RO or NC"),
        ("branches = [{ path = '/a', glob = 1 }]", "true or false"),
        (
            "branches = [{ path = '/a', minfreespace = 'lots' }]",
            "minimum free space",
        ),
    ] {
        let said = refused(text);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("/x/a.toml:1: ") && said[0].contains(word),
            "{said:?}"
        );
    }
}

#[test]
fn slips_are_named_with_their_line_and_the_nearest_name() {
    let said = refused("[cache]\nfile = 'off'\n\n[categroy]\ncreate = 'mfs'\n[func]\n");
    assert_eq!(
        said,
        [
            "/x/a.toml:2: unknown option \"cache.file\": did you mean cache.files?",
            "/x/a.toml:5: unknown option \"categroy.create\": did you mean category.create?",
            "/x/a.toml:6: unknown option \"func\": did you mean one that begins with func., such as func.access?",
        ]
    );
    let said = refused("cache.attr = '1x'\nthreads = -5000\nnofail = true\n");
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said[0].starts_with("/x/a.toml:1: option cache.attr does not take \"1x\""),
        "{said:?}"
    );
    assert!(said[2].contains("mount(8)"), "{said:?}");
    let said = refused("threads = \n");
    assert!(
        said.len() == 1 && said[0].starts_with("/x/a.toml:1: this is not TOML ("),
        "{said:?}"
    );
    let said = refused("attr_timeout = 1\ncache.attr = 2\n");
    assert!(
        said[0].starts_with("/x/a.toml:2: option cache.attr is set twice (also in line 1)"),
        "{said:?}"
    );
}

#[test]
fn categories_come_before_functions_wherever_they_stand() {
    let names: Vec<String> = entries("[func]\nmkdir = 'all'\n[category]\ncreate = 'mfs'\n")
        .into_iter()
        .map(|entry| entry.0)
        .collect();
    assert_eq!(names, ["category.create", "func.mkdir"]);
}

#[test]
fn an_error_applies_nothing() {
    let file = ConfigFile::parse(Path::new("/x/a.toml"), "ro = true\nthreads = -5000\n").unwrap();
    let mut settings = Settings::default();
    assert!(file.apply(&mut settings).is_err());
    assert_eq!(settings, Settings::default());
}

#[test]
fn a_relative_log_file_lies_beside_the_file_that_names_it() {
    for (name, log) in [("a.log", "/x/a.log"), ("/y/a.log", "/y/a.log"), ("", "")] {
        let text = format!("log.file={name}\n");
        let file = ConfigFile::parse(Path::new("/x/a.conf"), &text).unwrap();
        let mut settings = Settings::default();
        file.apply(&mut settings).unwrap();
        assert_eq!(settings.get("log.file").as_deref(), Some(log));
    }
}

#[test]
fn lines_are_as_mergerfs_reads_them() {
    let text = "# comment\n\n cache.attr = 7 \r\nro\nfsname=a=b # no comment\n";
    let file = ConfigFile::parse(Path::new("/x/a.conf"), text).unwrap();
    let found: Vec<_> = file.options().collect();
    assert_eq!(
        found,
        [
            ("cache.attr", Some("7"), 3),
            ("ro", None, 4),
            ("fsname", Some("a=b # no comment"), 5),
        ]
    );
    let refused = ConfigFile::parse(Path::new("/x/a.conf"), "=7\n").unwrap_err();
    assert!(
        refused.to_string().starts_with("/x/a.conf:1: "),
        "{refused}"
    );
}

#[test]
fn only_files_of_text_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let said = |name: &str| {
        ConfigFile::read(&dir.path().join(name))
            .unwrap_err()
            .to_string()
    };
    assert!(said("missing.toml").contains("cannot be read"));
    assert!(said("").contains("this is no file"));
    std::fs::write(dir.path().join("binary.toml"), [0xff, 0xfe]).unwrap();
    assert!(said("binary.toml").contains("UTF-8"));
    std::fs::write(dir.path().join("long.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(said("long.toml").contains("1 MiB"));
}

#[test]
fn sources_are_files_or_branches() {
    assert_eq!(
        place_of("media"),
        Some(PathBuf::from("/etc/strandfs/media.toml"))
    );
    for source in ["/a", "a:b", "a=RO", "a*", "", "..", "{a,b}", "a/b"] {
        assert_eq!(place_of(source), None, "{source}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.toml");
    let name = file.to_str().unwrap();
    assert_eq!(named_by(name), None);
    std::fs::write(&file, "").unwrap();
    assert_eq!(named_by(name), Some(file.clone()));
    assert_eq!(named_by("/nowhere:/nothing"), None);
}

#[test]
fn what_is_written_is_read_back() {
    let written = [
        ("branches", "/a\\:b=RW:/c=NC,10G:/d*=RO"),
        ("cache.files", "off"),
        ("cache.files.process-names", "a|b"),
        ("ro", "true"),
        ("suid", "auto"),
        ("threads", "7"),
        ("fsname", "with \"quotes\" and \\"),
    ];
    let lines: Vec<OptionLine> = written
        .iter()
        .map(|(name, value)| OptionLine {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
            comment: "so\nthat".to_owned(),
        })
        .collect();
    let text = to_toml(&lines);
    let read: Vec<(String, String)> = entries(&text)
        .into_iter()
        .map(|(name, value, _)| (name, value.unwrap()))
        .collect();
    for (name, value) in written {
        assert!(
            read.contains(&(name.to_owned(), value.to_owned())),
            "{name}: {text}"
        );
    }
    assert!(
        text.contains("\"cache.files\" = \"off\"  # so that\n"),
        "{text}"
    );
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "([a-z.'\"\\[\\]{}=,#/0-9 ]|\n)*") {
        let _ = ConfigFile::parse(Path::new("/x/a.toml"), &text);
        let _ = ConfigFile::parse(Path::new("/x/a.conf"), &text);
    }
}
