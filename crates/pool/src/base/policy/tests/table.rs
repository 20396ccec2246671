//! What each policy chooses, how it breaks ties, and what it answers when it chooses nothing.

use rustix::io::Errno;
use strandfs_options::{Category, Policy};

use crate::base::policy::tests::{CATEGORIES, ask, branch, choosing};
use crate::base::policy::{BranchFacts, Needs, needs};

/// A pool in which every refusal occurs and no two rules agree by chance.
fn pool() -> [BranchFacts; 10] {
    [
        branch(9_000, 0).mtime(99).read_only(),
        branch(90, 6).mtime(50).absent(),
        branch(50, 20).mtime(7),
        branch(30, 25).mtime(9),
        branch(60, 70).mtime(8),
        branch(29, 5).mtime(60).absent(),
        branch(1, 1).mtime(10).no_create(),
        branch(5, 95).mtime(20).min_free(10),
        branch(8_000, 0).mtime(98).fenced(),
        branch(0, 7).mtime(30).on_read_only_fs(),
    ]
}

type Expected = Result<&'static [usize], Errno>;

/// Create, action and search in [`pool`]: the choice with the lowest random number.
type Row = (Policy, &'static [usize], &'static [usize], &'static [usize]);

#[rustfmt::skip]
const ROWS: [Row; 20] = [
    (Policy::All,     &[1, 2, 3, 4, 5], &[2, 3, 4, 6, 7], &[0, 2, 3, 4, 6, 7, 9]),
    (Policy::EpAll,   &[2, 3, 4],       &[2, 3, 4, 6, 7], &[0, 2, 3, 4, 6, 7, 9]),
    (Policy::EpFf,    &[2],             &[2],             &[0]),
    (Policy::EpLfs,   &[3],             &[6],             &[9]),
    (Policy::EpLus,   &[2],             &[6],             &[0]),
    (Policy::EpMfs,   &[4],             &[4],             &[0]),
    (Policy::EpPfrd,  &[2],             &[2],             &[0]),
    (Policy::EpRand,  &[2],             &[2],             &[0]),
    (Policy::Ff,      &[1],             &[2],             &[0]),
    (Policy::Lfs,     &[5],             &[6],             &[9]),
    (Policy::Lup,     &[1],             &[2],             &[0]),
    (Policy::Lus,     &[5],             &[6],             &[0]),
    (Policy::Mfs,     &[1],             &[4],             &[0]),
    (Policy::MspLfs,  &[3],             &[6],             &[9]),
    (Policy::MspLus,  &[2],             &[6],             &[0]),
    (Policy::MspMfs,  &[4],             &[4],             &[0]),
    (Policy::MspPfrd, &[2],             &[2],             &[0]),
    (Policy::Newest,  &[3],             &[7],             &[0]),
    (Policy::Pfrd,    &[1],             &[2],             &[0]),
    (Policy::Rand,    &[1],             &[2],             &[0]),
];

#[test]
fn every_policy_chooses_as_documented() {
    for (policy, create, action, search) in ROWS {
        let expected = [
            (Category::Create, create),
            (Category::Action, action),
            (Category::Search, search),
        ];
        for (category, expected) in expected {
            let choice = ask(category, policy, &pool(), &mut || 0);
            assert_eq!(choice.as_deref(), Ok(expected), "{policy} {category:?}");
        }
    }
    let named: Vec<Policy> = ROWS.iter().map(|row| row.0).collect();
    assert_eq!(
        named,
        choosing().collect::<Vec<_>>(),
        "a row for every policy"
    );
}

#[test]
fn the_highest_random_number_takes_the_last_eligible_branch() {
    // Branch 9 has nothing available: it is never taken in proportion to that.
    let rows = [
        (Policy::Pfrd, 5, 7, 7),
        (Policy::EpPfrd, 4, 7, 7),
        (Policy::MspPfrd, 4, 7, 7),
        (Policy::Rand, 5, 7, 9),
        (Policy::EpRand, 4, 7, 9),
    ];
    for (policy, create, action, search) in rows {
        let expected = [
            (Category::Create, create),
            (Category::Action, action),
            (Category::Search, search),
        ];
        for (category, expected) in expected {
            let choice = ask(category, policy, &pool(), &mut || u64::MAX);
            assert_eq!(
                choice.as_deref(),
                Ok(&[expected][..]),
                "{policy} {category:?}"
            );
        }
    }
}

#[test]
fn ties_go_as_documented() {
    use Policy::*;
    let twins = [branch(7, 7); 3];
    for policy in choosing() {
        let expected: &[usize] = match policy {
            All | EpAll => &[0, 1, 2],
            Lfs | EpLfs | MspLfs | Mfs | EpMfs | MspMfs | Newest => &[2],
            Lus | EpLus | MspLus | Lup | Ff | EpFf => &[0],
            // The number below is the middle of its range.
            Pfrd | EpPfrd | MspPfrd | Rand | EpRand => &[1],
            ErofsAlways => unreachable!("not a choosing policy"),
        };
        for category in CATEGORIES {
            let choice = ask(category, policy, &twins, &mut || 1 << 63);
            assert_eq!(choice.as_deref(), Ok(expected), "{policy} {category:?}");
        }
    }
}

#[test]
fn least_used_share_compares_without_rounding() {
    let top = u64::MAX;
    let cases: [(&[BranchFacts], usize); 6] = [
        // Shares that differ by less than a float can tell.
        (&[branch(top - 1, top), branch(top, top)], 1),
        (&[branch(top, top - 1), branch(top, top)], 0),
        (&[branch(top, top), branch(top, top)], 0),
        // The same share in other numbers is a tie.
        (&[branch(2, 1), branch(2_000_000, 1_000_000)], 0),
        // No size at all is an unused one, whether first or last.
        (&[branch(5, 1), branch(0, 0)], 1),
        (&[branch(0, 0), branch(5, 0)], 0),
    ];
    for (branches, expected) in cases {
        for category in CATEGORIES {
            let choice = ask(category, Policy::Lup, branches, &mut || 0);
            assert_eq!(choice.as_deref(), Ok(&[expected][..]), "{branches:?}");
        }
    }
}

#[test]
fn newest_tells_times_within_one_second_and_before_1970() {
    let branches = [
        branch(1, 1).mtime(-5),
        branch(1, 1).mtime(-3),
        branch(1, 1).mtime(-4),
    ];
    for category in CATEGORIES {
        let choice = ask(category, Policy::Newest, &branches, &mut || 0);
        assert_eq!(choice.as_deref(), Ok(&[1][..]));
    }
}

#[test]
fn create_names_the_gravest_refusal() {
    let full = branch(5, 95).min_free(6);
    let cases: [(&str, &[BranchFacts], Errno); 12] = [
        ("no branch", &[], Errno::NOENT),
        ("full", &[full], Errno::NOSPC),
        ("one NC, one full", &[full.no_create(), full], Errno::NOSPC),
        ("one full, one RO", &[full, full.read_only()], Errno::NOSPC),
        (
            "full, fs read-only",
            &[full, full.on_read_only_fs()],
            Errno::NOSPC,
        ),
        ("full but RO", &[full.read_only()], Errno::ROFS),
        (
            "full but fs read-only",
            &[full.on_read_only_fs()],
            Errno::ROFS,
        ),
        ("NC", &[branch(50, 50).no_create()], Errno::ROFS),
        (
            "one RO, one fenced",
            &[branch(5, 5).read_only(), full.fenced()],
            Errno::ROFS,
        ),
        (
            "fs read-only",
            &[branch(50, 50).on_read_only_fs()],
            Errno::ROFS,
        ),
        ("fenced", &[branch(50, 50).fenced()], Errno::NOENT),
        (
            "space unknown",
            &[branch(50, 50).without_space()],
            Errno::NOENT,
        ),
    ];
    for (name, branches, errno) in cases {
        for policy in choosing() {
            let choice = ask(Category::Create, policy, branches, &mut || 0);
            assert_eq!(choice, Err(errno), "{policy}: {name}");
        }
    }
}

#[test]
fn create_speaks_for_the_branches_that_have_the_parent() {
    let full = branch(5, 95).min_free(6);
    let cases: [(&str, &[BranchFacts], Errno); 4] = [
        (
            "nowhere",
            &[branch(9, 9).absent(), full.read_only().absent()],
            Errno::NOENT,
        ),
        (
            "on RO only",
            &[branch(9, 9).absent(), branch(9, 9).read_only()],
            Errno::ROFS,
        ),
        ("on full only", &[branch(9, 9).absent(), full], Errno::NOSPC),
        (
            "on RO, full elsewhere",
            &[full.absent(), branch(9, 9).read_only()],
            Errno::ROFS,
        ),
    ];
    for policy in choosing().filter(|policy| needs(*policy, Category::Create).exists) {
        for (name, branches, errno) in cases {
            let choice = ask(Category::Create, policy, branches, &mut || 0);
            assert_eq!(choice, Err(errno), "{policy}: {name}");
        }
    }
}

#[test]
fn action_names_the_gravest_refusal_and_ignores_the_minimum() {
    let full = branch(5, 95).min_free(6);
    let cases: [(&str, &[BranchFacts], Expected); 9] = [
        ("no branch", &[], Err(Errno::NOENT)),
        ("full", &[full], Ok(&[0])),
        ("NC", &[full.no_create()], Ok(&[0])),
        ("RO", &[full.read_only()], Err(Errno::ROFS)),
        ("fs read-only", &[full.on_read_only_fs()], Err(Errno::ROFS)),
        (
            "RO, absent elsewhere",
            &[full.absent(), full.read_only()],
            Err(Errno::ROFS),
        ),
        (
            "nowhere",
            &[full.absent(), full.absent().read_only()],
            Err(Errno::NOENT),
        ),
        ("fenced", &[full.fenced()], Err(Errno::NOENT)),
        ("space unknown", &[full.without_space()], Err(Errno::NOENT)),
    ];
    for (name, branches, expected) in cases {
        for policy in choosing() {
            let choice = ask(Category::Action, policy, branches, &mut || 0);
            assert_eq!(
                choice.as_deref().map_err(|errno| *errno),
                expected,
                "{policy}: {name}"
            );
        }
    }
}

#[test]
fn search_looks_everywhere_usable() {
    let full = branch(5, 95).min_free(6);
    let cases: [(&str, &[BranchFacts], Expected); 5] = [
        ("no branch", &[], Err(Errno::NOENT)),
        ("RO", &[full.read_only()], Ok(&[0])),
        ("fs read-only", &[full.on_read_only_fs()], Ok(&[0])),
        ("nowhere", &[full.absent()], Err(Errno::NOENT)),
        ("fenced", &[full.fenced()], Err(Errno::NOENT)),
    ];
    for (name, branches, expected) in cases {
        for policy in choosing() {
            let choice = ask(Category::Search, policy, branches, &mut || 0);
            assert_eq!(
                choice.as_deref().map_err(|errno| *errno),
                expected,
                "{policy}: {name}"
            );
        }
    }
    for policy in choosing() {
        let expected = if needs(policy, Category::Search).space {
            Err(Errno::NOENT)
        } else {
            Ok(0)
        };
        let choice = ask(Category::Search, policy, &[full.without_space()], &mut || 0);
        assert_eq!(
            choice.map(|choice| choice[0]),
            expected,
            "{policy}: space unknown"
        );
    }
}

#[test]
fn a_weighted_create_needs_something_available() {
    let empty = [branch(0, 9), branch(0, 5)];
    for policy in [Policy::Pfrd, Policy::EpPfrd, Policy::MspPfrd] {
        for random in [0, u64::MAX] {
            let ask = |category| ask(category, policy, &empty, &mut || random);
            assert_eq!(ask(Category::Create), Err(Errno::NOSPC), "{policy}");
            let expected = if random == 0 { 0 } else { 1 };
            for category in [Category::Action, Category::Search] {
                let choice = ask(category).map(|choice| choice[0]);
                assert_eq!(
                    choice,
                    Ok(expected),
                    "{policy}: what is there stays reachable"
                );
            }
        }
    }
}

#[test]
fn erofs_refuses_without_looking() {
    for category in CATEGORIES {
        let policy = Policy::ErofsAlways;
        assert_eq!(
            ask(category, policy, &[branch(9, 9)], &mut || 0),
            Err(Errno::ROFS)
        );
        assert_eq!(ask(category, policy, &[], &mut || 0), Err(Errno::ROFS));
        let nothing = Needs {
            exists: false,
            space: false,
            mtime: false,
        };
        assert_eq!(needs(policy, category), nothing);
    }
}

#[test]
fn needs_asks_no_more_than_is_used() {
    let asked = |policy, category| {
        let Needs {
            exists,
            space,
            mtime,
        } = needs(policy, category);
        [exists, space, mtime]
    };
    // The policies that run on every request by default.
    assert_eq!(asked(Policy::Ff, Category::Search), [true, false, false]);
    assert_eq!(asked(Policy::EpAll, Category::Action), [true, true, false]);
    assert_eq!(asked(Policy::Pfrd, Category::Create), [false, true, false]);
    assert_eq!(asked(Policy::EpMfs, Category::Create), [true, true, false]);
    assert_eq!(asked(Policy::EpMfs, Category::Search), [true, true, false]);
    assert_eq!(asked(Policy::Newest, Category::Search), [true, false, true]);
    assert_eq!(asked(Policy::Newest, Category::Create), [true, true, true]);
}
