//! From values to places on an axis.

/// An axis.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// With 0 on it: lengths from there can be compared.
    Linear {
        /// The smallest value, or 0.
        least: f64,
        /// The largest value.
        most: f64,
    },
    /// For values of very different sizes; places can be compared, lengths cannot.
    Log {
        /// The smallest value.
        least: f64,
        /// The largest value.
        most: f64,
    },
}

/// Marks on an axis at most, about.
const MARKS: f64 = 6.0;

impl Scale {
    /// From 0, or the round number below all values if any is negative, to that above them.
    pub fn linear(values: impl Iterator<Item = f64>) -> Self {
        let within = |(least, most): (f64, f64), it: f64| (least.min(it), most.max(it));
        let (least, most) = values.filter(|it| it.is_finite()).fold((0.0, 0.0), within);
        let step = step(most - least);
        if step <= 0.0 {
            return Self::Linear {
                least: 0.0,
                most: 1.0,
            };
        }
        Self::Linear {
            least: (least / step).floor() * step,
            most: (most / step).ceil() * step,
        }
    }

    /// Between the powers of `base` around all values, which are above 0.
    pub fn log(base: f64, values: impl Iterator<Item = f64>) -> Self {
        let known: Vec<f64> = values.filter(|it| it.is_finite() && *it > 0.0).collect();
        let least = known.iter().copied().fold(f64::INFINITY, f64::min);
        let most = known.iter().copied().fold(0.0, f64::max);
        if known.is_empty() {
            return Self::Log {
                least: 1.0,
                most: base,
            };
        }
        let floor = base.powf((least.ln() / base.ln() + 1e-9).floor());
        let ceiling = base.powf((most.ln() / base.ln() - 1e-9).ceil());
        Self::Log {
            least: floor,
            most: if ceiling > floor {
                ceiling
            } else {
                floor * base
            },
        }
    }

    /// 0 at the axis' beginning, 1 at its end.
    pub fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { least, most } => (value - least) / (most - least),
            Self::Log { least, most } => (value / least).ln() / (most / least).ln(),
        };
        if place.is_finite() {
            place.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// Where to write numbers.
    pub fn marks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { least, most } => {
                let step = step(most - least);
                let (first, last) = ((least / step).round() as i64, (most / step).round() as i64);
                (first..=last).map(|it| it as f64 * step).collect()
            }
            Self::Log { least, most } => {
                let mut marks = vec![least];
                while let Some(last) = marks.last().copied().filter(|it| it * 9.99 < most) {
                    marks.push(last * 10.0);
                }
                marks
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, so that about [`MARKS`] fit.
fn step(most: f64) -> f64 {
    if most <= 0.0 {
        return 0.0;
    }
    let rough = most / MARKS;
    let power = 10_f64.powf(rough.log10().floor());
    let wide = [1.0, 2.0, 5.0, 10.0].map(|it| it * power);
    wide.into_iter()
        .find(|it| *it >= rough * 0.999)
        .unwrap_or(rough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_zero_and_ends_at_a_round_number() {
        let scale = Scale::linear([3.0, 17.3].into_iter());
        assert_eq!(scale.marks(), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!((scale.place(0.0), scale.place(10.0)), (0.0, 0.5));
        assert_eq!(scale.place(99.0), 1.0);
    }

    #[test]
    fn negative_values_have_a_place_left_of_zero() {
        let scale = Scale::linear([-30.0, 45.0].into_iter());
        assert_eq!(scale.marks(), [-40.0, -20.0, 0.0, 20.0, 40.0, 60.0]);
        assert_eq!((scale.place(-40.0), scale.place(10.0)), (0.0, 0.5));
    }

    #[test]
    fn a_logarithmic_axis_spans_whole_powers() {
        let scale = Scale::log(10.0, [0.002, 5.0].into_iter());
        let marks = scale.marks();
        assert_eq!(marks.len(), 5, "{marks:?}");
        assert!((scale.place(0.1) - 0.5).abs() < 1e-9);
        assert!(Scale::log(10.0, [100.0].into_iter()).marks().len() > 1);
    }

    #[test]
    fn nothing_to_show_breaks_nothing() {
        for scale in [
            Scale::linear([].into_iter()),
            Scale::log(10.0, [].into_iter()),
        ] {
            assert!(scale.marks().iter().all(|it| it.is_finite()));
            assert_eq!(scale.place(f64::NAN), 0.0);
        }
    }
}
