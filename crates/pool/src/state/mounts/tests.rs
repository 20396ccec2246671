use super::*;

fn known(key: u64, foreign: bool, forbids: Forbids) -> Known {
    Known {
        key,
        id: key,
        forbids,
        foreign,
        is_pool: false,
        is_some_pool: false,
        roots: SmallVec::new(),
        pin: None,
    }
}

fn stat_on(key: u64) -> Statx {
    let dir = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
    let mut stat = look(dir.as_fd()).unwrap();
    stat.stx_mnt_id = key;
    stat.stx_mask |= UNIQUE.bits();
    stat
}

#[test]
fn the_rule_says_which_mounts_are_crossed_and_a_branchs_own_always_is() {
    let mounts = Mounts::default();
    let (branch, other) = (BranchId(0), BranchId(1));
    let mut own = known(1, true, Forbids::empty());
    own.roots.push(branch);
    mounts.add(own);
    mounts.add(known(3, true, Forbids::empty()));
    mounts.add(known(2, false, Forbids::empty()));
    let dir = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
    for (rule, admitted) in [
        (CrossMounts::System, [true, true, false]),
        (CrossMounts::None, [true, false, false]),
        (CrossMounts::All, [true, true, true]),
    ] {
        mounts.set_rule(rule);
        let admits = |key| {
            let stat = stat_on(key);
            mounts
                .admit(branch, &stat, dir.as_fd(), OsStr::new(""))
                .is_ok()
        };
        assert_eq!([1, 2, 3].map(admits), admitted, "{rule:?}");
    }
    mounts.set_rule(CrossMounts::System);
    let of_another = mounts.admit(other, &stat_on(1), dir.as_fd(), OsStr::new(""));
    assert_eq!(of_another, Err(Errno::ACCESS));
}

#[test]
fn what_a_mount_forbids_is_taken_out_unless_the_pool_forbids_it_for_all() {
    let mounts = Mounts::default();
    mounts.add(known(1, false, Forbids::empty()));
    mounts.add(known(2, false, Forbids::all()));
    let program = FileAttr {
        mode: libc::S_IFREG | 0o6755,
        ..FileAttr::default()
    };
    let device = FileAttr {
        mode: libc::S_IFCHR | 0o666,
        rdev: 0x105,
        ..FileAttr::default()
    };
    let shown = |key, mut attr: FileAttr| {
        mounts.restrict(&stat_on(key), &mut attr);
        (attr.mode & 0o7777, attr.rdev)
    };
    assert_eq!(shown(1, program), (0o6755, 0));
    assert_eq!(shown(1, device), (0o666, 0x105));
    assert_eq!(shown(2, program), (0o755, 0));
    assert_eq!(shown(2, device), (0o666, NO_DEVICE));
    assert_eq!(shown(3, program), (0o755, 0), "a mount that was not met");
    let directory = FileAttr {
        mode: libc::S_IFDIR | 0o2755,
        ..FileAttr::default()
    };
    assert_eq!(shown(2, directory).0, 0o2755);
    mounts.set_pool(Forbids::SUID);
    assert_eq!(shown(2, program), (0o6755, 0));
    assert_eq!(shown(2, device), (0o666, NO_DEVICE));
}

/// A mount of this key whose number may come again, with the descriptor that keeps it, if it still does.
fn pinned(mounts: &Mounts, key: u64, roots: &[BranchId]) -> std::sync::Weak<OwnedFd> {
    let pin = Arc::new(rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap());
    let kept = Arc::downgrade(&pin);
    mounts.add(Known {
        roots: roots.into(),
        pin: Some(pin),
        ..known(key, false, Forbids::empty())
    });
    kept
}

#[test]
fn a_mount_that_was_detached_is_let_go_of_where_numbers_of_mounts_come_again() {
    let mounts = Mounts::default();
    let gone = pinned(&mounts, u64::MAX, &[]);
    let branch = pinned(&mounts, u64::MAX - 1, &[BranchId(0)]);
    mounts.review(&Table::read());
    assert!(gone.upgrade().is_none(), "no disk is kept for its number");
    assert!(branch.upgrade().is_some(), "the branch is in use");
}

#[test]
fn the_mount_of_a_branch_that_left_is_let_go_of_where_numbers_of_mounts_come_again() {
    let mounts = Mounts::default();
    let left = pinned(&mounts, 1, &[BranchId(0)]);
    let shared = pinned(&mounts, 2, &[BranchId(0), BranchId(1)]);
    mounts.forget_root(BranchId(0));
    assert!(left.upgrade().is_none(), "its disk can be unmounted");
    assert!(shared.upgrade().is_some(), "another branch is there");
}
