//! When a run that is looked at again and again may stop: a t test at planned looks.
//!
//! Whoever looks at the samples after every repetition and stops when they please is right less often
//! than each look says. So the looks are planned before the first sample, and the error that a question
//! may have in all is shared out among them (Bonferroni): the chance that any look is wrong is at most
//! the sum of the chances of each, however the looks depend on each other.
//!
//! One look is a one-sided t test of one value per repetition. The values are bounded (-1 to 1), so that
//! a single wild sample cannot decide; the order of the subjects in each repetition is drawn, so that
//! under the hypothesis that is tested, that two things take the same time, a value is as likely to lie
//! below 0 as as far above it; and for such values the t test keeps what it promises also where their tails are long.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The chance, at most, that the answer to one question is wrong, over all looks of a run.
pub const ERROR: f64 = 0.01;
/// A layer that is not the largest can be named in so many ways: there are two beside the largest.
const WRONG_NAMES: f64 = 2.0;
/// The first look: fewer values have no spread worth the name.
pub const FIRST: usize = 3;
/// From here on looks are so much further apart: repetitions grow as fast as what they can still show
/// becomes small.
const GROWTH: f64 = 1.4;
/// The last of the looks that follow each repetition.
const EACH_UNTIL: usize = 5;

/// After which repetitions the samples are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looks {
    at: Vec<usize>,
    /// Whether a run may end between two looks and is looked at then.
    at_end: bool,
}

impl Looks {
    /// After `first` repetitions and, if `most` are more, now and then until `most`; `may_end` says that the
    /// run may be out of time in between.
    pub fn plan(first: usize, most: usize, may_end: bool) -> Self {
        let mut at = vec![first.min(most)];
        let mut last = first;
        while last < most {
            let further = (last as f64 * GROWTH).round() as usize;
            let next = match last < EACH_UNTIL {
                true => last + 1,
                false => further.max(last + 1),
            };
            last = next.min(most);
            at.push(last);
        }
        Self {
            at,
            at_end: may_end,
        }
    }

    /// Whether the samples are looked at after so many repetitions.
    pub fn is_due(&self, repetitions: usize) -> bool {
        self.at.contains(&repetitions)
    }

    /// The level of the test of one look.
    pub fn level(&self) -> f64 {
        let looks = self.at.len() + usize::from(self.at_end);
        ERROR / looks.max(1) as f64 / WRONG_NAMES
    }

    /// For a reader: `3, 4, 5, 7`.
    pub fn describe(&self) -> String {
        let at: Vec<String> = self.at.iter().map(usize::to_string).collect();
        let end = if self.at_end { ", end of time" } else { "" };
        format!("{}{end}", at.join(", "))
    }
}

/// What one value per repetition shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The values' mean.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// How many values.
    pub count: usize,
}

impl Mean {
    /// Of these values; `None` for fewer than two.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.len() < 2 {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
        Some(Self {
            mean,
            error: (squares / (count - 1.0) / count).sqrt(),
            count: values.len(),
        })
    }

    /// The chance of a mean this far above 0 if the true one is 0 or less.
    pub fn chance_if_not_above_zero(&self) -> f64 {
        if self.error <= 0.0 {
            return if self.mean > 0.0 { 0.0 } else { 1.0 };
        }
        tail(self.mean / self.error, self.count)
    }

    /// What the true mean does not exceed, but for this chance.
    pub fn upper_bound(&self, chance: f64) -> f64 {
        self.mean + self.error * quantile(chance, self.count)
    }

    /// How many more values would make a mean of at least `least` clear of 0 at this level, if they spread as
    /// these do; at most `most`.
    pub fn further(&self, least: f64, level: f64, most: usize) -> usize {
        let deviation = self.error * (self.count as f64).sqrt();
        let mean = self.mean.max(least);
        let is_enough = |more: usize| {
            let count = self.count + more;
            mean >= deviation / (count as f64).sqrt() * quantile(level, count)
        };
        let (mut low, mut high) = (1, most.max(1));
        while low < high {
            let middle = low.midpoint(high);
            match is_enough(middle) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low
    }
}

fn distribution(count: usize) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, count.saturating_sub(1).max(1) as f64).ok()
}

fn tail(value: f64, count: usize) -> f64 {
    // The parameters are always valid.
    distribution(count).map_or(1.0, |it| it.sf(value))
}

fn quantile(chance: f64, count: usize) -> f64 {
    distribution(count).map_or(f64::INFINITY, |it| -it.inverse_cdf(chance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_planned_and_share_the_error() {
        let quick = Looks::plan(3, 20, true);
        assert_eq!(quick.describe(), "3, 4, 5, 7, 10, 14, 20, end of time");
        assert!((quick.level() - 0.01 / 8.0 / 2.0).abs() < 1e-12);
        let told = Looks::plan(9, 9, false);
        assert_eq!(told.describe(), "9");
        assert_eq!(told.level(), 0.005);
        assert!(told.is_due(9) && !told.is_due(8));
        assert_eq!(Looks::plan(5, 8, false).describe(), "5, 7, 8");
    }

    #[test]
    fn the_t_test_is_that_of_the_tables() {
        // Values 1, 2, 3: mean 2, standard error 1/√3, t = 3.4641 with two degrees of freedom.
        let found = Mean::of(&[1.0, 2.0, 3.0]).unwrap();
        assert!((found.chance_if_not_above_zero() - 0.03709).abs() < 1e-4);
        // The 97.5 % quantile of two degrees of freedom is 4.3027.
        let bound = 2.0 + 4.302_65 / 3f64.sqrt();
        assert!((found.upper_bound(0.025) - bound).abs() < 1e-3);
        assert_eq!(Mean::of(&[1.0]), None);
        let none = Mean::of(&[1.0, 1.0, 1.0]).unwrap();
        assert_eq!(none.chance_if_not_above_zero(), 0.0);
        let zero = Mean::of(&[0.0, 0.0]).unwrap();
        assert_eq!(zero.chance_if_not_above_zero(), 1.0);
    }

    #[test]
    fn further_values_are_as_many_as_the_spread_asks_for() {
        // Mean 1, deviation 1: t = √n has to reach the quantile.
        let values: Vec<f64> = (0..10).map(|it| f64::from(2 * (it % 2))).collect();
        let found = Mean::of(&values).unwrap();
        let more = found.further(0.0, 0.001, 1000);
        assert!((5..15).contains(&more), "{more}");
        let wild = Mean::of(&[-1.0, 1.0, -1.0, 1.0]).unwrap();
        assert_eq!(wild.further(0.001, 0.001, 1000), 1000);
    }

    /// What is promised: two that are alike are told apart in at most 1 % of the runs, though they are looked
    /// at up to eight times; here with noise that is even, noise that comes now and then, and both.
    #[test]
    fn looking_often_does_not_make_equals_unlike() {
        let mut random = fastrand::Rng::with_seed(4);
        let looks = Looks::plan(FIRST, 20, true);
        let mut wrong = 0;
        let runs = 3000;
        for run in 0..runs {
            let hit = [0.0, 0.1, 0.3][run % 3];
            let mut time = || {
                let hog = match random.f64() < hit {
                    true => 1.0 + 9.0 * random.f64(),
                    false => 1.0,
                };
                (1.0 + 0.1 * random.f64()) * hog
            };
            let values: Vec<f64> = (0..20)
                .map(|_| (time(), time()))
                .map(|(one, other)| (one - other) / (one + other))
                .collect();
            let is_named = (1..=20).any(|count| {
                looks.is_due(count)
                    && Mean::of(&values[..count]).is_some_and(|it| {
                        let other = Mean {
                            mean: -it.mean,
                            ..it
                        };
                        it.chance_if_not_above_zero() <= looks.level()
                            || other.chance_if_not_above_zero() <= looks.level()
                    })
            });
            wrong += usize::from(is_named);
        }
        assert!(wrong <= runs / 100, "{wrong} of {runs}");
    }
}
