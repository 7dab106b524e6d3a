//! Medians, and how sure they are: bootstrap over repetitions, which stay pairs.

/// Resamples of the bootstrap.
const RESAMPLES: usize = 10_000;
/// What the interval leaves out at each end.
const TAIL: f64 = 0.025;

/// xorshift64*: reproducible from its seed, and good enough to shuffle with.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below the bound.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).expect("31 bits fit") % bound
    }

    /// Puts the items into random order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The middle of what was measured, and its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) most: f64,
}

impl Spread {
    /// Of at least one value.
    pub(super) fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        Self { least: sorted[0], median: middle(&sorted), most: sorted[sorted.len() - 1] }
    }
}

/// A ratio of medians with the interval that holds it with 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) low: f64,
    pub(super) ratio: f64,
    pub(super) high: f64,
}

impl Ratio {
    /// Of one side to the other, repetition by repetition.
    pub(super) fn of(ours: &[f64], theirs: &[f64]) -> Self {
        let count = ours.len().min(theirs.len());
        let mut random = Random::new(0x5eed);
        let resample = |_| {
            let picks: Vec<usize> = (0..count).map(|_| random.below(count)).collect();
            let pick = |from: &[f64]| {
                let picked: Vec<f64> = picks.iter().map(|at| from[*at]).collect();
                middle(&sorted(&picked))
            };
            pick(ours) / pick(theirs)
        };
        let ratios: Vec<f64> = (0..RESAMPLES).map(resample).collect();
        let ratios = sorted(&ratios);
        let at = |share: f64| ratios[(share * (RESAMPLES - 1) as f64).round() as usize];
        let ratio = middle(&sorted(&ours[..count])) / middle(&sorted(&theirs[..count]));
        Self { low: at(TAIL), ratio, high: at(1.0 - TAIL) }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ends() {
        let expected = Spread { least: 1.0, median: 2.5, most: 9.0 };
        assert_eq!(Spread::of(&[3.0, 1.0, 9.0, 2.0]), expected);
        assert_eq!(Spread::of(&[7.0]).median, 7.0);
    }

    #[test]
    fn a_constant_ratio_has_no_spread_and_noise_has() {
        let theirs = [10.0, 20.0, 30.0, 40.0];
        let exact = Ratio::of(&theirs.map(|value| value / 2.0), &theirs);
        assert_eq!((exact.low, exact.ratio, exact.high), (0.5, 0.5, 0.5));
        let noisy = Ratio::of(&[9.0, 11.0, 10.0, 12.0, 8.0, 10.5], &[10.0; 6]);
        assert!(noisy.low < 1.0 && noisy.high > 1.0 && noisy.low >= 0.8 && noisy.high <= 1.2);
    }

    #[test]
    fn shuffling_reaches_every_order() {
        let mut random = Random::new(42);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            random.shuffle(&mut items);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 6);
    }
}
