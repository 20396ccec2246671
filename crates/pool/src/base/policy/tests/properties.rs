//! Any pool at all: compared with the model, and never a panic.

use proptest::prelude::*;
use rustix::io::Errno;
use strandfs_options::{Category, Policy};

use crate::base::policy::tests::model::{Answer, answer};
use crate::base::policy::tests::{CATEGORIES, ask};
use crate::base::policy::{BranchFacts, Choice, Space, create, needs};

/// Small numbers for ties, the ends for overflow, and everything between.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..4u64,
        2 => (u64::MAX - 3)..=u64::MAX,
        2 => any::<u64>(),
    ]
}

fn space() -> impl Strategy<Value = Space> {
    (
        bytes(),
        bytes(),
        prop::bool::weighted(0.1),
        prop_oneof![3 => Just(0), 1 => bytes()],
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(available_bytes, used_bytes, read_only_fs, min_free_bytes, no_inodes)| Space {
                available_bytes,
                used_bytes,
                read_only_fs,
                min_free_bytes,
                no_inodes,
            },
        )
}

fn facts() -> impl Strategy<Value = BranchFacts> {
    let mtime = prop_oneof![3 => -2..3i128, 1 => any::<i128>()];
    (
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.7),
        prop::option::weighted(0.9, space()),
        mtime,
    )
        .prop_map(
            |(read_only, no_create, usable, exists, space, mtime_ns)| BranchFacts {
                read_only,
                no_create,
                usable,
                exposes: false,
                exists,
                space,
                mtime_ns,
            },
        )
}

fn pool() -> impl Strategy<Value = Vec<BranchFacts>> {
    prop::collection::vec(facts(), 0..8)
}

fn random_number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]
}

/// What the caller leaves out because it was not asked for: anything may stand there.
fn with_unneeded_from(
    category: Category,
    policy: Policy,
    facts: &BranchFacts,
    noise: &BranchFacts,
) -> BranchFacts {
    let needs = needs(policy, category);
    BranchFacts {
        exists: if needs.exists {
            facts.exists
        } else {
            noise.exists
        },
        space: if needs.space {
            facts.space
        } else {
            noise.space
        },
        mtime_ns: if needs.mtime {
            facts.mtime_ns
        } else {
            noise.mtime_ns
        },
        ..*facts
    }
}

fn check(expected: &Answer, answered: &Result<Choice, Errno>) -> Result<(), TestCaseError> {
    match (expected, answered) {
        (Answer::All(expected), Ok(choice)) => prop_assert_eq!(&expected[..], &choice[..]),
        (Answer::OneOf(expected), Ok(choice)) => {
            prop_assert_eq!(choice.len(), 1);
            prop_assert!(
                expected.contains(&choice[0]),
                "{choice:?} not of {expected:?}"
            );
        }
        (Answer::Refused(expected), Err(errno)) => prop_assert_eq!(expected, errno),
        _ => prop_assert!(false, "expected {expected:?}, answered {answered:?}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_policy_agrees_with_the_model(pool in pool(), number in random_number()) {
        for category in CATEGORIES {
            for (_, policy) in Policy::ALL {
                let answered = ask(category, policy, &pool, &mut || number);
                check(&answer(category, policy, &pool), &answered)?;
            }
        }
    }

    #[test]
    fn only_what_is_asked_for_is_looked_at(
        both in prop::collection::vec((facts(), facts()), 0..6),
        number in random_number(),
    ) {
        let pool: Vec<_> = both.iter().map(|(facts, _)| *facts).collect();
        for category in CATEGORIES {
            for (_, policy) in Policy::ALL {
                let noisy: Vec<_> = both
                    .iter()
                    .map(|(facts, noise)| with_unneeded_from(category, policy, facts, noise))
                    .collect();
                prop_assert_eq!(
                    ask(category, policy, &pool, &mut || number),
                    ask(category, policy, &noisy, &mut || number),
                    "{} {:?}", policy, category
                );
            }
        }
    }

    #[test]
    fn climbing_answers_for_the_first_level_that_chooses(
        levels in prop::collection::vec(pool(), 0..5),
        number in random_number(),
    ) {
        for policy in [Policy::MspLfs, Policy::MspLus, Policy::MspMfs, Policy::MspPfrd] {
            let mut asked = Vec::new();
            let answered = create(
                policy,
                |level| {
                    asked.push(level);
                    levels.get(level)
                },
                &mut || number,
            );
            let answers: Vec<_> =
                levels.iter().map(|level| answer(Category::Create, policy, level)).collect();
            let refused = |answer: &&Answer| matches!(answer, Answer::Refused(_));
            let decisive = answers.iter().take_while(refused).count();
            prop_assert_eq!(asked, (0..=decisive).collect::<Vec<_>>());
            match answers.get(decisive) {
                Some(expected) => check(expected, &answered)?,
                None => {
                    let gravest = [Errno::NOSPC, Errno::ROFS]
                        .into_iter()
                        .find(|errno| answers.contains(&Answer::Refused(*errno)));
                    prop_assert_eq!(answered, Err(gravest.unwrap_or(Errno::NOENT)));
                }
            }
        }
    }
}
