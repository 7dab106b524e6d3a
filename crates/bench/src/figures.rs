//! The figures of a run, calculated once for everything that shows it: for each case each mode's
//! measurements, for each metric the medians with their spread, and what they are compared with.

use std::collections::BTreeSet;

use ambit_load::{Latencies, Protocol};

use super::metrics::{Metric, Role};
use super::record::{Case, Measurement, ModeOutcome, ModeRun, Run};
use super::statistics::Spread;
use super::verdict::{Judgement, Samples};

/// The mode without a mesh.
pub(crate) const NONE: &str = "none";
/// The mode that others are measured by: Ambit's own.
pub(crate) const AMBIENT: &str = "ambient";
/// The experiment that is shown by its number of namespaces.
const TIERED: &str = "tiered";

/// Main figures of a case, so that a table of them is not too wide.
const MAIN_MAX: usize = 5;
/// What is the same in every mode is so within this.
const APART_MIN: f64 = 1.05;

/// A run, sorted out.
#[derive(Debug)]
pub(crate) struct Figures<'a> {
    pub(crate) run: &'a Run,
    pub(crate) cases: Vec<CaseFigures<'a>>,
}

/// A case.
#[derive(Debug)]
pub(crate) struct CaseFigures<'a> {
    pub(crate) case: &'a Case,
    pub(crate) shape: Shape,
    /// In the order of the run, those without a measurement included.
    pub(crate) modes: Vec<ModeFigures<'a>>,
    /// The metrics for which any mode has a value, in the order in which they are shown.
    pub(crate) lines: Vec<Line>,
}

/// A mode in a case.
#[derive(Debug)]
pub(crate) struct ModeFigures<'a> {
    pub(crate) mode: &'a ModeRun,
    /// By repetition.
    pub(crate) measurements: Vec<&'a Measurement>,
}

/// A metric over all modes.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) metric: Metric,
    /// One for each mode of the run.
    pub(crate) cells: Vec<Option<Cell>>,
}

/// A metric in one mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) spread: Spread,
    /// Against [`NONE`], where both have it.
    pub(crate) against_none: Option<Judgement>,
    /// Against [`AMBIENT`], where both have it.
    pub(crate) against_ambient: Option<Judgement>,
}

/// How a case loads, which decides what is worth showing first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// At a rate: how long do answers take?
    AtARate,
    /// As fast as they go: how many are there?
    Saturated,
    /// A stream: how many bits?
    Stream,
}

impl Shape {
    fn of(measurement: Option<&Measurement>) -> Self {
        match measurement.map(|it| &it.load) {
            Some(load) if load.protocol == Protocol::TcpStream => Self::Stream,
            Some(load) if load.requested_rate.is_none() => Self::Saturated,
            _ => Self::AtARate,
        }
    }

    /// What is shown first, or in little space.
    pub(crate) fn main(self) -> Vec<Metric> {
        use Metric::{Cpu, CpuPerGigabyte, Gigabits, P50, P90, P99, ReadsPerResponse, Throughput};
        match self {
            Self::AtARate => {
                let of_mesh = [Cpu(Role::Proxy), Cpu(Role::Waypoint)];
                [&[P50, P90, P99, Cpu(Role::All)], &of_mesh[..], &[ReadsPerResponse]].concat()
            }
            Self::Saturated => {
                let of_mesh = [Cpu(Role::Proxy), Cpu(Role::Waypoint)];
                [&[Throughput, P50, P99, Cpu(Role::All)], &of_mesh[..], &[ReadsPerResponse]]
                    .concat()
            }
            Self::Stream => {
                vec![Gigabits, CpuPerGigabyte(Role::All), CpuPerGigabyte(Role::Proxy)]
            }
        }
    }
}

impl<'a> Figures<'a> {
    pub(crate) fn of(run: &'a Run) -> Self {
        Self { run, cases: run.cases.iter().map(|case| CaseFigures::of(run, case)).collect() }
    }

    /// Whether the run is about how modes fare as namespaces grow.
    pub(crate) fn is_by_namespaces(&self) -> bool {
        let sizes: BTreeSet<u32> = self.run.cases.iter().map(|it| it.namespaces).collect();
        self.run.experiment == TIERED || sizes.len() > 1
    }
}

impl<'a> CaseFigures<'a> {
    fn of(run: &'a Run, case: &'a Case) -> Self {
        let of_case = || run.measurements.iter().filter(|it| it.case == case.name);
        let mode = |mode: &'a ModeRun| {
            let mut measurements: Vec<&Measurement> =
                of_case().filter(|it| it.mode == mode.name).collect();
            measurements.sort_by_key(|it| it.repetition);
            ModeFigures { mode, measurements }
        };
        let modes: Vec<ModeFigures<'_>> = run.modes.iter().map(mode).collect();
        let shape = Shape::of(of_case().next());
        let lines = Metric::all().into_iter().filter_map(|it| Line::of(it, shape, &modes));
        Self { case, shape, lines: lines.collect(), modes }
    }

    /// `rate: 1000 rps on 10 connections`. Titles alone come more than once.
    pub(crate) fn heading(&self) -> String {
        format!("{}: {}", self.case.name, self.case.title)
    }

    pub(crate) fn line(&self, metric: Metric) -> Option<&Line> {
        self.lines.iter().find(|it| it.metric == metric)
    }

    /// The metric of the mode at this place.
    pub(crate) fn cell(&self, metric: Metric, mode: usize) -> Option<&Cell> {
        self.line(metric)?.cells.get(mode)?.as_ref()
    }

    /// What is shown first, as far as it was measured.
    pub(crate) fn main(&self) -> Vec<Metric> {
        let mut main = self.shape.main();
        main.retain(|metric| match self.line(*metric) {
            // The same in every mode but for a finding.
            Some(line) if *metric == Metric::ReadsPerResponse => line.differs(),
            line => line.is_some(),
        });
        if main.len() > MAIN_MAX {
            // Between the first figure and the tail; least said by it.
            main.remove(1);
        }
        main
    }

    /// The words that load it, once.
    pub(crate) fn load(&self) -> String {
        let words = self.case.load.first().map(|it| it.join(" ")).unwrap_or_default();
        match self.case.load.len() {
            0 | 1 => words,
            count => format!("{words} (and {} more like it)", count - 1),
        }
    }

    /// Requests that failed in a mode, of how many, over all repetitions.
    pub(crate) fn failed(&self, mode: usize) -> (u64, u64) {
        let loads = self.modes[mode].measurements.iter().map(|it| &it.load);
        loads.fold((0_u64, 0_u64), |sum, it| {
            (sum.0.saturating_add(it.failed), sum.1.saturating_add(it.requests))
        })
    }
}

impl ModeFigures<'_> {
    pub(crate) fn samples(&self, metric: Metric) -> Samples {
        let value = |it: &&Measurement| Some((it.repetition, metric.value(it)?));
        Samples(self.measurements.iter().filter_map(value).collect())
    }

    /// All answers of all repetitions.
    pub(crate) fn latency(&self) -> Option<Answers> {
        Answers::of(self.measurements.iter().map(|it| &it.load.latency))
    }

    /// Why there is less of it than was asked for.
    pub(crate) fn failure(&self) -> Option<&str> {
        match &self.mode.outcome {
            ModeOutcome::Ran => None,
            ModeOutcome::Failed(reason) => Some(reason),
        }
    }
}

/// How long answers took, shortest first: nanoseconds, and how many took so long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    steps: Vec<(u64, u64)>,
    pub(crate) count: u64,
}

impl Answers {
    /// At least one.
    pub(crate) fn of<'a>(latencies: impl IntoIterator<Item = &'a Latencies>) -> Option<Self> {
        let steps = latencies.into_iter().flat_map(|it| it.histogram_ns.iter().copied());
        let mut steps: Vec<(u64, u64)> = steps.collect();
        steps.sort_unstable();
        // A record may say anything.
        let count = steps.iter().fold(0_u64, |sum, it| sum.saturating_add(it.1));
        (count > 0).then_some(Self { steps, count })
    }

    /// In milliseconds, how long the fastest answers took up to each share of slower ones; the
    /// shares become smaller.
    pub(crate) fn but(&self, slower: &[f64]) -> Vec<f64> {
        let mut steps = self.steps.iter();
        let (mut value, mut seen) = (0, 0);
        let within = slower.iter().map(|share| {
            let wanted = ((1.0 - share) * self.count as f64).ceil().max(1.0) as u64;
            while seen < wanted.min(self.count) {
                let Some((step, times)) = steps.next() else { break };
                (value, seen) = (*step, times.saturating_add(seen));
            }
            value as f64 / 1e6
        });
        within.collect()
    }
}

impl Line {
    /// Whether modes are far apart.
    pub(crate) fn differs(&self) -> bool {
        let medians = || self.cells.iter().flatten().map(|it| it.spread.median);
        medians().fold(0.0, f64::max) > APART_MIN * medians().fold(f64::MAX, f64::min)
    }

    fn of(metric: Metric, shape: Shape, modes: &[ModeFigures<'_>]) -> Option<Self> {
        let samples: Vec<Samples> = modes.iter().map(|it| it.samples(metric)).collect();
        let place = |name: &str| modes.iter().position(|it| it.mode.name == name);
        // A rate that is kept is no achievement, and one that is not has a warning of its own.
        let is_judged =
            metric.is_judged() && !(metric == Metric::Throughput && shape == Shape::AtARate);
        let against = |at: usize, reference: Option<usize>| {
            let reference = reference.filter(|it| *it != at && is_judged)?;
            let there = |it: usize| !samples[it].0.is_empty();
            (there(at) && there(reference))
                .then(|| Judgement::paired(metric, &samples[at], &samples[reference]))
        };
        let none = place(NONE).filter(|_| !metric.is_of_mesh());
        let ambient = place(AMBIENT);
        let is_none = |at: usize| modes[at].mode.name == NONE;
        let cell = |at: usize| {
            let spread = Spread::of(&samples[at].values())?;
            let against_ambient = against(at, ambient.filter(|_| !is_none(at)));
            Some(Cell { spread, against_none: against(at, none), against_ambient })
        };
        let cells: Vec<Option<Cell>> = (0..modes.len()).map(cell).collect();
        let says_something = |it: &Cell| it.spread.most > 0.0 || metric == Metric::Failed;
        cells.iter().flatten().any(says_something).then_some(Self { metric, cells })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::verdict::Verdict;

    #[test]
    fn modes_are_compared_with_none_and_with_ambient() {
        let run = testing::run();
        let figures = Figures::of(&run);
        let case = &figures.cases[0];
        let place = |name: &str| run.modes.iter().position(|it| it.name == name).unwrap();
        let verdict = |judgement: Option<Judgement>| match judgement {
            Some(Judgement::Told { verdict, .. }) => Some(verdict),
            _ => None,
        };
        let p50 = |mode| case.cell(Metric::P50, place(mode)).unwrap();
        assert_eq!(verdict(p50(AMBIENT).against_none), Some(Verdict::Worse));
        assert_eq!(verdict(p50("ztunnel").against_ambient), Some(Verdict::Worse));
        assert!(p50(NONE).against_none.is_none() && p50(NONE).against_ambient.is_none());
        let cpu = case.cell(Metric::Cpu(Role::Proxy), place("ztunnel")).unwrap();
        assert!(cpu.against_none.is_none() && cpu.against_ambient.is_some());
        assert!(case.cell(Metric::P50, place("linkerd")).is_none());
        let rate = case.cell(Metric::Throughput, place(AMBIENT)).unwrap();
        assert!(rate.against_none.is_none(), "the rate was asked for");
    }

    #[test]
    fn answers_of_all_repetitions_are_one() {
        let latencies = |histogram_ns: &[(u64, u64)]| Latencies {
            histogram_ns: histogram_ns.to_vec(),
            ..Latencies::default()
        };
        let (first, second) =
            (latencies(&[(1_000_000, 5), (4_000_000, 1)]), latencies(&[(2_000_000, 4)]));
        let answers = Answers::of([&first, &second]).unwrap();
        assert_eq!(answers.count, 10);
        assert_eq!(answers.but(&[1.0, 0.5, 0.4, 0.1, 0.01]), [1.0, 1.0, 2.0, 2.0, 4.0]);
        assert_eq!(Answers::of([&Latencies::default()]), None);
        let tampered = latencies(&[(1_000_000, u64::MAX), (2_000_000, u64::MAX)]);
        let answers = Answers::of([&tampered, &tampered]).unwrap();
        assert_eq!((answers.count, answers.but(&[0.5])), (u64::MAX, vec![1.0]));
    }

    #[test]
    fn a_case_s_load_decides_what_comes_first() {
        let run = testing::run();
        let figures = Figures::of(&run);
        let shapes: Vec<Shape> = figures.cases.iter().map(|it| it.shape).collect();
        assert_eq!(shapes, [Shape::AtARate, Shape::Saturated, Shape::Stream]);
        assert_eq!(figures.cases[2].main()[0], Metric::Gigabits);
        assert!(!figures.is_by_namespaces());
        assert!(Figures::of(&testing::tiered()).is_by_namespaces());
    }
}
