//! Medians, the spread of repetitions, and the confidence of a ratio of medians: the bootstrap.
//!
//! Everything here is deterministic: the same record yields the same interval on every reading.

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;
/// What the interval leaves out at each end.
const TAIL: f64 = 0.025;
/// What resamples are drawn with.
const SEED: u64 = 0x5eed;

/// xorshift64*: reproducible from its seed, and good enough to shuffle with.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below the bound.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).expect("31 bits fit") % bound
    }

    /// Puts the items into random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The median of the measured values, with minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let Ordered { sorted, .. } = Ordered::new(values);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let below = sorted[(sorted.len() - 1) / 2];
        Some(Self { least, median: f64::midpoint(below, sorted[half]), most })
    }
}

/// A ratio of medians with the interval that holds it with 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) low: f64,
    pub(crate) ratio: f64,
    pub(crate) high: f64,
}

impl Ratio {
    /// Of values that belong together one by one, as what one repetition measured: what moved both
    /// sides of a repetition cancels. `None` where a median to divide by can be zero.
    pub(crate) fn paired(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let count = ours.len().min(theirs.len());
        let (ours, theirs) = (Ordered::new(&ours[..count]), Ordered::new(&theirs[..count]));
        let mut picks = Picks::new(count);
        Self::resampled(&ours, &theirs, |random| {
            picks.draw(random);
            (ours.median(&picks), theirs.median(&picks))
        })
    }

    /// Of values of two runs, which have nothing in common.
    pub(crate) fn unpaired(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let (ours, theirs) = (Ordered::new(ours), Ordered::new(theirs));
        let mut of_ours = Picks::new(ours.sorted.len());
        let mut of_theirs = Picks::new(theirs.sorted.len());
        Self::resampled(&ours, &theirs, |random| {
            of_ours.draw(random);
            of_theirs.draw(random);
            (ours.median(&of_ours), theirs.median(&of_theirs))
        })
    }

    fn resampled(
        ours: &Ordered,
        theirs: &Ordered,
        mut medians: impl FnMut(&mut Random) -> (f64, f64),
    ) -> Option<Self> {
        if ours.sorted.is_empty() || theirs.sorted.is_empty() {
            return None;
        }
        let mut random = Random::new(SEED);
        let ratios = (0..RESAMPLES).map(|_| {
            let (ours, theirs) = medians(&mut random);
            Some(ours / theirs).filter(|it| it.is_finite())
        });
        let mut ratios = ratios.collect::<Option<Vec<f64>>>()?;
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| ratios[(share * (RESAMPLES - 1) as f64).round() as usize];
        let median = |of: &Ordered| Spread::of(&of.sorted).map(|it| it.median);
        let ratio = median(ours)? / median(theirs)?;
        ratio.is_finite().then(|| Self { low: at(TAIL), ratio, high: at(1.0 - TAIL) })
    }
}

/// Values in order, each with its place before, so that a resample's median needs no sorting.
struct Ordered {
    sorted: Vec<f64>,
    places: Vec<usize>,
}

impl Ordered {
    fn new(values: &[f64]) -> Self {
        let mut places: Vec<usize> = (0..values.len()).collect();
        places.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        Self { sorted: places.iter().map(|it| values[*it]).collect(), places }
    }

    fn median(&self, picks: &Picks) -> f64 {
        let count = self.sorted.len();
        let (mut below, mut seen) = (None, 0);
        for (value, place) in self.sorted.iter().zip(&self.places) {
            seen += picks.times[*place];
            if below.is_none() && seen > (count - 1) / 2 {
                below = Some(*value);
            }
            if let Some(below) = below.filter(|_| seen > count / 2) {
                return f64::midpoint(below, *value);
            }
        }
        f64::NAN
    }
}

/// How often a resample took each of the values.
struct Picks {
    times: Vec<usize>,
}

impl Picks {
    fn new(count: usize) -> Self {
        Self { times: vec![0; count] }
    }

    fn draw(&mut self, random: &mut Random) {
        self.times.fill(0);
        for _ in 0..self.times.len() {
            let at = random.below(self.times.len());
            self.times[at] += 1;
        }
    }
}

/// How often two equal sides still get a verdict.
///
/// With few repetitions the interval ends at the least and the most of them, so it is how often all
/// fall on one side; with more it is what the interval leaves out. A test holds it against
/// simulated noise.
pub(crate) fn chance_of_a_verdict(repetitions: usize) -> f64 {
    let times = i32::try_from(repetitions).unwrap_or(i32::MAX);
    0.5_f64.powi(times.saturating_sub(1)).max(2.0 * TAIL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn medians_and_ends() {
        let expected = Spread { least: 1.0, median: 2.5, most: 9.0 };
        assert_eq!(Spread::of(&[3.0, 1.0, 9.0, 2.0]), Some(expected));
        assert_eq!(Spread::of(&[7.0]).unwrap().median, 7.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_constant_ratio_has_no_spread_and_noise_has() {
        let theirs = [10.0, 20.0, 30.0, 40.0];
        let exact = Ratio::paired(&theirs.map(|value| value / 2.0), &theirs).unwrap();
        assert_eq!((exact.low, exact.ratio, exact.high), (0.5, 0.5, 0.5));
        let noisy = Ratio::paired(&[9.0, 11.0, 10.0, 12.0, 8.0, 10.5], &[10.0; 6]).unwrap();
        assert!(noisy.low < 1.0 && noisy.high > 1.0 && noisy.low >= 0.8 && noisy.high <= 1.2);
    }

    #[test]
    fn pairs_cancel_what_moved_both_and_strangers_do_not() {
        let (ours, theirs) = ([10.0, 20.0, 30.0, 40.0, 50.0], [11.0, 22.0, 33.0, 44.0, 55.0]);
        let paired = Ratio::paired(&ours, &theirs).unwrap();
        assert!(paired.high < 1.0, "{paired:?}");
        let unpaired = Ratio::unpaired(&ours, &theirs).unwrap();
        assert!(unpaired.low < 1.0 && unpaired.high > 1.0, "{unpaired:?}");
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        assert_eq!(Ratio::paired(&[1.0, 2.0, 3.0], &[0.0, 0.0, 0.0]), None);
        assert_eq!(Ratio::paired(&[], &[]), None);
        assert_eq!(Ratio::unpaired(&[1.0], &[]), None);
        let zero = Ratio::paired(&[0.0; 3], &[1.0; 3]).unwrap();
        assert_eq!((zero.low, zero.ratio, zero.high), (0.0, 0.0, 0.0));
    }

    #[test]
    fn shuffling_reaches_every_order() {
        let mut random = Random::new(42);
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            random.shuffle(&mut items);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn noise_gets_a_verdict_as_often_as_is_said() {
        const RUNS: usize = 400;
        let mut random = Random::new(7);
        for repetitions in [3, 4, 5, 6, 8] {
            let mut side = || -> Vec<f64> {
                (0..repetitions).map(|_| 900.0 + random.below(200) as f64).collect()
            };
            let is_told = |_: &usize| {
                let ratio = Ratio::paired(&side(), &side()).unwrap();
                ratio.low > 1.0 || ratio.high < 1.0
            };
            let share = (0..RUNS).filter(is_told).count() as f64 / RUNS as f64;
            let said = chance_of_a_verdict(repetitions);
            assert!((share - said).abs() < 0.04, "{repetitions}: {share}, said {said}");
        }
    }

    proptest! {
        #[test]
        fn a_resample_s_median_is_that_of_sorting_it(
            values in prop::collection::vec(-1e6..1e6f64, 1..12),
            seed: u64,
        ) {
            let mut random = Random::new(seed);
            let mut picks = Picks::new(values.len());
            picks.draw(&mut random);
            let picked = picks.times.iter().zip(&values);
            let picked: Vec<f64> =
                picked.flat_map(|(times, value)| vec![*value; *times]).collect();
            let expected = Spread::of(&picked).unwrap().median;
            prop_assert_eq!(Ordered::new(&values).median(&picks), expected);
        }

        #[test]
        fn an_interval_holds_its_ratio(
            ours in prop::collection::vec(1.0..1e3f64, 1..8),
            theirs in prop::collection::vec(1.0..1e3f64, 1..8),
        ) {
            for ratio in [Ratio::paired(&ours, &theirs), Ratio::unpaired(&ours, &theirs)] {
                let Ratio { low, high, .. } = ratio.unwrap();
                prop_assert!(low <= high && low > 0.0 && high.is_finite());
            }
        }
    }
}
