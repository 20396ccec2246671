//! The msp* policies climb from the parent to the root, and end there.

use std::cell::RefCell;

use rustix::io::Errno;
use strandfs_options::{Category, Policy};

use crate::base::policy::tests::{branch, choosing};
use crate::base::policy::{BranchFacts, Choice, create, needs};

const CLIMBING: [Policy; 4] = [
    Policy::MspLfs,
    Policy::MspLus,
    Policy::MspMfs,
    Policy::MspPfrd,
];

/// The answer, and which levels were asked for.
fn climb(policy: Policy, levels: &[&[BranchFacts]]) -> (Result<Choice, Errno>, Vec<usize>) {
    let asked = RefCell::new(Vec::new());
    let answer = create(
        policy,
        |level| {
            asked.borrow_mut().push(level);
            levels.get(level)
        },
        &mut || 0,
    );
    (answer, asked.into_inner())
}

#[test]
fn the_nearest_level_with_an_eligible_branch_decides() {
    let near = [
        branch(50, 50).min_free(60),
        branch(90, 10).absent(),
        branch(80, 1).read_only(),
    ];
    let middle = [
        branch(50, 50).min_free(60),
        branch(90, 10),
        branch(95, 1).absent(),
    ];
    let root = [branch(50, 50), branch(90, 10), branch(95, 1)];
    for policy in CLIMBING {
        let (answer, asked) = climb(policy, &[&near, &middle, &root]);
        assert_eq!(answer.as_deref(), Ok(&[1][..]), "{policy}");
        assert_eq!(asked, [0, 1], "{policy}");
    }
}

#[test]
fn the_rule_of_the_policy_decides_on_a_level() {
    let level = [
        branch(20, 30),
        branch(10, 20),
        branch(40, 10),
        branch(30, 40),
    ];
    let expected = [1, 2, 2, 0];
    for (policy, expected) in CLIMBING.into_iter().zip(expected) {
        let (answer, asked) = climb(policy, &[&[], &level]);
        assert_eq!(answer.as_deref(), Ok(&[expected][..]), "{policy}");
        assert_eq!(asked, [0, 1], "{policy}");
    }
}

/// As mergerfs does: with no branch for it even at the root it never ends.
#[test]
fn the_climb_ends_at_the_root() {
    let refusing = [branch(9, 9).no_create(), branch(9, 9).read_only()];
    for policy in CLIMBING {
        let (answer, asked) = climb(policy, &[&refusing, &refusing, &refusing]);
        assert_eq!(answer, Err(Errno::ROFS), "{policy}");
        assert_eq!(asked, [0, 1, 2, 3], "{policy}");
        assert_eq!(climb(policy, &[]).0, Err(Errno::NOENT), "{policy}");
    }
}

#[test]
fn the_climb_ends_even_without_a_root() {
    for policy in CLIMBING {
        let mut asked = 0;
        let answer = create(
            policy,
            |_| {
                asked += 1;
                Some([branch(1, 9).min_free(2)])
            },
            &mut || 0,
        );
        assert_eq!(answer, Err(Errno::NOSPC), "{policy}");
        assert_eq!(asked, 4096, "{policy}");
    }
}

#[test]
fn the_gravest_refusal_of_all_levels_is_the_answer() {
    let full = branch(1, 9).min_free(2);
    let near = [full, branch(9, 9).absent()];
    let root = [branch(9, 9).no_create(), branch(9, 9).fenced()];
    for policy in CLIMBING {
        assert_eq!(
            climb(policy, &[&near, &root]).0,
            Err(Errno::NOSPC),
            "{policy}"
        );
        assert_eq!(
            climb(policy, &[&root, &near]).0,
            Err(Errno::NOSPC),
            "{policy}"
        );
    }
}

#[test]
fn other_policies_stay_on_the_first_level() {
    let here = [branch(9, 9).no_create(), branch(9, 9).absent().read_only()];
    let root = [branch(9, 9), branch(9, 9)];
    for policy in choosing().filter(|policy| !CLIMBING.contains(policy)) {
        let (answer, asked) = climb(policy, &[&here, &root]);
        assert_eq!(answer, Err(Errno::ROFS), "{policy}");
        assert_eq!(asked, [0], "{policy}");
    }
    let (answer, asked) = climb(Policy::ErofsAlways, &[&root]);
    assert_eq!((answer, asked), (Err(Errno::ROFS), vec![]));
}

#[test]
fn climbing_looks_at_existence() {
    for policy in CLIMBING {
        assert!(needs(policy, Category::Create).exists, "{policy}");
    }
}
