//! Whether a difference is more than noise: a verdict needs the whole interval on one side.

use super::metrics::Metric;
use super::statistics::Ratio;

/// With fewer repetitions no interval means anything.
pub(crate) const REPETITIONS_MIN: usize = 3;

/// What an interval says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Better,
    /// The interval holds 1.
    Level,
    Worse,
}

impl Verdict {
    fn of(metric: Metric, ratio: &Ratio) -> Self {
        let (above, below) = (ratio.low > 1.0, ratio.high < 1.0);
        match (above, below, metric.more_is_better()) {
            (true, _, true) | (_, true, false) => Self::Better,
            (true, _, false) | (_, true, true) => Self::Worse,
            (false, false, _) => Self::Level,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Level => "level",
            Self::Worse => "worse",
        }
    }
}

/// What two sides' repetitions say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Judgement {
    /// Enough repetitions for a verdict.
    Told { ratio: Ratio, verdict: Verdict },
    /// Fewer than [`REPETITIONS_MIN`]; the ratio is all there is.
    TooFew { ratio: f64 },
    /// One side is, or can be, zero.
    NoRatio,
}

impl Judgement {
    /// Of two sides of one run, repetition by repetition.
    pub(crate) fn paired(metric: Metric, ours: &Samples, theirs: &Samples) -> Self {
        let in_both = |(repetition, value): &(usize, f64)| {
            let other = theirs.0.iter().find(|(other, _)| other == repetition)?;
            Some((*value, other.1))
        };
        let (ours, theirs): (Vec<f64>, Vec<f64>) = ours.0.iter().filter_map(in_both).unzip();
        Self::of(metric, ours.len(), Ratio::paired(&ours, &theirs))
    }

    /// Of two runs.
    pub(crate) fn unpaired(metric: Metric, ours: &Samples, theirs: &Samples) -> Self {
        let (ours, theirs) = (ours.values(), theirs.values());
        Self::of(metric, ours.len().min(theirs.len()), Ratio::unpaired(&ours, &theirs))
    }

    fn of(metric: Metric, repetitions: usize, ratio: Option<Ratio>) -> Self {
        match ratio {
            None => Self::NoRatio,
            Some(Ratio { ratio, .. }) if repetitions < REPETITIONS_MIN => Self::TooFew { ratio },
            Some(ratio) => Self::Told { verdict: Verdict::of(metric, &ratio), ratio },
        }
    }

    /// The ratio of the medians.
    pub(crate) fn ratio(&self) -> Option<f64> {
        match self {
            Self::Told { ratio, .. } => Some(ratio.ratio),
            Self::TooFew { ratio } => Some(*ratio),
            Self::NoRatio => None,
        }
    }
}

/// Values of one metric, each with its repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples(pub(crate) Vec<(usize, f64)>);

impl Samples {
    pub(crate) fn values(&self) -> Vec<f64> {
        self.0.iter().map(|(_, value)| *value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.iter().enumerate().map(|(at, value)| (at + 1, *value)).collect())
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let check = |metric, low, high, expected| {
            let ratio = Ratio { low, ratio: f64::midpoint(low, high), high };
            assert_eq!(Verdict::of(metric, &ratio), expected);
        };
        check(Metric::P50, 0.8, 0.9, Verdict::Better);
        check(Metric::P50, 0.9, 1.1, Verdict::Level);
        check(Metric::P50, 1.0, 1.1, Verdict::Level);
        check(Metric::P99, 1.01, 1.1, Verdict::Worse);
        check(Metric::Throughput, 1.01, 1.1, Verdict::Better);
        check(Metric::Gigabits, 0.8, 0.9, Verdict::Worse);
    }

    #[test]
    fn repetitions_stay_pairs_and_two_are_too_few() {
        let ours = samples(&[1.0, 2.0, 4.0]);
        let mut theirs = samples(&[2.0, 4.0, 8.0]);
        theirs.0.reverse();
        let told = Judgement::paired(Metric::P50, &ours, &theirs);
        let half = Ratio { low: 0.5, ratio: 0.5, high: 0.5 };
        assert_eq!(told, Judgement::Told { ratio: half, verdict: Verdict::Better });
        theirs.0.pop();
        let few = Judgement::paired(Metric::P50, &ours, &theirs);
        assert_eq!(few, Judgement::TooFew { ratio: 0.5 });
        let none = Judgement::paired(Metric::P50, &ours, &samples(&[0.0; 3]));
        assert_eq!(none, Judgement::NoRatio);
    }
}
