//! The run: every size, every repetition, every case, every mode, in an order that is shuffled
//! each time.
//!
//! A mode that fails is left out from then on, and its row gives the reason; the others continue.
//! Whatever ends the run, all measurements so far are kept and every machine is taken down.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ambit_load::Report;
use anyhow::{Context, Result, bail};
use futures::StreamExt;

use super::bed::{Bed, Place};
use super::calls::Tracepoints;
use super::doubts;
use super::experiment::{Experiment, Load, Size};
use super::modes::Mode;
use super::record::{Calls, Ending, Measurement, ModeOutcome, Run, Usage};
use super::roles::LOAD;
use super::statistics::Random;

/// Memory is read near the end of a load, while its connections are open.
const MEMORY_AT: f64 = 0.9;
/// System calls are counted in the middle of a load: its processes are there by then, it has begun,
/// and not ended.
const COUNT_PREPARED: f64 = 0.1;
const COUNT_FROM: f64 = 0.25;
const COUNT_UNTIL: f64 = 0.75;

/// The settings of a run.
pub(super) struct Settings {
    pub(super) place: Place,
    pub(super) repetitions: usize,
    pub(super) duration: Duration,
    pub(super) warm_up: Duration,
    /// Where the logs of failed modes go.
    pub(super) logs: PathBuf,
}

/// A run under way.
pub(super) struct Engine<'a> {
    settings: &'a Settings,
    random: Random,
    tracepoints: Option<Tracepoints>,
    beds: Vec<Bed>,
    start: Instant,
    pub(super) run: Run,
    tell: &'a (dyn Fn(fmt::Arguments<'_>) + Sync),
}

impl<'a> Engine<'a> {
    /// A run that has only its description yet.
    pub(super) fn new(
        settings: &'a Settings,
        run: Run,
        counts_calls: bool,
        tell: &'a (dyn Fn(fmt::Arguments<'_>) + Sync),
    ) -> Result<Self> {
        let tracepoints = counts_calls.then(Tracepoints::find).transpose()?;
        let (random, start) = (Random::new(run.seed), Instant::now());
        Ok(Self { settings, random, tracepoints, beds: Vec::new(), start, run, tell })
    }

    /// Does it all.
    pub(super) async fn drive(&mut self, experiment: &Experiment, modes: &[Mode]) -> Result<()> {
        for (number, size) in experiment.sizes.iter().enumerate() {
            self.bring_up(number, size, modes).await?;
            for repetition in 1..=self.settings.repetitions {
                for load in &size.cases {
                    self.measure_all(repetition, load).await?;
                }
            }
            for bed in &mut self.beds {
                bed.size_mut().after = bed.roles().await?.memory();
            }
            self.strike().await?;
        }
        Ok(())
    }

    /// Brings up the beds of a size, one after the other.
    async fn bring_up(&mut self, number: usize, size: &Size, modes: &[Mode]) -> Result<()> {
        for (position, mode) in modes.iter().enumerate() {
            if self.has_failed(mode) || !size.is_for(mode) {
                continue;
            }
            let place = &self.settings.place;
            let logs = self.settings.logs.join(mode.name);
            let mut bed = place.bed(*mode, &format!("{number}-{position}"), logs, size);
            (self.tell)(format_args!("{}: {}", mode.name, bed.beginning()));
            let pods = self.beds.iter().map(|bed| bed.size().pods).sum();
            // In the list before it is started, so that whatever happens it is taken down.
            let outcome = match place.ensure_room(size, pods) {
                Ok(()) => {
                    self.beds.push(bed);
                    let last = self.beds.len() - 1;
                    let outcome = self.beds[last].up(size).await;
                    bed = self.beds.pop().context("it was put there")?;
                    outcome
                }
                Err(error) => Err(error),
            };
            let (pods, seconds) = (bed.size().pods, bed.size().up_seconds);
            self.beds.push(bed);
            match outcome {
                Ok(()) => (self.tell)(format_args!(
                    "{}: {pods} pods are ready after {seconds:.1} s",
                    mode.name
                )),
                Err(error) => self.fail(self.beds.len() - 1, &error).await?,
            }
        }
        if self.beds.is_empty() && !self.run.modes.iter().any(|it| it.outcome == ModeOutcome::Ran) {
            bail!("no mode could be started");
        }
        Ok(())
    }

    fn has_failed(&self, mode: &Mode) -> bool {
        let failed = |it: &super::ModeRun| it.outcome != ModeOutcome::Ran;
        self.run.modes.iter().any(|it| it.name == mode.name && failed(it))
    }

    /// One repetition of one case in every mode that is left.
    async fn measure_all(&mut self, repetition: usize, load: &Load) -> Result<()> {
        let mut order: Vec<&'static str> = self.beds.iter().map(|bed| bed.mode().name).collect();
        self.random.shuffle(&mut order);
        for name in order {
            let Some(position) = self.beds.iter().position(|bed| bed.mode().name == name) else {
                continue;
            };
            match self.measure(repetition, &self.beds[position], load).await {
                Ok(measurement) => {
                    (self.tell)(format_args!("{}", Line(&measurement)));
                    self.run.measurements.push(measurement);
                }
                Err(error) => self.fail(position, &error).await?,
            }
        }
        Ok(())
    }

    async fn measure(&self, repetition: usize, bed: &Bed, load: &Load) -> Result<Measurement> {
        let (generators, words) = (&load.generators, &load.case.load);
        if !self.settings.warm_up.is_zero() {
            bed.drive(generators, words, self.settings.warm_up).await?;
        }
        let started_at = jiff::Timestamp::now().to_string();
        let before = bed.used().await?;
        let duration = self.settings.duration;
        let driven = bed.drive(generators, words, duration);
        // While its connections are open.
        let remembered = async {
            tokio::time::sleep(duration.mul_f64(MEMORY_AT)).await;
            Ok(before.memory_now())
        };
        let counted = async {
            match &self.tracepoints {
                None => Ok(BTreeMap::new()),
                Some(tracepoints) => count_calls(tracepoints, bed, duration).await,
            }
        };
        let (report, memory, calls) = tokio::try_join!(driven, remembered, counted)?;
        let (mut usage, host) = bed.used_since(&before).await?;
        if report.failed >= report.requests {
            bail!("no request had a good answer: {}", reasons(&report));
        }
        let generator = &report.generator;
        let own = usage.entry(LOAD.to_owned()).or_default();
        *own = Usage {
            user_seconds: own.user_seconds + generator.user_seconds,
            system_seconds: own.system_seconds + generator.system_seconds,
            voluntary_switches: own.voluntary_switches + generator.voluntary_switches,
            involuntary_switches: own.involuntary_switches + generator.involuntary_switches,
            processes: own.processes + generators.len(),
            ..*own
        };
        // The count in the middle is scaled to the whole.
        let share = 1.0 / (COUNT_UNTIL - COUNT_FROM);
        let calls = calls.into_iter().map(|(role, calls)| (role, calls.times(share)));
        let mut measurement = Measurement {
            repetition,
            mode: bed.mode().name.to_owned(),
            case: load.case.name.clone(),
            started_at,
            load: report,
            usage,
            memory_before: before.memory_before(),
            memory,
            calls: calls.collect(),
            host,
            warnings: Vec::new(),
        };
        let doubts = doubts::of_measurement(&measurement);
        measurement.warnings = doubts.iter().map(ToString::to_string).collect();
        Ok(measurement)
    }

    /// A mode takes no part any more: its bed is taken down, its logs are kept.
    async fn fail(&mut self, position: usize, error: &anyhow::Error) -> Result<()> {
        let bed = &mut self.beds[position];
        let name = bed.mode().name;
        (self.tell)(format_args!("{name}: takes no part from here on: {error:#}"));
        let kept = bed.keep_logs();
        let run = self.run.modes.iter_mut().find(|it| it.name == name);
        run.context("every mode is in the record")?.outcome =
            ModeOutcome::Failed(format!("{error:#}"));
        // It stays in the list until it is down: an interrupted or failed attempt is repeated
        // later.
        let down = bed.down().await.with_context(|| taking_down(name));
        if down.is_ok() {
            let bed = self.beds.remove(position);
            self.keep_size(&bed);
        }
        kept.with_context(|| format!("keep the logs of {name}"))?;
        down
    }

    fn keep_size(&mut self, bed: &Bed) {
        if let Some(mode) = self.run.modes.iter_mut().find(|it| it.name == bed.mode().name) {
            mode.machines.push(bed.size().clone());
        }
    }

    /// Takes everything down that is there. What cannot be taken down stays in the list.
    pub(super) async fn strike(&mut self) -> Result<()> {
        let at_once = self.settings.place.down_at_once();
        // In the list until all of them are down, as above.
        let downs = futures::stream::iter(self.beds.iter_mut().map(Bed::down)).buffered(at_once);
        let downs: Vec<Result<()>> = downs.collect().await;
        let mut first_error = Ok(());
        for (bed, down) in std::mem::take(&mut self.beds).into_iter().zip(downs) {
            if down.is_err() {
                first_error = first_error.and(down.with_context(|| taking_down(bed.mode().name)));
                self.beds.push(bed);
                continue;
            }
            if !self.has_failed(bed.mode()) {
                bed.forget_logs();
            }
            self.keep_size(&bed);
        }
        first_error
    }

    /// What to do about what could not be taken down, if anything could not.
    pub(super) fn left(&self) -> Option<String> {
        self.settings.place.remedy(self.beds.iter())
    }

    /// The record, with how it ended.
    pub(super) fn finish(mut self, ending: Ending) -> Run {
        for bed in std::mem::take(&mut self.beds) {
            self.keep_size(&bed);
        }
        self.run.ending = ending;
        self.run.seconds = self.start.elapsed().as_secs_f64();
        let doubts = doubts::of_run(&self.run);
        self.run.warnings.extend(doubts);
        self.run
    }
}

fn taking_down(mode: &str) -> String {
    format!("take down what {mode} was measured on")
}

/// Counts the roles' system calls in the middle of a load.
async fn count_calls(
    tracepoints: &Tracepoints,
    bed: &Bed,
    duration: Duration,
) -> Result<BTreeMap<String, Calls>> {
    let start = tokio::time::Instant::now();
    tokio::time::sleep_until(start + duration.mul_f64(COUNT_PREPARED)).await;
    let counters = tracepoints.count(&bed.roles().await?)?;
    tokio::time::sleep_until(start + duration.mul_f64(COUNT_FROM)).await;
    let before = counters.read()?;
    tokio::time::sleep_until(start + duration.mul_f64(COUNT_UNTIL)).await;
    let after = counters.read()?;
    let since = |(role, calls): (String, Calls)| {
        let earlier = before.get(&role).copied().unwrap_or_default();
        (role, calls.since(&earlier))
    };
    Ok(after.into_iter().map(since).collect())
}

/// Why requests failed, most often first.
fn reasons(report: &Report) -> String {
    let mut reasons: Vec<_> = report.errors.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let words = reasons.iter().map(|(reason, count)| format!("{reason} x {count}"));
    words.collect::<Vec<_>>().join(", ")
}

/// One measurement in a line.
struct Line<'a>(&'a Measurement);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measurement { repetition, mode, case, load, .. } = self.0;
        let ms = |us: f64| us / 1e3;
        let latency = &load.latency;
        write!(f, "{repetition}  {case:<28} {mode:<17} {:>9.1}/s", load.throughput)?;
        if load.gigabits_per_second_out > 0.1 {
            write!(f, "  {:.2} Gbit/s", load.gigabits_per_second_out)?;
        }
        write!(f, "  p50 {:.2} ms  p99 {:.2} ms", ms(latency.p50_us), ms(latency.p99_us))?;
        if load.failed > 0 {
            write!(f, "  {} of {} failed", load.failed, load.requests)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use ambit_cluster::Cluster;
    use http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::bed::Stage;
    use crate::experiment::Manifests;
    use crate::played::playing;
    use crate::{modes, testing};

    /// The namespaces of a cluster, and whether somebody has asked for their end. They go when
    /// nobody waits for the end of another first.
    type Namespaces = Arc<Mutex<BTreeMap<String, (Value, bool)>>>;

    /// A cluster that does not let go of namespaces whose name contains `held`.
    async fn cluster(held: Arc<Mutex<&'static str>>) -> (Cluster, Namespaces) {
        let namespaces = Namespaces::default();
        let known = namespaces.clone();
        let cluster = playing(move |method, path, object| {
            let status = |code: u16| (code, json!({"kind": "Status", "code": code}));
            let mut known = known.lock().unwrap();
            let held = *held.lock().unwrap();
            let is_free = |name: &str| held.is_empty() || !name.contains(held);
            let path = path.split('?').next().unwrap_or_default();
            let name = path.strip_prefix("/api/v1/namespaces/").unwrap_or_default();
            match *method {
                Method::POST => {
                    let name = object["metadata"]["name"].as_str().unwrap();
                    known.insert(name.to_owned(), (object.clone(), false));
                    (201, object.clone())
                }
                Method::GET if name.ends_with("/pods") => (200, json!({"items": []})),
                Method::GET => {
                    if known.iter().all(|(name, (_, is_asked))| *is_asked || !is_free(name)) {
                        known.retain(|name, _| !is_free(name));
                    }
                    known.get(name).map_or_else(|| status(404), |it| (200, it.0.clone()))
                }
                _ if !is_free(name) => status(403),
                _ => {
                    known.get_mut(name).unwrap().1 = true;
                    (200, json!({}))
                }
            }
        });
        (cluster.await, namespaces)
    }

    fn size() -> Size {
        let case = testing::run().cases.remove(0);
        let load = Load { case, generators: vec!["client".to_owned()] };
        Size {
            namespaces: 1,
            manifests: Manifests::Own(Vec::new()),
            policies: String::new(),
            waypoints: Vec::new(),
            cases: vec![load],
            beside: None,
            variant: None,
            stranger: None,
        }
    }

    #[tokio::test]
    async fn namespaces_are_deleted_together_and_stay_known_until_they_are_gone() {
        let held = Arc::new(Mutex::new("ambient"));
        let (cluster, namespaces) = cluster(held.clone()).await;
        let stage =
            Stage { cluster, run: "1-2".to_owned(), proxies: Vec::new(), is_cpu_told: false };
        let settings = Settings {
            place: Place::Cluster(stage),
            repetitions: 1,
            duration: Duration::ZERO,
            warm_up: Duration::ZERO,
            logs: PathBuf::new(),
        };
        let mut run = testing::run();
        run.modes.iter_mut().for_each(|mode| mode.machines.clear());
        let mut engine = Engine::new(&settings, run, false, &|_| ()).unwrap();
        let names = ["none", "ambient"].map(str::to_owned);
        let modes = modes::on_cluster(&names).unwrap();
        engine.bring_up(0, &size(), &modes).await.unwrap();
        assert_eq!(namespaces.lock().unwrap().len(), 2);
        let all = "kubectl --context played delete namespace ambit-bench-none ambit-bench-ambient";
        assert_eq!(engine.left(), Some(format!("do it with `{all}`")));

        let limit = Duration::from_secs(60);
        let refused = tokio::time::timeout(limit, engine.strike()).await.unwrap();
        let refused = format!("{:#}", refused.unwrap_err());
        assert!(refused.contains("take down what ambient was measured on"), "{refused}");
        let one = "kubectl --context played delete namespace ambit-bench-ambient";
        assert_eq!(engine.left(), Some(format!("do it with `{one}`")));

        *held.lock().unwrap() = "";
        engine.bring_up(0, &size(), &modes[..1]).await.unwrap();
        tokio::time::timeout(limit, engine.strike()).await.unwrap().unwrap();
        assert_eq!((engine.left(), namespaces.lock().unwrap().len()), (None, 0));
        let run = engine.finish(Ending::Complete);
        let machines: Vec<usize> = run.modes.iter().map(|mode| mode.machines.len()).collect();
        assert_eq!(machines[..2], [2, 1]);
    }
}
