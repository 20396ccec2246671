//! Records of moves and renames that somebody forged.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::forgery::{Forger, record_name};
use crate::need_root;
use crate::people::{ALICE, MALLORY, act_as};
use crate::support::command::binary;
use crate::support::files::{get, names, put};
use crate::support::{Kind, Pool, mounts, strandfs};

/// How the forger came to write a branch's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Everybody may.
    OpenRoot,
    /// It is theirs.
    OwnRoot,
    /// A disk that they prepared where they are root, with a key of their own.
    Disk,
    /// The same, with the number of this machine's key.
    DiskWithOurKeysNumber,
}

/// When the server meets the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    AtMount,
    AtBranchAdd,
}

/// Everything below a directory but the pool's own control file: path, inode, owner and content.
fn tree(dir: &Path) -> Vec<(PathBuf, u64, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for name in names(&at) {
            let path = at.join(name);
            let stat = path.symlink_metadata().unwrap();
            let content = if stat.is_file() {
                get(&path)
            } else {
                Vec::new()
            };
            all.push((path.clone(), stat.ino(), stat.uid(), content));
            if stat.is_dir() {
                left.push(path);
            }
        }
    }
    all.sort();
    all
}

/// One forged record and what it speaks of.
struct Planted {
    root: PathBuf,
    next: u64,
    way: Way,
    forger: Forger,
}

impl Planted {
    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.root.join(name);
        put(&path, content);
        path
    }

    /// A record with the part that belongs to it, which the forger fills.
    fn record(&mut self, part: Option<&str>, intent: impl FnOnce(&Forger, &Path) -> Vec<u8>) {
        let name = record_name(self.next);
        let part_name = format!("{name}.part");
        self.next += 1;
        let part_path = self.root.join(&part_name);
        if let Some(content) = part {
            put(&part_path, content);
            chown(&part_path, Some(MALLORY), Some(MALLORY)).unwrap();
        }
        let intent = intent(&self.forger, &part_path);
        let bytes = self.forger.sealed(&name, &self.root, &part_name, &intent);
        let path = self.root.join(name);
        match self.way {
            Way::OpenRoot | Way::OwnRoot => act_as(MALLORY, || fs::write(&path, bytes).unwrap()),
            Way::Disk | Way::DiskWithOurKeysNumber => fs::write(&path, bytes).unwrap(),
        }
        let mode = Permissions::from_mode(0o600);
        fs::set_permissions(&path, mode).unwrap();
    }
}

/// Forges each kind of record on the branch at `root`; how many there are.
fn plant(root: &Path, honest: &Path, victim: &Path, way: Way, forger: Forger) -> usize {
    let next = if forger.earlier { 1 } else { 101 };
    let tag = next;
    let mut planted = Planted {
        root: root.to_owned(),
        next,
        way,
        forger,
    };
    // The way from the branch's root to what is nobody's business there.
    let out = format!(
        "../{}",
        victim
            .strip_prefix(root.parent().unwrap())
            .unwrap()
            .display()
    );
    let evil = planted.file(&format!("evil{tag}"), "evil");
    let decisive = format!("decisive{tag}");
    planted.file(&decisive, "there");
    // A rename: of two ways to one file the first goes.
    planted.record(None, |forger, _| {
        let other = out.replacen("../", ".././", 1);
        forger.a_rename(&out, &other, victim)
    });
    // Set aside: our file becomes one outside.
    planted.record(Some("new"), |forger, part| {
        forger.an_aside(&format!("{out}.new"), part, root, &decisive)
    });
    // Interrupted: two names change places.
    planted.record(None, |forger, _| {
        let name = format!("evil{tag}");
        forger.an_undo(root, (&out, victim), (&name, &evil))
    });
    // A copy of its own: what has the part's name changes places with the victim.
    planted.record(Some("swapped in"), |forger, _| {
        forger.an_own_copy(&out, root, victim, &evil)
    });
    // A move: the original on another branch goes, since the copy is here.
    let copy = planted.file("secret", "mine now");
    planted.record(None, |forger, _| {
        forger.a_move("secret", honest, &honest.join("secret"), &copy)
    });
    // One that had only begun, in a directory that leads elsewhere.
    planted.record(Some("x"), |forger, _| {
        let dir = Path::new(&out).parent().unwrap().display().to_string();
        forger.a_begun_move(&dir)
    });
    // And one with nothing but good names.
    planted.record(Some("x"), |forger, _| forger.a_begun_move(""));
    7
}

fn attack(way: Way, when: When) {
    let mut pool = Pool::tmpfs(1).option("category.create=ff").prepare();
    let (disk, outside) = (pool.outside("disk"), pool.outside("private"));
    fs::create_dir(&disk).unwrap();
    mounts::make_branch(&disk, Kind::Tmpfs("8m"));
    let _disk = Unmount(disk.clone());
    fs::create_dir(disk.join("outside")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::set_permissions(&outside, Permissions::from_mode(0o700)).unwrap();
    // On the filesystem of the branch, or no rename leads there: a branch is a directory of a disk.
    let (root, victim) = (disk.join("branch"), disk.join("outside/victim"));
    fs::create_dir(&root).unwrap();
    put(&victim, "root's");
    let honest = pool.on(0, "");
    put(honest.join("secret"), "alice's");
    chown(honest.join("secret"), Some(ALICE), Some(ALICE)).unwrap();
    fs::set_permissions(honest.join("secret"), Permissions::from_mode(0o600)).unwrap();
    // The key that this machine has, whose number anybody can read in a record.
    pool.start();
    let number = pool.status().records.key;
    pool.stop();
    match way {
        Way::OpenRoot => fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap(),
        Way::OwnRoot => chown(&root, Some(MALLORY), Some(MALLORY)).unwrap(),
        Way::Disk | Way::DiskWithOurKeysNumber => {}
    }
    let key_id = number.filter(|_| way == Way::DiskWithOurKeysNumber);
    let mut count = 0;
    for earlier in [true, false] {
        let forger = Forger {
            earlier,
            key_id: key_id.clone(),
        };
        count += plant(&root, &honest, &victim, way, forger);
    }
    let everywhere = || [&disk, &honest, &outside].map(|dir| tree(dir));
    let before = everywhere();
    let branch = root.display().to_string();
    if when == When::AtMount {
        pool.add_option(&format!("branches=+>{branch}"));
    }
    let mountpoint = pool.root().to_str().unwrap().to_owned();
    pool.start();
    if when == When::AtBranchAdd {
        strandfs(["branch", "add", &mountpoint, &branch]).ok();
    }
    let context = format!("{way:?}, {when:?}");
    let shown = pool.status();
    let left = shown.records.left_alone.len();
    let text = strandfs(["status", &mountpoint]).stdout;
    let listed = strandfs(["records", "list", &branch]);
    let log = pool.log();
    pool.stop();
    for (now, was) in everywhere().iter().zip(&before) {
        assert_eq!(now, was, "{context}\n{log}");
    }
    assert_eq!(left, count, "{context}\n{shown:#}");
    // Of a line that comes again and again the log keeps the first ones.
    assert!(
        log.matches("is left alone").count() >= 7,
        "{context}\n{log}"
    );
    assert!(text.contains("strandfs records list"), "{text}");
    assert_eq!(listed.code(), 3, "{listed:?}");
    assert_eq!(
        listed.stdout.matches("left alone").count(),
        count,
        "{listed:?}"
    );
}

/// Takes the test's own mount away.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        mounts::detach(&self.0);
    }
}

#[test]
fn forged_records_in_a_root_that_everybody_may_write_move_nothing() {
    need_root!();
    attack(Way::OpenRoot, When::AtMount);
    attack(Way::OpenRoot, When::AtBranchAdd);
}

#[test]
fn forged_records_in_a_root_of_the_users_own_move_nothing() {
    need_root!();
    attack(Way::OwnRoot, When::AtMount);
    attack(Way::OwnRoot, When::AtBranchAdd);
}

#[test]
fn forged_records_on_a_disk_prepared_elsewhere_move_nothing() {
    need_root!();
    for way in [Way::Disk, Way::DiskWithOurKeysNumber] {
        attack(way, When::AtMount);
        attack(way, When::AtBranchAdd);
    }
}

/// What is no file at all has a record's name: nobody waits for it, opens it or follows it.
#[test]
fn what_is_no_file_but_has_a_records_name_is_left_alone() {
    need_root!();
    let mut pool = Pool::tmpfs(1).prepare();
    let outside = pool.outside("outside");
    put(&outside, "kept");
    let at = |number| pool.on(0, record_name(number));
    symlink(&outside, at(1)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at(2),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    fs::create_dir(at(3)).unwrap();
    put(pool.on(0, "file"), "");
    fs::hard_link(pool.on(0, "file"), at(4)).unwrap();
    put(at(5), vec![b'x'; 1 << 20]);
    put(at(6), "");
    chown(at(6), Some(MALLORY), Some(MALLORY)).unwrap();
    let paths: Vec<PathBuf> = (1..=6).map(at).collect();
    pool.start();
    let left = pool.status().records.left_alone.len();
    assert_eq!(left, 6, "{}", pool.log());
    pool.stop();
    for path in paths {
        assert!(path.symlink_metadata().is_ok(), "{path:?}");
    }
    assert_eq!(get(&outside), b"kept");
}

/// A user fills a root with names of records: they are counted, not told one by one.
#[test]
fn ten_thousand_forged_records_do_not_fill_the_log() {
    need_root!();
    let mut pool = Pool::tmpfs(1).prepare();
    for number in 0..10_000 {
        put(
            pool.on(0, record_name(number)),
            "strandfs move 2\n0\n\nend\n",
        );
    }
    pool.start();
    let lines = pool.log().lines().count();
    assert!(lines < 100, "{lines} lines");
    assert!(pool.log().contains("further records"), "{}", pool.log());
    pool.stop();
}

/// As in the bare directory under a mountpoint.
#[test]
fn a_marker_that_any_user_can_make_marks_no_branch() {
    need_root!();
    let mut pool = Pool::tmpfs(1).option("branch-marker=.mark").prepare();
    let root = pool.on(0, "");
    fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
    act_as(MALLORY, || fs::write(root.join(".mark"), "").unwrap());
    let refused = |pool: &Pool| {
        let options = pool.options();
        let mut command = std::process::Command::new(binary());
        command
            .args(["mount", "-f", "-o", &options])
            .arg(&root)
            .arg(pool.root());
        let out = command.output().unwrap();
        assert!(!out.status.success());
        String::from_utf8_lossy(&out.stderr).contains("has no .mark")
    };
    assert!(refused(&pool));
    fs::remove_file(root.join(".mark")).unwrap();
    act_as(MALLORY, || {
        let name = "user..mark";
        rustix::fs::setxattr(&root, name, b"1", rustix::fs::XattrFlags::empty()).unwrap();
    });
    assert!(refused(&pool));
    put(root.join(".mark"), "");
    pool.start();
    pool.stop();
}
