//! Compares two runs of an experiment, number by number: what changed, and whether by more than
//! noise.
//!
//! Nothing pairs the repetitions of two runs, so intervals are wider than within a run; and another
//! time or another host changes figures too. The output says both.

use std::fmt;

use super::figures::Figures;
use super::grid::{Grid, wrapped};
use super::metrics::Metric;
use super::record::{ModeOutcome, RUN_VERSION, Run};
use super::statistics::{Ratio, Spread};
use super::verdict::{Judgement, REPETITIONS_MIN};
use super::words;

/// The last two are of verdicts.
const HEADS: [&str; 7] = ["mode", "figure", "first", "second", "times", "95 %", "verdict"];

/// Two runs that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// Numbers of different things.
    #[error(
        "the first run is of {first:?}, the second of {second:?}; compare runs of one experiment"
    )]
    Experiment {
        /// Of the first run.
        first: String,
        /// Of the second run.
        second: String,
    },
    /// Written by another ambit.
    #[error(
        "a run's version is {0}, and this ambit knows {RUN_VERSION}; read it with the ambit that \
         wrote it"
    )]
    Version(u32),
    /// No case and mode is in both.
    #[error("no mode was measured in a case of both runs; compare runs that share one")]
    NothingShared,
}

/// What two runs of one experiment share; its `Display` is the table for a terminal.
#[derive(Clone, Debug)]
pub struct RunComparison {
    /// What differs besides what was to be compared.
    differences: Vec<String>,
    rows: Vec<Row>,
}

/// A number of a mode in a case, in both runs.
#[derive(Clone, Debug)]
struct Row {
    case: String,
    mode: String,
    metric: Metric,
    first: Spread,
    second: Spread,
    /// The second against the first.
    judgement: Judgement,
}

/// Compares the second run with the first.
pub fn compare(first: &Run, second: &Run) -> Result<RunComparison, CompareError> {
    for run in [first, second] {
        if run.version != RUN_VERSION {
            return Err(CompareError::Version(run.version));
        }
    }
    if first.experiment != second.experiment {
        let (first, second) = (first.experiment.clone(), second.experiment.clone());
        return Err(CompareError::Experiment { first, second });
    }
    let rows = rows(&Figures::of(first), &Figures::of(second));
    if rows.is_empty() {
        return Err(CompareError::NothingShared);
    }
    Ok(RunComparison { differences: differences(first, second), rows })
}

fn rows(first: &Figures<'_>, second: &Figures<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in &first.cases {
        let Some(other) = second.cases.iter().find(|it| it.case.name == case.case.name) else {
            continue;
        };
        for mode in &case.modes {
            let name = &mode.mode.name;
            let Some(its) = other.modes.iter().find(|it| it.mode.name == *name) else { continue };
            let compared = case.main().into_iter().chain([Metric::Failed]);
            for metric in compared {
                let (ours, theirs) = (its.samples(metric), mode.samples(metric));
                let spreads = Spread::of(&theirs.values()).zip(Spread::of(&ours.values()));
                let judgement = Judgement::unpaired(metric, &ours, &theirs);
                let says_something = |(a, b): &(Spread, Spread)| a.most > 0.0 || b.most > 0.0;
                if let Some((first, second)) = spreads.filter(says_something) {
                    let (case, mode) = (case.case.name.clone(), name.clone());
                    rows.push(Row { case, mode, metric, first, second, judgement });
                }
            }
        }
    }
    rows
}

/// What differs between the runs besides their results.
fn differences(first: &Run, second: &Run) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differ = |what: &str, first: &str, second: &str| {
        if first != second {
            differences
                .push(format!("{what}: {first:?} in the first run, {second:?} in the second"));
        }
    };
    let (a, b) = (&first.host, &second.host);
    differ("processor", &a.cpu, &b.cpu);
    differ("processors", &a.cpus.to_string(), &b.cpus.to_string());
    differ("memory in bytes", &a.memory_bytes.to_string(), &b.memory_bytes.to_string());
    differ("kernel", &a.kernel, &b.kernel);
    differ("system", &a.system, &b.system);
    let seconds = |run: &Run| run.seconds_each.to_string();
    differ("seconds of each measurement", &seconds(first), &seconds(second));
    let repetitions = |run: &Run| run.repetitions.to_string();
    differ("repetitions", &repetitions(first), &repetitions(second));
    differ("commands", &first.commands.join("; "), &second.commands.join("; "));
    let names = first.programs.keys().chain(second.programs.keys());
    for name in names.collect::<std::collections::BTreeSet<_>>() {
        let version = |run: &Run| run.programs.get(name).cloned().unwrap_or("absent".to_owned());
        differ(name, &version(first), &version(second));
    }
    for case in &first.cases {
        let other = second.cases.iter().find(|it| it.name == case.name);
        let load = |words: &[Vec<String>]| words.first().map(|it| it.join(" ")).unwrap_or_default();
        if let Some(other) = other {
            differ(&format!("load of {}", case.name), &load(&case.load), &load(&other.load));
        }
    }
    for (which, run, other) in [("first", first, second), ("second", second, first)] {
        differences.extend(only_in(which, run, other));
    }
    differences
}

/// What one run has and the other has not.
fn only_in(which: &str, run: &Run, other: &Run) -> Vec<String> {
    let mut only = Vec::new();
    for case in &run.cases {
        if !other.cases.iter().any(|it| it.name == case.name) {
            only.push(format!("case {} is in the {which} run alone", case.name));
        }
    }
    for mode in &run.modes {
        if !other.modes.iter().any(|it| it.name == mode.name) {
            only.push(format!("mode {} is in the {which} run alone", mode.name));
        }
        if let ModeOutcome::Failed(reason) = &mode.outcome {
            only.push(format!("mode {} failed in the {which} run: {reason}", mode.name));
        }
    }
    if run.repetitions < REPETITIONS_MIN {
        let count = words::counted(run.repetitions, "repetition");
        only.push(format!("the {which} run has {count}: too few for a verdict"));
    }
    only
}

impl fmt::Display for RunComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.differences.is_empty() {
            f.write_str("The runs differ in more than their figures\n")?;
            for difference in &self.differences {
                f.write_str(&wrapped(&words::one_line(difference), "* ", "  "))?;
            }
            f.write_str("\n")?;
        }
        let mut cases: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !cases.contains(&row.case.as_str()) {
                cases.push(&row.case);
            }
        }
        // "Too few repetitions" is printed above.
        let is_told = |it: &Row| matches!(it.judgement, Judgement::Told { .. });
        let columns = if self.rows.iter().any(is_told) { HEADS.len() } else { HEADS.len() - 2 };
        for case in cases {
            let mut grid = Grid::new(HEADS.into_iter().take(columns));
            for row in self.rows.iter().filter(|it| it.case == case) {
                grid.rows.push(row.cells().into_iter().take(columns).collect());
            }
            write!(f, "{}\n{}\n", words::one_line(case), grid.text())?;
        }
        f.write_str("times: the second run's median by the first's")?;
        let is_any_told = columns == HEADS.len();
        f.write_str(if is_any_told {
            "; better or worse: its interval does not hold 1\n"
        } else {
            "\n"
        })
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let ratio = self.judgement.ratio().map(words::times).unwrap_or_default();
        let (interval, verdict) = match &self.judgement {
            Judgement::Told { ratio, verdict } => (interval(ratio), verdict.name()),
            Judgement::TooFew { .. } => (String::new(), "too few"),
            Judgement::NoRatio => (String::new(), ""),
        };
        vec![
            words::shortened(&words::one_line(&self.mode), 16),
            self.metric.heading(),
            words::spread(&self.first),
            words::spread(&self.second),
            ratio,
            interval,
            verdict.to_owned(),
        ]
    }
}

fn interval(ratio: &Ratio) -> String {
    format!("{}-{}", words::times(ratio.low), words::times(ratio.high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_run_equals_itself() {
        let run = testing::run();
        let comparison = compare(&run, &run).unwrap();
        let verdicts = comparison.rows.iter().map(|it| &it.judgement);
        let mut told = verdicts.filter_map(|it| it.ratio());
        assert!(told.all(|it| it == 1.0));
        let text = comparison.to_string();
        assert!(text.contains("level") && !text.contains("better\n"), "{text}");
        assert!(text.lines().all(|it| it.chars().count() <= 120), "{text}");
    }

    #[test]
    fn what_moved_is_told_with_what_differs() {
        let (first, mut second) = (testing::run(), testing::run());
        for measurement in second.measurements.iter_mut().filter(|it| it.mode == "ambient") {
            measurement.load.latency.p50_us *= 0.8;
        }
        second.host.kernel = "Linux 7.0".to_owned();
        second.modes.retain(|it| it.name != "linkerd");
        insta::assert_snapshot!(compare(&first, &second).unwrap());
    }

    #[test]
    fn without_verdicts_there_is_no_column_of_them() {
        let mut run = testing::run();
        run.repetitions = 2;
        run.measurements.retain(|it| it.repetition <= 2);
        let text = compare(&run, &run).unwrap().to_string();
        assert!(text.contains("2 repetitions: too few for a verdict"), "{text}");
        assert_eq!(text.matches("verdict").count(), 2, "{text}");
        assert!(text.lines().any(|it| it.ends_with("times")), "{text}");
    }

    #[test]
    fn other_experiments_and_versions_are_refused() {
        let check = |change: fn(&mut Run), words: &str| {
            let mut second = testing::run();
            change(&mut second);
            let error = compare(&testing::run(), &second).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(|it| it.experiment = "tiered".to_owned(), "of \"path\", the second of \"tiered\"");
        check(|it| it.version = 9, "a run's version is 9, and this ambit knows 1");
        check(|it| it.measurements.clear(), "no mode was measured in a case of both");
    }
}
