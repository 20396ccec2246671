//! Who waits for whom: nodes, their waiters and circles, against a model that looks at every byte
//! and every waiter.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use proptest::prelude::*;
use strandfs_fuse::AnswerLater;

use super::*;
use crate::base::test_request::request_of;
use crate::state::range_locks::Attempt;

const BYTES: u64 = 6;
const OWNERS: u64 = 4;
const NODES: usize = 2;

/// What was answered, by number of the request.
#[derive(Default)]
struct Answered(Mutex<BTreeMap<u64, Result<(), Errno>>>);

impl AnswerLater for Answered {
    fn answer(&self, unique: u64, result: Result<(), Errno>) {
        self.0.lock().insert(unique, result);
    }
}

/// The real thing.
struct Real {
    _files: Vec<tempfile::NamedTempFile>,
    models: Vec<OwnedFd>,
    nodes: Vec<Arc<NodeLocks>>,
    waits: Arc<LockWaits>,
    answered: Arc<Answered>,
}

fn asked(owner: u64, span: Span, kind: Option<LockMode>) -> Asked {
    Asked {
        owner: LockOwner(owner),
        sort: Sort::Range,
        span,
        kind,
        pid: 0,
        uid: 6101,
        through: owner as usize,
        unseen_since: None,
        untold: false,
        of_description: false,
    }
}

impl Real {
    fn new() -> Real {
        let files: Vec<_> = (0..NODES)
            .map(|_| tempfile::NamedTempFile::new().unwrap())
            .collect();
        Real {
            models: files
                .iter()
                .map(|file| file.reopen().unwrap().into())
                .collect(),
            _files: files,
            nodes: (0..NODES).map(|_| Arc::default()).collect(),
            waits: Arc::default(),
            answered: Arc::default(),
        }
    }

    /// The answer, or none while it waits.
    fn ask(&self, node: usize, asked: Asked, unique: u64) -> Option<Result<(), Errno>> {
        let mut answers = Answers::new();
        let locks = &self.nodes[node];
        let model = (&self.models[node], false);
        let attempt = locks
            .attempt(&request_of(6101), model, &asked, &mut answers)
            .unwrap();
        self.waits.settle(locks, &mut answers);
        if attempt == Attempt::Done {
            return Some(Ok(()));
        }
        assert_eq!(attempt, Attempt::Held, "nobody outside locks here");
        let token = Deferred::new(unique, self.answered.clone());
        match self.waits.enqueue(locks, asked, (token, true, false)) {
            Queued::Waits => None,
            Queued::Free(_) => panic!("it was held a moment ago"),
            Queued::Refused(token, errno) => {
                token.answer(Err(errno));
                Some(Err(errno))
            }
        }
    }
}

struct Waiting {
    unique: u64,
    node: usize,
    owner: u64,
    span: Span,
    kind: LockMode,
}

/// What each owner holds of each byte, and who waits, in order.
#[derive(Default)]
struct Model {
    held: BTreeMap<(usize, u64, u64), LockMode>,
    waiting: Vec<Waiting>,
    answered: BTreeMap<u64, Result<(), Errno>>,
}

impl Model {
    fn against(&self, node: usize, owner: u64, span: Span, kind: LockMode) -> Vec<u64> {
        let against = self.held.iter().filter(|((at, byte, other), held)| {
            *at == node
                && (span.start..=span.end).contains(byte)
                && *other != owner
                && (kind == LockMode::Exclusive || **held == LockMode::Exclusive)
        });
        against.map(|((_, _, other), _)| *other).collect()
    }

    fn set(&mut self, node: usize, owner: u64, span: Span, kind: Option<LockMode>) {
        for byte in span.start..=span.end {
            match kind {
                Some(kind) => self.held.insert((node, byte, owner), kind),
                None => self.held.remove(&(node, byte, owner)),
            };
        }
        self.grant();
    }

    fn grant(&mut self) {
        let free = |it: &Waiting| self.against(it.node, it.owner, it.span, it.kind).is_empty();
        let Some(place) = self.waiting.iter().position(free) else {
            return;
        };
        let it = self.waiting.remove(place);
        self.answered.insert(it.unique, Ok(()));
        self.set(it.node, it.owner, it.span, Some(it.kind));
    }

    /// Whether `owner` is reached from those who stand in the way.
    fn is_circle(&self, owner: u64, mut next: Vec<u64>) -> bool {
        let mut seen = std::collections::BTreeSet::new();
        while let Some(other) = next.pop() {
            if other == owner {
                return true;
            }
            if seen.insert(other) {
                let waits = self.waiting.iter().filter(|it| it.owner == other);
                next.extend(waits.flat_map(|it| self.against(it.node, it.owner, it.span, it.kind)));
            }
        }
        false
    }

    fn ask(
        &mut self,
        node: usize,
        (owner, span, kind): (u64, Span, Option<LockMode>),
        unique: u64,
    ) -> Option<Result<(), Errno>> {
        let against = kind.map_or(Vec::new(), |kind| self.against(node, owner, span, kind));
        let Some(kind) = kind.filter(|_| !against.is_empty()) else {
            self.set(node, owner, span, kind);
            return Some(Ok(()));
        };
        if self.is_circle(owner, against) {
            return Some(Err(Errno::DEADLK));
        }
        self.waiting.push(Waiting {
            unique,
            node,
            owner,
            span,
            kind,
        });
        None
    }
}

fn span() -> impl Strategy<Value = Span> {
    (0..BYTES, 0..BYTES).prop_map(|(a, b)| Span {
        start: a.min(b),
        end: a.max(b),
    })
}

fn kind() -> impl Strategy<Value = Option<LockMode>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(LockMode::Shared)),
        2 => Just(Some(LockMode::Exclusive))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn who_is_granted_who_waits_and_who_is_in_a_circle_is_as_in_the_model(
        steps in prop::collection::vec(
            (0..NODES, 0..OWNERS, span(), kind(), 0..6_u8),
            1..50,
        ),
    ) {
        let (real, mut model) = (Real::new(), Model::default());
        for (number, (node, owner, span, kind, chance)) in steps.into_iter().enumerate() {
            let unique = 2 * number as u64;
            let waits = model.waiting.iter().position(|it| it.owner == owner);
            match waits {
                // Who waits does nothing else but get a signal now and then.
                Some(place) if chance == 0 => {
                    let it = model.waiting.remove(place);
                    model.answered.insert(it.unique, Err(Errno::INTR));
                    prop_assert!(real.waits.interrupt(it.unique));
                    prop_assert!(!real.waits.interrupt(it.unique));
                }
                Some(_) => {}
                None => {
                    let expected = model.ask(node, (owner, span, kind), unique);
                    let found = real.ask(node, asked(owner, span, kind), unique);
                    prop_assert_eq!(found, expected, "{} {:?} {:?}", owner, span, kind);
                    if let Some(Err(errno)) = expected {
                        model.answered.insert(unique, Err(errno));
                    }
                }
            }
            prop_assert_eq!(&*real.answered.0.lock(), &model.answered);
            prop_assert_eq!(real.waits.count(), model.waiting.len());
            for node in 0..NODES {
                for byte in 0..BYTES {
                    let at = Span { start: byte, end: byte };
                    for kind in [LockMode::Shared, LockMode::Exclusive] {
                        // What the branch holds for all together.
                        let against = model.against(node, OWNERS, at, kind);
                        let other = crate::base::open::reopen(
                            std::os::fd::AsFd::as_fd(&real.models[node]),
                            rustix::fs::OFlags::RDWR,
                        ).unwrap();
                        let found = crate::state::range_locks::get_on(&other, at, kind).unwrap();
                        prop_assert_eq!(found.is_some(), !against.is_empty());
                    }
                }
            }
        }
    }
}

const FIRST: Span = Span { start: 0, end: 0 };

#[test]
fn a_waiter_that_lowers_its_lock_when_granted_lets_an_earlier_one_in() {
    let real = Real::new();
    let span = |start, end| Span { start, end };
    let (shared, exclusive) = (Some(LockMode::Shared), Some(LockMode::Exclusive));
    assert_eq!(real.ask(0, asked(0, FIRST, exclusive), 0), Some(Ok(())));
    assert_eq!(
        real.ask(0, asked(2, span(1, 3), exclusive), 2),
        Some(Ok(()))
    );
    assert_eq!(real.ask(0, asked(1, span(0, 1), shared), 4), None);
    assert_eq!(real.ask(0, asked(2, span(0, 2), shared), 6), None);
    assert_eq!(real.ask(0, asked(0, FIRST, None), 8), Some(Ok(())));
    let all = BTreeMap::from([(4, Ok(())), (6, Ok(()))]);
    assert_eq!(*real.answered.0.lock(), all);
}

#[test]
fn what_somebody_outside_gives_up_is_granted_by_itself() {
    let real = Real::new();
    let outside = real._files[0].reopen().unwrap();
    let outside = OwnedFd::from(outside);
    let lock = |kind| {
        let range = crate::state::range_locks::to_range(FIRST, kind);
        crate::base::sys::set_range_lock(std::os::fd::AsFd::as_fd(&outside), range).unwrap();
    };
    lock(Some(LockMode::Exclusive));
    let mut answers = Answers::new();
    let asked = asked(1, FIRST, Some(LockMode::Exclusive));
    let attempt = real.nodes[0].attempt(
        &request_of(6101),
        (&real.models[0], false),
        &asked,
        &mut answers,
    );
    assert_eq!(attempt, Ok(Attempt::HeldOutside));
    let token = Deferred::new(8, real.answered.clone());
    let queued = real
        .waits
        .enqueue(&real.nodes[0], asked, (token, true, true));
    assert!(matches!(queued, Queued::Waits));
    std::thread::sleep(Duration::from_millis(100));
    assert!(real.answered.0.lock().is_empty());
    lock(None);
    let deadline = Instant::now() + Duration::from_secs(60);
    while real.answered.0.lock().is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(real.answered.0.lock().get(&8), Some(&Ok(())));
    real.waits.end();
}

#[test]
fn one_user_has_so_many_waiters_and_the_next_user_waits_all_the_same() {
    let real = Real::new();
    assert_eq!(
        real.ask(0, asked(1, FIRST, Some(LockMode::Exclusive)), 2),
        Some(Ok(()))
    );
    for unique in 0..MOST_OF_USER as u64 {
        let asked = asked(10 + unique, FIRST, Some(LockMode::Exclusive));
        let token = Deferred::new(10 + unique, real.answered.clone());
        let queued = real
            .waits
            .enqueue(&real.nodes[0], asked, (token, false, false));
        assert!(matches!(queued, Queued::Waits));
    }
    let wait = |uid: u32, unique: u64| {
        let asked = Asked {
            uid,
            ..asked(2, FIRST, Some(LockMode::Exclusive))
        };
        let token = Deferred::new(unique, real.answered.clone());
        real.waits
            .enqueue(&real.nodes[0], asked, (token, false, false))
    };
    assert!(matches!(wait(6101, 4), Queued::Refused(_, Errno::NOLCK)));
    assert!(matches!(wait(6102, 5), Queued::Waits));
    assert!(matches!(wait(0, 6), Queued::Waits));
    // The first of them is granted, though so many wait, and all are let go at the end.
    let began = Instant::now();
    real.ask(0, asked(1, FIRST, None), 3);
    assert_eq!(real.answered.0.lock().get(&10), Some(&Ok(())));
    assert!(began.elapsed() < Duration::from_secs(5));
    real.waits.end();
    assert_eq!(real.waits.count(), 0);
    assert_eq!(real.answered.0.lock().len(), MOST_OF_USER + 2 + 1);
}

/// Somebody outside was quicker when the pool's own owner gave the lock up.
#[test]
fn a_waiter_that_somebody_outside_overtakes_is_tried_again() {
    let real = Real::new();
    let far = Span { start: 3, end: 3 };
    let exclusive = Some(LockMode::Exclusive);
    assert_eq!(real.ask(0, asked(1, FIRST, exclusive), 2), Some(Ok(())));
    // Waits for both bytes, of which somebody outside locks the other one.
    let both = Span { start: 0, end: 3 };
    assert_eq!(real.ask(0, asked(2, both, exclusive), 4), None);
    let outside = OwnedFd::from(real._files[0].reopen().unwrap());
    let lock = |kind| {
        let range = crate::state::range_locks::to_range(far, kind);
        crate::base::sys::set_range_lock(std::os::fd::AsFd::as_fd(&outside), range).unwrap();
    };
    lock(exclusive);
    assert_eq!(real.ask(0, asked(1, FIRST, None), 6), Some(Ok(())));
    assert!(real.answered.0.lock().is_empty());
    lock(None);
    let deadline = Instant::now() + Duration::from_secs(60);
    while real.answered.0.lock().is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(real.answered.0.lock().get(&4), Some(&Ok(())));
    real.waits.end();
}

/// A crowd that wants many different ranges, most of which have nothing to do with each other.
/// What another user does a few hundred times beside those who wait: locks and unlocks another part of
/// the same file and of another one, and waits for the same part as they do and gives up. The median
/// and what 99 of a hundred do not exceed.
fn times_of_another_user(real: &Real, number: &mut u64) -> (Duration, Duration) {
    let apart = Span { start: 4, end: 5 };
    let mut times = Vec::new();
    for _ in 0..300 {
        let began = Instant::now();
        for node in 0..NODES {
            for kind in [Some(LockMode::Exclusive), None] {
                let mut hers = asked(3, apart, kind);
                hers.uid = 6102;
                *number += 2;
                assert_eq!(real.ask(node, hers, *number), Some(Ok(())));
            }
        }
        let mut hers = asked(3, FIRST, Some(LockMode::Exclusive));
        hers.uid = 6102;
        *number += 2;
        assert_eq!(real.ask(0, hers, *number), None);
        assert!(real.waits.interrupt(*number));
        times.push(began.elapsed());
    }
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// A live mount has no room for so many threads.
#[test]
fn a_hundred_thousand_waiters_do_not_slow_another_user() {
    const WAITERS: u64 = 100_000;
    let real = Real::new();
    let mut number = 1 << 32;
    assert_eq!(
        real.ask(0, asked(1, FIRST, Some(LockMode::Exclusive)), 2),
        Some(Ok(()))
    );
    let alone = times_of_another_user(&real, &mut number);
    for waiter in 0..WAITERS {
        let mut asked = asked(10 + waiter, FIRST, Some(LockMode::Exclusive));
        // As many as one user may have, where this is no test.
        asked.uid = 7000 + (waiter / MOST_OF_USER as u64) as u32;
        let token = Deferred::new(10 + waiter, real.answered.clone());
        let of_process = waiter % 2 == 0;
        let queued = real
            .waits
            .enqueue(&real.nodes[0], asked, (token, of_process, false));
        assert!(matches!(queued, Queued::Waits));
    }
    let beside = times_of_another_user(&real, &mut number);
    println!("beside {WAITERS} waiters: median and 99 % {beside:?}; alone {alone:?}");
    // Far more than twice: the machine of a test is busy with others. What looked at each of them took
    // a hundred thousand times as long.
    assert!(beside.0 < alone.0 * 10, "{beside:?} {alone:?}");
    assert!(beside.1 < alone.1 * 20 + Duration::from_millis(20));
    assert_eq!(real.waits.count() as u64, WAITERS);
}

#[test]
fn one_user_waits_for_so_many_different_ranges_of_a_file() {
    let real = Real::new();
    let most = 1000;
    let exclusive = Some(LockMode::Exclusive);
    let byte = |at| Span { start: at, end: at };
    let all = Span {
        start: 0,
        end: 1 << 40,
    };
    assert_eq!(real.ask(0, asked(1, all, exclusive), 2), Some(Ok(())));
    let wait = |uid: u32, at: u64, unique: u64| {
        let asked = Asked {
            uid,
            ..asked(10 + unique, byte(at), exclusive)
        };
        let token = Deferred::new(unique, real.answered.clone());
        real.waits
            .enqueue(&real.nodes[0], asked, (token, false, false))
    };
    for at in 0..most {
        assert!(matches!(wait(6101, at, 10 + at), Queued::Waits));
    }
    assert!(matches!(
        wait(6101, most, 4),
        Queued::Refused(_, Errno::NOLCK)
    ));
    // What somebody waits for already costs nothing more.
    assert!(matches!(wait(6101, 7, 5), Queued::Waits));
    assert!(matches!(wait(6102, most, 6), Queued::Waits));
    assert!(matches!(wait(0, most + 1, 7), Queued::Waits));
    // One byte is unlocked: who waits for it is granted, nobody else.
    assert_eq!(real.ask(0, asked(1, byte(500), None), 3), Some(Ok(())));
    let answered = real.answered.0.lock().clone();
    let granted: Vec<_> = answered.iter().filter(|(_, it)| it.is_ok()).collect();
    assert_eq!(granted, [(&510, &Ok(()))]);
    // There is room for another wish.
    assert!(matches!(wait(6101, most + 2, 8), Queued::Waits));
    real.waits.end();
    assert_eq!(real.waits.count(), 0);
}
