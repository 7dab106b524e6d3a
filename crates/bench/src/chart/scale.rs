//! Maps values to positions on an axis, and chooses the round values that label it.

/// A range at least so many times its least value is drawn by its logarithm.
const LOGARITHMIC_FROM: f64 = 12.0;
/// Round values that are wanted on a linear axis.
const TICKS: f64 = 5.0;

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    is_logarithmic: bool,
    from: f64,
    to: f64,
    step: f64,
}

impl Scale {
    /// From zero to a round value.
    pub(super) fn from_zero(most: f64) -> Self {
        let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
        let step = round_up(most / TICKS);
        Self { is_logarithmic: false, from: 0.0, to: (most / step).ceil() * step, step }
    }

    /// By its logarithm if the range is large, from zero otherwise.
    pub(super) fn over(least: f64, most: f64) -> Self {
        if least > 0.0 && most / least >= LOGARITHMIC_FROM && most.is_finite() {
            let (from, to) = (round_down(least), round_up(most));
            return Self { is_logarithmic: true, from, to, step: 0.0 };
        }
        Self::from_zero(most)
    }

    /// From 0 to 1.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.is_logarithmic {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        share.clamp(0.0, 1.0)
    }

    pub(super) fn is_logarithmic(&self) -> bool {
        self.is_logarithmic
    }

    /// Round values within.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            let count = ((self.to - self.from) / self.step).round() as usize;
            return (0..=count).map(|it| self.from + it as f64 * self.step).collect();
        }
        let is_wide = self.to / self.from > 1e3;
        let mut ticks = vec![];
        let mut value = self.from;
        while value <= self.to * 1.001 {
            let digit = first_digit(value);
            if !is_wide || digit == 1.0 {
                ticks.push(value);
            }
            value = if digit == 2.0 { value * 2.5 } else { value * 2.0 };
        }
        ticks
    }
}

/// A value of an axis, without digits that say nothing.
pub(super) fn label(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    if rounded >= 1e6 {
        return format!("{} M", rounded / 1e6);
    }
    if rounded >= 10_000.0 { super::words::figure(rounded) } else { format!("{rounded}") }
}

fn magnitude(value: f64) -> f64 {
    10_f64.powf(value.log10().floor())
}

/// 1, 2 or 5, of a value that begins with one of them.
fn first_digit(value: f64) -> f64 {
    let digit = value / magnitude(value * 1.000_001);
    if digit < 1.5 {
        1.0
    } else if digit < 3.0 {
        2.0
    } else {
        5.0
    }
}

/// The next of 1, 2, 5, 10.
fn round_up(value: f64) -> f64 {
    let magnitude = magnitude(value);
    let steps = [1.0, 2.0, 5.0, 10.0];
    let found = steps.iter().find(|it| **it * magnitude >= value * 0.999_999);
    found.unwrap_or(&10.0) * magnitude
}

fn round_down(value: f64) -> f64 {
    let magnitude = magnitude(value * 1.000_001);
    let steps = [5.0, 2.0, 1.0];
    let found = steps.iter().find(|it| **it * magnitude <= value * 1.000_001);
    found.unwrap_or(&1.0) * magnitude
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn axes_end_at_round_values() {
        let check = |scale: &Scale, expected: &str| {
            let ticks: Vec<String> = scale.ticks().into_iter().map(label).collect();
            assert_eq!(ticks.join(" "), expected, "{scale:?}");
        };
        check(&Scale::from_zero(2.3), "0 0.5 1 1.5 2 2.5");
        check(&Scale::from_zero(31_800.0), "0 10,000 20,000 30,000 40,000");
        check(&Scale::from_zero(0.0), "0 0.2 0.4 0.6 0.8 1");
        check(&Scale::over(0.13, 7.0), "0.1 0.2 0.5 1 2 5 10");
        check(&Scale::over(1.0, 3.0), "0 1 2 3");
        check(&Scale::over(0.11, 4100.0), "0.1 1 10 100 1000");
    }

    proptest! {
        #[test]
        fn every_value_has_its_place(least in 1e-4..1e4f64, times in 1.0..1e6f64) {
            let most = least * times;
            let scale = Scale::over(least, most);
            prop_assert!(scale.at(least) <= scale.at(most));
            prop_assert!(scale.at(most) > 0.3, "{:?}", scale);
            let ticks = scale.ticks();
            prop_assert!((2..=12).contains(&ticks.len()), "{:?}", ticks);
            prop_assert!(ticks.windows(2).all(|it| it[0] < it[1]));
        }
    }
}
