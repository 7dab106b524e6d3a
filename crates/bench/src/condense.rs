//! Makes histograms small enough to keep: a run has hundreds of them, each with thousands of steps.

use super::record::Run;

/// Steps that lie closer together become one; percentiles move up by no more.
const STEP_MAX: f64 = 1.01;

impl Run {
    /// Joins steps of histograms that lie within one percent. The percentiles beside them, the
    /// source of every table, stay as measured; curves cannot show the difference.
    pub(crate) fn condense(&mut self) {
        for measurement in &mut self.measurements {
            let load = &mut measurement.load;
            for latencies in [&mut load.latency, &mut load.service_time] {
                latencies.histogram_ns = condensed(&latencies.histogram_ns);
            }
        }
    }
}

/// As fewer steps: each takes the greatest value of those that it joins, as steps do anyway.
fn condensed(steps: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    let mut from = 0;
    for (value, count) in steps {
        match joined.last_mut() {
            Some(last) if *value as f64 <= from as f64 * STEP_MAX => {
                last.0 = *value;
                last.1 = last.1.saturating_add(*count);
            }
            _ => {
                from = *value;
                joined.push((*value, *count));
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::figures::Answers;
    use crate::testing;
    use ambit_load::Latencies;

    #[test]
    fn a_run_stays_what_it_says() {
        let (run, mut small) = (testing::run(), testing::run());
        small.condense();
        let steps = |run: &Run| run.measurements[0].load.latency.histogram_ns.len();
        assert!(steps(&small) * 2 < steps(&run), "{} of {}", steps(&small), steps(&run));
        assert_eq!(crate::text(&small), crate::text(&run));
        let once = small.clone();
        small.condense();
        assert!(steps(&small) <= steps(&once));
    }

    proptest! {
        #[test]
        fn no_answer_is_lost_and_none_moves_far(
            steps in prop::collection::btree_map(1..10_000_000_u64, 1..100_u64, 1..300),
        ) {
            let of = |steps: &[(u64, u64)]| {
                let latencies =
                    Latencies { histogram_ns: steps.to_vec(), ..Latencies::default() };
                Answers::of([&latencies]).unwrap()
            };
            let steps: Vec<(u64, u64)> = steps.into_iter().collect();
            let (before, after) = (of(&steps), of(&condensed(&steps)));
            prop_assert_eq!(before.count, after.count);
            let shares = [1.0, 0.9, 0.5, 0.1, 0.01, 0.001];
            for (before, after) in before.but(&shares).into_iter().zip(after.but(&shares)) {
                prop_assert!(after >= before && after <= before * STEP_MAX, "{before} {after}");
            }
        }
    }
}
