//! Reasons not to trust a measurement or a run, from its record alone.
//!
//! Every doubt is a sentence with the number behind it. Code that measures calls [`of_measurement`]
//! and [`of_run`] and keeps the sentences; code that shows a run groups them by kind
//! ([`gathered`]), because nobody reads a hundred lines.

use std::collections::BTreeMap;
use std::fmt;

use ambit_load::{BUSY_MAX, Protocol, Report};

use super::figures::{CaseFigures, Figures};
use super::metrics::failed_percent;
use super::record::{Ending, Host, Measurement, ModeOutcome, Run};
use super::statistics::chance_of_a_verdict;
use super::verdict::REPETITIONS_MIN;
use super::words::{self, figure, percent};

/// Less of the rate, in percent, and a mode was not asked what the others were.
const RATE_PERCENT_MIN: f64 = 99.0;
/// More for others, and the host is not ours.
const STOLEN_MAX: f64 = 0.01;
/// A frequency that moves more changes every time.
const FREQUENCY_MOVED_MAX: f64 = 0.05;
/// Of each processor, before a run begins.
const LOAD_AVERAGE_MAX: f64 = 0.5;
/// With as many repetitions noise gets a verdict no more often than its interval says.
const REPETITIONS_SURE: usize = 6;
/// What programs say of themselves that were not built to be measured: Ambit's and ztunnel's.
const NOT_OPTIMISED: [&str; 2] = ["debug build", "BuildProfile:\"debug\""];
/// Reasons of failed requests that are named.
const REASONS_MAX: usize = 3;

/// Why not to trust a measurement. Fields are percent unless they say otherwise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Doubt {
    /// Ended before its time.
    Interrupted { seconds: f64 },
    /// The load generator could not keep up.
    Saturated { late: f64, part: f64 },
    /// Fewer requests left than were to.
    RateMissed { achieved: f64, requested: f64 },
    /// Some requests had no good answer.
    Failed { share: f64, reasons: String },
    /// At a rate: nothing was left of the host.
    Busy { busy: f64 },
    /// As fast as they go: of course nothing was left, but whose limit is it?
    BusyAtMost { busy: f64 },
    /// Another guest took processor time.
    Stolen { stolen: f64 },
    /// The clock of the processor moved.
    FrequencyMoved { before_mhz: f64, after_mhz: f64 },
}

impl Doubt {
    /// Doubts of a kind are shown together.
    fn kind(&self) -> std::mem::Discriminant<Self> {
        std::mem::discriminant(self)
    }

    /// How bad it is among its kind.
    fn weight(&self) -> f64 {
        match self {
            Self::Interrupted { seconds } => -seconds,
            Self::Saturated { late, part } => part.max(*late),
            Self::RateMissed { achieved, requested } => -achieved / requested,
            Self::Failed { share, .. } => *share,
            Self::Busy { busy } | Self::BusyAtMost { busy } => *busy,
            Self::Stolen { stolen } => *stolen,
            Self::FrequencyMoved { before_mhz, after_mhz } => (after_mhz / before_mhz - 1.0).abs(),
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted { seconds } => {
                write!(f, "interrupted after {seconds:.1} s; what was measured until then counts")
            }
            Self::Saturated { late, part } => {
                let of = match part {
                    0.0 => String::new(),
                    part => format!(", which is up to {} of a percentile", percent(*part)),
                };
                write!(
                    f,
                    "the load generator could not keep up ({} of its sends left late{of}): \
                     latencies are partly its own",
                    percent(*late)
                )
            }
            Self::RateMissed { achieved, requested } => write!(
                f,
                "only {} of {} requests/s left: more did not find a connection in time, and \
                 latencies are those of a lower rate",
                figure(*achieved),
                figure(*requested)
            ),
            Self::Failed { share, reasons } => {
                write!(f, "{} of the requests were lost ({reasons})", percent(*share))
            }
            Self::Busy { busy } => write!(
                f,
                "the host was {} busy: latencies are those of waiting for a processor",
                percent(*busy)
            ),
            Self::BusyAtMost { busy } => write!(
                f,
                "the host was {} busy, as it must be when load, application and proxies share it \
                 and go as fast as they can: the throughput tells what a request costs all of \
                 them, not what a proxy alone could carry",
                percent(*busy)
            ),
            Self::Stolen { stolen } => {
                write!(f, "other guests of the hardware took {} of the host", percent(*stolen))
            }
            Self::FrequencyMoved { before_mhz, after_mhz } => write!(
                f,
                "the processors' frequency moved from {before_mhz:.0} to {after_mhz:.0} MHz"
            ),
        }
    }
}

/// Why not to trust a measurement.
pub(crate) fn of_measurement(of: &Measurement) -> Vec<Doubt> {
    let (load, host) = (&of.load, &of.host);
    let mut doubts = Vec::new();
    if load.interrupted {
        doubts.push(Doubt::Interrupted { seconds: load.seconds });
    }
    if load.generator.saturated {
        let late = load.generator.late as f64 * 100.0 / load.requests.max(1) as f64;
        let part = load.latest().map_or(0.0, |it| it.late_part() * 100.0);
        doubts.push(Doubt::Saturated { late, part });
    }
    doubts.extend(rate_missed(load));
    if load.failed > 0 {
        let (share, reasons) = (failed_percent(load), reasons(&load.errors));
        doubts.push(Doubt::Failed { share, reasons });
    }
    if host.busy > BUSY_MAX {
        let busy = host.busy * 100.0;
        let is_at_a_rate = load.requested_rate.is_some();
        doubts.push(if is_at_a_rate { Doubt::Busy { busy } } else { Doubt::BusyAtMost { busy } });
    }
    if host.stolen > STOLEN_MAX {
        doubts.push(Doubt::Stolen { stolen: host.stolen * 100.0 });
    }
    let (before_mhz, after_mhz) = (host.mhz_before, host.mhz_after);
    let is_told = before_mhz > 0.0 && after_mhz > 0.0;
    if is_told && (after_mhz / before_mhz - 1.0).abs() > FREQUENCY_MOVED_MAX {
        doubts.push(Doubt::FrequencyMoved { before_mhz, after_mhz });
    }
    doubts
}

/// In an open loop. Over the time in which requests were to leave, not until the last answer.
fn rate_missed(load: &Report) -> Option<Doubt> {
    let requested = load.requested_rate.filter(|rate| *rate > 0.0)?;
    let sent = load.requests.saturating_sub(load.unsent) as f64;
    let seconds = match load.requested_seconds {
        Some(seconds) if !load.interrupted => seconds,
        _ => load.attack_seconds,
    };
    let achieved = sent / Some(seconds).filter(|it| *it > 0.0)?;
    (achieved * 100.0 < requested * RATE_PERCENT_MIN)
        .then_some(Doubt::RateMissed { achieved, requested })
}

fn reasons(errors: &BTreeMap<String, u64>) -> String {
    let mut errors: Vec<_> = errors.iter().collect();
    errors.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown =
        errors.iter().take(REASONS_MAX).map(|(reason, count)| format!("{reason} x {count}"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match errors.len() {
        0 => "no reason given".to_owned(),
        count if count > REASONS_MAX => format!("{shown}, and other reasons"),
        _ => shown,
    }
}

/// Why not to begin yet: the load average of the minute before.
pub(crate) fn before(host: &Host, load_average: f64) -> Option<String> {
    let most = host.cpus as f64 * LOAD_AVERAGE_MAX;
    (load_average > most).then(|| {
        format!(
            "the load average was {load_average:.1} on {} processors before the run began: \
             something else runs here",
            host.cpus
        )
    })
}

/// Why not to trust a run as a whole.
pub(crate) fn of_run(run: &Run) -> Vec<String> {
    let mut doubts = Vec::new();
    match &run.ending {
        Ending::Complete => {}
        Ending::Interrupted => doubts
            .push("the run was interrupted: this is what had been measured by then".to_owned()),
        Ending::Failed(reason) => doubts
            .push(format!("the run ended early: {reason}; this is what had been measured by then")),
    }
    doubts.extend(unoptimised(run));
    doubts.extend(not_as_shipped(run));
    doubts.extend(missing(run));
    let repetitions = run.repetitions;
    if repetitions < REPETITIONS_MIN {
        doubts.push(format!(
            "{} too few for any verdict; with {REPETITIONS_MIN} there are some, with \
             {REPETITIONS_SURE} or more they can be relied on",
            match repetitions {
                1 => "1 repetition is".to_owned(),
                count => format!("{count} repetitions are"),
            }
        ));
    } else if repetitions < REPETITIONS_SURE {
        doubts.push(format!(
            "with {repetitions} repetitions, noise alone gets a verdict in {:.0} of 100 \
             comparisons of what is the same; with {REPETITIONS_SURE} or more in about 5",
            chance_of_a_verdict(repetitions) * 100.0
        ));
    }
    doubts
}

/// Ambit as everybody builds it, which is not what is shipped.
fn not_as_shipped(run: &Run) -> Option<String> {
    let version = run.programs.get("ambit")?;
    let is_so = version.contains(" build") && !NOT_OPTIMISED.iter().any(|it| version.contains(it));
    is_so.then(|| {
        "ambit is not the program that is shipped, which is optimised at link time too: a claim \
         about its speed is made with `cargo xtask dist`, or `cargo build --profile dist`"
            .to_owned()
    })
}

/// Programs that are slower than those that anybody would run.
fn unoptimised(run: &Run) -> Option<String> {
    let is_debug = |version: &str| NOT_OPTIMISED.iter().any(|it| version.contains(it));
    let names = run.programs.iter().filter(|it| is_debug(it.1)).map(|it| it.0.clone());
    let names: Vec<String> = names.collect();
    let builds = if names.len() == 1 { "is a debug build" } else { "are debug builds" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {builds}, many times slower than a release: nothing here shows what it costs, and \
             no verdict against it or for another mode holds; build with --profile dist",
            words::listed(&names)
        )
    })
}

/// Modes that ran and yet were measured less often than was asked for.
fn missing(run: &Run) -> Option<String> {
    let mut missing = Vec::new();
    for mode in run.modes.iter().filter(|it| it.outcome == ModeOutcome::Ran) {
        let mut cases: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for case in &run.cases {
            let of = run.measurements.iter();
            let count = of.filter(|it| it.mode == mode.name && it.case == case.name).count();
            cases.entry(count).or_default().push(case.name.clone());
        }
        for (count, cases) in cases.range(..run.repetitions) {
            let cases = words::listed(cases);
            missing.push(format!("{} {} in {cases}", mode.name, words::counted(*count, "time")));
        }
    }
    (!missing.is_empty()).then(|| {
        format!("measured less often than {} times: {}", run.repetitions, missing.join("; "))
    })
}

/// All doubts, each kind once: with its worst case, and how often it occurred.
pub(crate) fn gathered(figures: &Figures<'_>) -> Vec<String> {
    let run = figures.run;
    let mut lines = run.warnings.clone();
    lines.extend(of_run(run));
    lines.extend(figures.cases.iter().flat_map(lost));
    let mut kinds: Vec<Vec<(&Measurement, Doubt)>> = Vec::new();
    let mut others: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    for measurement in &run.measurements {
        let doubts = of_measurement(measurement);
        let is_told = |text: &&String| doubts.iter().any(|it| it.to_string() == **text);
        for text in measurement.warnings.iter().filter(|it| !is_told(it)) {
            others.entry(text).or_default().push(measurement);
        }
        let is_lost = |it: &Doubt| matches!(it, Doubt::Failed { .. });
        for doubt in doubts.into_iter().filter(|it| !is_lost(it)) {
            match kinds.iter_mut().find(|it| it[0].1.kind() == doubt.kind()) {
                Some(kind) => kind.push((measurement, doubt)),
                None => kinds.push(vec![(measurement, doubt)]),
            }
        }
    }
    for kind in &kinds {
        let worst = kind.iter().max_by(|a, b| a.1.weight().total_cmp(&b.1.weight()));
        let of_kind: Vec<&Measurement> = kind.iter().map(|it| it.0).collect();
        lines.extend(worst.map(|(at, doubt)| placed(run, &doubt.to_string(), Some(at), &of_kind)));
    }
    lines.extend(others.iter().map(|(text, of)| placed(run, text, None, of)));
    let mut once = Vec::new();
    for line in lines {
        if !once.contains(&line) {
            once.push(line);
        }
    }
    once
}

/// What modes lost in a case.
fn lost(case: &CaseFigures<'_>) -> Vec<String> {
    let lost = case.modes.iter().enumerate().filter_map(|(at, mode)| {
        let (failed, requests) = case.failed(at);
        let mut errors = BTreeMap::new();
        for (reason, count) in mode.measurements.iter().flat_map(|it| &it.load.errors) {
            let sum: &mut u64 = errors.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        (failed > 0).then(|| {
            format!(
                "{} of the requests of {} were lost in {} ({}){}",
                percent(failed as f64 * 100.0 / requests.max(1) as f64),
                mode.mode.name,
                case.case.name,
                reasons(&errors),
                timed(&mode.measurements, failed)
            )
        })
    });
    lost.collect()
}

/// How many of the lost requests are in the latencies: error answers, and those that were waited
/// for until the end. What was refused or reset is not, and would have been slow or quick.
fn timed(measurements: &[&Measurement], failed: u64) -> String {
    let loads = measurements.iter().map(|it| &it.load);
    let mut loads = loads.filter(|it| it.protocol != Protocol::TcpStream).peekable();
    if loads.peek().is_none() {
        return String::new();
    }
    let untimed = |it: &Report| it.requests.saturating_sub(it.latency.count).min(it.failed);
    let untimed = loads.fold(0_u64, |sum, it| sum.saturating_add(untimed(it))).min(failed);
    let without = "were not timed, so latencies may look better than they are";
    let within =
        "were timed: errors until they came, the others for as long as they were waited for";
    match (untimed, failed - untimed) {
        (0, _) => format!("; all of them {within}"),
        (_, 0) => format!("; they {without}"),
        (untimed, timed) => format!("; {untimed} {without}, and {timed} {within}"),
    }
}

/// A sentence, and in which measurements it holds.
fn placed(run: &Run, text: &str, worst: Option<&Measurement>, of: &[&Measurement]) -> String {
    if let [only] = of {
        return format!("{text} ({}, {}, repetition {})", only.mode, only.case, only.repetition);
    }
    let mut modes: Vec<(&str, usize)> = Vec::new();
    for mode in of.iter().map(|it| it.mode.as_str()) {
        match modes.iter_mut().find(|it| it.0 == mode) {
            Some((_, count)) => *count += 1,
            None => modes.push((mode, 1)),
        }
    }
    let modes: Vec<String> = modes.iter().map(|(mode, count)| format!("{mode} {count}")).collect();
    let worst = worst.map(|it| format!("worst: {}, {}; ", it.mode, it.case));
    format!(
        "{text} ({}in {} of {} measurements: {})",
        worst.unwrap_or_default(),
        of.len(),
        run.measurements.len(),
        modes.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn every_doubt_has_its_bound() {
        let check = |change: fn(&mut Measurement), expected: &[&str]| {
            let mut measurement = testing::measurement("rate", "ambient", 1);
            change(&mut measurement);
            let doubts = of_measurement(&measurement);
            let doubts: Vec<String> = doubts.iter().map(ToString::to_string).collect();
            assert_eq!(doubts.len(), expected.len(), "{doubts:?}");
            for (doubt, words) in doubts.iter().zip(expected) {
                assert!(doubt.contains(words), "{doubt}");
            }
        };
        check(|_| (), &[]);
        check(|it| it.load.generator.saturated = true, &["could not keep up (0 %"]);
        check(|it| it.load.generator.late = 200, &[]);
        check(
            |it| {
                let load = &mut it.load;
                (load.generator.late, load.generator.saturated) = (200, true);
                load.generator.late_adds.p99_us = load.latency.p99_us / 2.0;
            },
            &["could not keep up (2.00 % of its sends left late, which is up to 50.0 % of a"],
        );
        check(|it| it.load.unsent = 500, &["only 950 of 1000 requests/s left"]);
        check(|it| it.load.unsent = 50, &[]);
        check(|it| it.load.failed = 261, &["2.61 % of the requests were lost (no reason given)"]);
        check(|it| it.host.busy = 0.97, &["97.0 % busy: latencies"]);
        check(
            |it| (it.host.busy, it.load.requested_rate) = (0.97, None),
            &["97.0 % busy, as it must be"],
        );
        check(|it| it.host.stolen = 0.02, &["took 2.00 % of the host"]);
        check(|it| it.host.mhz_after = 2500.0, &["from 3000 to 2500 MHz"]);
        check(|it| (it.host.mhz_before, it.host.mhz_after) = (0.0, 2500.0), &[]);
        check(|it| it.load.interrupted = true, &["interrupted after 10.0 s"]);
    }

    #[test]
    fn a_run_before_and_after() {
        let host = Host { cpus: 4, ..Host::default() };
        assert_eq!(before(&host, 1.9), None);
        assert!(before(&host, 2.1).unwrap().contains("2.1 on 4 processors"));
        let mut run = testing::run();
        assert_eq!(of_run(&run), Vec::<String>::new());
        run.programs.insert("ambit".to_owned(), "0.1.0, debug build; 180 MB".to_owned());
        let doubts = of_run(&run);
        assert!(doubts[0].contains("ambit is a debug build, many times slower"), "{doubts:?}");
        assert_eq!(doubts.len(), 1, "{doubts:?}");
        run.programs.insert("ambit".to_owned(), "0.1.0, release build; 80 MB".to_owned());
        let doubts = of_run(&run);
        assert!(doubts[0].contains("not the program that is shipped"), "{doubts:?}");
        run.programs = testing::run().programs;
        run.repetitions = 7;
        assert!(
            of_run(&run)[0].contains("than 7 times: none 6 times in rate, saturation and stream;")
        );
        (run.repetitions, run.ending) = (2, Ending::Interrupted);
        let doubts = of_run(&run);
        assert!(doubts[0].contains("was interrupted") && doubts[1].contains("2 repetitions are"));
        (run.repetitions, run.ending) = (3, Ending::Failed("no room".to_owned()));
        let doubts = of_run(&run);
        assert!(doubts[0].contains("no room") && doubts[1].contains("in 25 of 100"), "{doubts:?}");
    }

    #[test]
    fn each_kind_is_told_once_with_its_worst() {
        let mut run = testing::run();
        for (at, measurement) in run.measurements.iter_mut().enumerate().take(5) {
            measurement.host.stolen = 0.02 + at as f64 / 100.0;
            measurement.warnings =
                of_measurement(measurement).iter().map(ToString::to_string).collect();
            measurement.warnings.push("odd".to_owned());
        }
        let lines = gathered(&Figures::of(&run));
        let of = |words: &str| lines.iter().filter(|it| it.contains(words)).collect::<Vec<_>>();
        assert_eq!(of("other guests").len(), 1, "{lines:?}");
        assert!(of("other guests")[0].contains("took 6.00 %"), "{lines:?}");
        assert!(of("other guests")[0].contains("in 5 of"), "{lines:?}");
        assert_eq!(of("odd").len(), 1, "{lines:?}");
        assert!(
            of("2.61 % of the requests of envoy")[0].contains("lost in rate (status 503"),
            "{lines:?}"
        );
    }

    #[test]
    fn what_is_lost_is_timed_or_not() {
        let check = |answers, expected: &str| {
            let mut measurement = testing::measurement("rate", "ambient", 1);
            (measurement.load.failed, measurement.load.latency.count) = (100, answers);
            let words = timed(&[&measurement], 100);
            assert!(words.starts_with(expected), "{words}");
        };
        check(10_000, "; all of them were timed: errors");
        check(9_900, "; they were not timed, so latencies");
        check(
            9_990,
            "; 10 were not timed, so latencies may look better than they are, and 90 were",
        );
        let mut stream = testing::measurement("stream", "ambient", 1);
        stream.load.protocol = Protocol::TcpStream;
        assert_eq!(timed(&[&stream], 1), "");
    }
}
