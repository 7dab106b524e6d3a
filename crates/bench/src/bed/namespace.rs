//! The namespace of one mode on a cluster: made, loaded and deleted by its API.
//!
//! Only the namespace's label tells a mesh from no mesh. That the mesh carries what it is said to
//! carry is read from what its proxies count, because a pod may be captured a moment before others
//! are told of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ambit_cluster::{Cluster, LivePod, PodName, TemporaryNamespace};
use ambit_load::Report;
use ambit_words::labels::{AMBIENT, DATAPLANE_MODE};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{KNOCKS, read_report};
use crate::experiment::{Manifests, Size, http};
use crate::guests::CLIENT_CONTAINER;
use crate::modes::Mode;
use crate::record::{MachineSize, Usage};
use crate::roles::PROXY;
use crate::words;

/// Where the program is in the image.
pub(super) const PROGRAM: &str = "/ambit";
/// What the namespaces are called, but for the mode.
const PREFIX: &str = "ambit-bench-";
/// How long pods may take to be pulled, to start and to be captured.
const READY_LIMIT: Duration = Duration::from_secs(300);
/// How long the mesh may take to carry what is sent, and its policies to hold.
const PROOF_LIMIT: Duration = Duration::from_secs(60);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(500);
/// How much longer than its load a load generator may take.
const GRACE: Duration = Duration::from_secs(60);
/// What the proxies call the processor time that they have used.
const CPU_SECONDS: &str = "process_cpu_seconds_total";
/// What they call the moment at which the process began that says so.
const BEGAN: &str = "process_start_time_seconds";
/// That moment is told in whole seconds, and found anew each time from two clocks.
const BEGAN_TOLERANCE_SECONDS: f64 = 1.0;
/// What the proxies call the connections that they have opened.
const OPENED: &str = "istio_tcp_connections_opened_total";

/// What all modes on a cluster share.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    /// Tells this run from every other.
    pub(crate) run: String,
    /// The proxies of the nodes that the pods are on.
    pub(crate) proxies: Vec<PodName>,
    /// Whether all of them say how much of the processor they use.
    pub(crate) is_cpu_told: bool,
}

/// The namespace of a mode.
pub(crate) struct Namespace {
    pub(super) mode: Mode,
    pub(super) size: MachineSize,
    stage: Stage,
    namespace: TemporaryNamespace,
}

/// What the process of each proxy that moves bytes says of itself.
pub(crate) struct Used(Vec<Process>);

/// The process that a proxy serves its metrics from, which is the one that moves bytes.
#[derive(Clone, Copy, Debug)]
struct Process {
    /// The processor time that it has used so far.
    cpu_seconds: Option<f64>,
    /// When it began.
    began_seconds: Option<f64>,
}

impl Process {
    fn of(metrics: &str) -> Self {
        Self { cpu_seconds: cpu_seconds(metrics), began_seconds: value(metrics, BEGAN) }
    }

    /// Whether it has taken the place of an earlier one. By its processor time alone that could not
    /// be told: it soon has used more than one that was idle.
    fn succeeds(&self, earlier: &Self) -> bool {
        let is_later = |(now, then): (f64, f64)| now > then + BEGAN_TOLERANCE_SECONDS;
        let is_less = |(now, then): (f64, f64)| now < then;
        self.began_seconds.zip(earlier.began_seconds).is_some_and(is_later)
            || self.cpu_seconds.zip(earlier.cpu_seconds).is_some_and(is_less)
    }
}

/// What the namespace of a mode is called.
pub(crate) fn namespace_of(mode: &str) -> String {
    format!("{PREFIX}{}", mode.replace('+', "-"))
}

impl Stage {
    /// The namespace of a mode, which is not made yet.
    pub(crate) fn namespace(&self, mode: &Mode) -> TemporaryNamespace {
        TemporaryNamespace::new(self.cluster.clone(), &namespace_of(mode.name), &self.run)
    }

    /// What each proxy has counted.
    pub(crate) async fn metrics(&self) -> Result<Vec<String>> {
        let asked = self.proxies.iter().map(|proxy| self.cluster.metrics(proxy));
        Ok(futures::future::try_join_all(asked).await?)
    }
}

impl Namespace {
    /// One that is not made yet.
    pub(super) fn new(mode: Mode, stage: &Stage, size: &Size) -> Self {
        let size = MachineSize {
            name: size.name(),
            namespaces: size.namespaces,
            ..MachineSize::default()
        };
        Self { mode, size, stage: stage.clone(), namespace: stage.namespace(&mode) }
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.namespace.name()
    }

    /// Makes it, waits for its pods, and proves that it is what it is called.
    pub(super) async fn up(&mut self, size: &Size) -> Result<()> {
        let Manifests::Own(objects) = &size.manifests else {
            bail!("{} has no objects for a cluster", size.name());
        };
        let start = Instant::now();
        let labels = match self.mode.has_mesh() {
            true => json!({ DATAPLANE_MODE: AMBIENT }),
            false => json!({}),
        };
        self.namespace.make(labels).await?;
        for object in objects {
            self.namespace.add(object).await?;
        }
        if self.mode.has_policies {
            let policy: Value = serde_json::from_str(&size.policies).context("read the policy")?;
            self.namespace.add(&policy).await?;
        }
        let pods = self.await_ready().await?;
        self.size.pods = pods.len();
        self.size.up_seconds = start.elapsed().as_secs_f64();
        self.prove(size, objects, &pods).await
    }

    /// Waits until every pod is ready and, in the mesh, captured.
    async fn await_ready(&self) -> Result<Vec<LivePod>> {
        let start = Instant::now();
        loop {
            let pods = self.namespace.pods().await?;
            let late = pods.iter().find_map(|pod| lateness(pod, self.mode.has_mesh()));
            let Some(late) = late else { return Ok(pods) };
            if start.elapsed() > READY_LIMIT {
                bail!("after {} s {late}", READY_LIMIT.as_secs());
            }
            sleep(LOOK).await;
        }
    }

    /// Whether every server answers, the mesh carries what is sent, or nothing of it, and its
    /// policies hold.
    async fn prove(&self, size: &Size, objects: &[Value], pods: &[LivePod]) -> Result<()> {
        if let Some(pod) = pods.iter().find(|pod| pod.is_captured && !self.mode.has_mesh()) {
            bail!("{} is in the mesh, though its namespace has no label of it", pod.name);
        }
        let client = size.cases.first().and_then(|load| load.generators.first());
        let client = client.context("every size has a load")?;
        let before = self.carried().await?;
        for service in objects.iter().filter(|it| it["kind"] == "Service") {
            let host = service["metadata"]["name"].as_str().unwrap_or_default();
            self.await_carried(client, &http(host)).await?;
        }
        if !self.mode.has_mesh() && self.carried().await? > before {
            bail!(
                "the proxies have carried connections of {}, though its namespace has no label of \
                 the mesh",
                self.name()
            );
        }
        match &size.stranger {
            Some((stranger, url)) if self.mode.has_policies => {
                self.await_refused(stranger, url).await
            }
            _ => Ok(()),
        }
    }

    /// Waits until the client is answered, and the mesh's proxies count that as mutual TLS.
    async fn await_carried(&self, client: &str, url: &str) -> Result<()> {
        // An earlier run's namespace of this name is counted too.
        let before = self.carried().await?;
        let start = Instant::now();
        loop {
            let lost = match self.knock(client, url).await {
                Ok(knocked) if knocked.failed == 0 => None,
                Ok(knocked) => Some(words::listed(&knocked.errors.into_keys().collect::<Vec<_>>())),
                // Of a name that is not resolved yet.
                Err(error) => Some(format!("{error:#}")),
            };
            let is_carried = !self.mode.has_mesh() || self.carried().await? > before;
            if lost.is_none() && is_carried {
                return Ok(());
            }
            if start.elapsed() > PROOF_LIMIT {
                let seconds = PROOF_LIMIT.as_secs();
                match lost {
                    Some(lost) => bail!("after {seconds} s {url} does not answer: {lost}"),
                    None => bail!(
                        "after {seconds} s the proxies count no connection of {} as mutual TLS; \
                         see `ambit check`",
                        self.name()
                    ),
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Connections of this namespace that the proxies have counted: in the mesh those of its
    /// clients with mutual TLS, outside of it whatever they had to do with.
    async fn carried(&self) -> Result<f64> {
        let counted = self.stage.metrics().await?;
        let of_mode = if self.mode.has_mesh() { secured } else { touched };
        Ok(counted.iter().map(|it| of_mode(it, self.name())).sum())
    }

    /// Waits until the policies refuse whom they name nowhere.
    async fn await_refused(&self, stranger: &str, url: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            let knocked = self.knock(stranger, url).await?;
            if knocked.requests > 0 && knocked.failed == knocked.requests {
                return Ok(());
            }
            if start.elapsed() > PROOF_LIMIT {
                bail!(
                    "the policies are not in force: {} of {} requests of {stranger} were let in",
                    knocked.requests - knocked.failed,
                    knocked.requests
                );
            }
            sleep(LOOK).await;
        }
    }

    async fn knock(&self, pod: &str, url: &str) -> Result<Report> {
        let words = format!("load {url} {KNOCKS}");
        let words: Vec<String> = words.split(' ').map(Into::into).collect();
        self.load(pod, &words, Duration::ZERO).await
    }

    /// Runs the load generator in a pod.
    pub(super) async fn load(
        &self,
        pod: &str,
        words: &[String],
        duration: Duration,
    ) -> Result<Report> {
        let pod = PodName { namespace: self.name().to_owned(), name: pod.to_owned() };
        let mut command = vec![PROGRAM.to_owned()];
        command.extend(words.iter().cloned());
        command.extend(["--quiet", "--output", "json"].map(Into::into));
        let printed = self.stage.cluster.exec(&pod, CLIENT_CONTAINER, &command, duration + GRACE);
        let printed = printed.await?;
        read_report(&printed)
    }

    /// What the proxies have used so far.
    pub(super) async fn used(&self) -> Result<Used> {
        let counted = self.stage.metrics().await?;
        Ok(Used(counted.iter().map(|it| Process::of(it)).collect()))
    }

    /// What they have used since then, if nothing began anew.
    pub(super) async fn used_since(&self, before: &Used) -> Result<BTreeMap<String, Usage>> {
        let after = self.used().await?;
        let mut seconds = 0.0;
        for ((proxy, after), before) in self.stage.proxies.iter().zip(&after.0).zip(&before.0) {
            if after.succeeds(before) {
                bail!("{proxy} restarted during the load");
            }
            if self.stage.is_cpu_told {
                let used = after.cpu_seconds.zip(before.cpu_seconds);
                let used = used.map(|(after, before)| after - before);
                seconds +=
                    used.with_context(|| format!("{proxy} serves no {CPU_SECONDS} any more"))?;
            }
        }
        let mut usage = BTreeMap::new();
        if self.stage.is_cpu_told {
            let unsplit_seconds = Some(seconds);
            let proxies = Usage { processes: after.0.len(), unsplit_seconds, ..Usage::default() };
            usage.insert(PROXY.to_owned(), proxies);
        }
        for pod in self.namespace.pods().await? {
            if pod.restarts > 0 {
                bail!("{} was started again: {}", pod.name, pod.waits_for);
            }
            if let Some(late) = lateness(&pod, self.mode.has_mesh()) {
                bail!("at the end of the load {late}");
            }
        }
        Ok(usage)
    }

    /// Deletes it, whatever is in it.
    pub(super) async fn down(&mut self) -> Result<()> {
        let start = Instant::now();
        let deleted = self.namespace.delete().await;
        // Of all attempts together.
        self.size.down_seconds += start.elapsed().as_secs_f64();
        let kubectl = self.stage.cluster.kubectl();
        deleted.with_context(|| format!("try `{kubectl} delete namespace {}`", self.name()))
    }

    /// Its name, if it may be there.
    pub(super) fn left(&self) -> Option<String> {
        self.namespace.may_be_there().then(|| self.name().to_owned())
    }
}

/// What a pod lacks, in words.
fn lateness(pod: &LivePod, is_in_mesh: bool) -> Option<String> {
    if !pod.is_ready {
        return Some(format!("{} is not ready: {}", pod.name, pod.waits_for));
    }
    let is_late = is_in_mesh && !pod.is_captured;
    is_late.then(|| format!("{} is not in the mesh; see `ambit check`", pod.name))
}

/// The processor time that a proxy has used, if it says so.
pub(crate) fn cpu_seconds(metrics: &str) -> Option<f64> {
    value(metrics, CPU_SECONDS)
}

/// The value of a metric without labels.
fn value(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// How many connections of clients of a namespace a proxy has opened with both ends proven.
fn secured(metrics: &str, namespace: &str) -> f64 {
    let source = format!("source_workload_namespace=\"{namespace}\"");
    opened(metrics, |line| {
        line.contains(&source) && line.contains("connection_security_policy=\"mutual_tls\"")
    })
}

/// How many connections from or to a namespace a proxy has opened, whatever it did with them.
fn touched(metrics: &str, namespace: &str) -> f64 {
    let ends =
        ["source", "destination"].map(|end| format!("{end}_workload_namespace=\"{namespace}\""));
    opened(metrics, |line| ends.iter().any(|end| line.contains(end)))
}

fn opened(metrics: &str, is_meant: impl Fn(&str) -> bool) -> f64 {
    let is_meant = |line: &&str| line.starts_with(OPENED) && is_meant(line);
    let value = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
    metrics.lines().filter(is_meant).filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_s_name_is_its_mode_s() {
        let names = ["none", "ambient", "ambient+l4policy"].map(namespace_of);
        assert_eq!(
            names,
            ["ambit-bench-none", "ambit-bench-ambient", "ambit-bench-ambient-l4policy"]
        );
    }

    #[test]
    fn proxies_say_what_they_used_and_carried() {
        let of = |end: &str, namespace: &str, security: &str, value: u32| {
            format!(
                "{OPENED}{{reporter=\"{end}\",{end}_workload_namespace=\"{namespace}\",\
                 connection_security_policy=\"{security}\"}} {value}\n"
            )
        };
        let line =
            |namespace: &str, security: &str, value| of("source", namespace, security, value);
        let metrics = [
            "# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 12.34\n".to_owned(),
            line("bench", "mutual_tls", 3),
            line("bench", "unknown", 5),
            line("other", "mutual_tls", 7),
            line("bench", "mutual_tls", 4),
            of("destination", "bench", "mutual_tls", 11),
            "# EOF\n".to_owned(),
        ]
        .concat();
        assert_eq!(cpu_seconds(&metrics), Some(12.34));
        assert_eq!(cpu_seconds("process_cpu_seconds_total \n"), None);
        assert_eq!(secured(&metrics, "bench"), 7.0);
        assert_eq!(secured(&metrics, "none"), 0.0);
        assert_eq!((touched(&metrics, "bench"), touched(&metrics, "none")), (23.0, 0.0));
    }

    #[test]
    fn a_proxy_that_began_anew_is_known_by_when_it_began() {
        let process = |cpu: &str, began: &str| {
            Process::of(&format!("{CPU_SECONDS} {cpu}\n# UNIT x\n{BEGAN} {began}\n"))
        };
        let check = |before: [&str; 2], after: [&str; 2], expected: bool| {
            let [before, after] = [before, after].map(|[cpu, began]| process(cpu, began));
            assert_eq!(after.succeeds(&before), expected, "{before:?} {after:?}");
        };
        check(["2.5", "1700000000"], ["3.5", "1700000000"], false);
        check(["2.5", "1700000000"], ["3.5", "1700000001"], false);
        check(["2.5", "1700000001"], ["3.5", "1700000000"], false);
        check(["2.5", "1700000000"], ["3.5", "1700000009"], true);
        check(["2.5", "1700000000"], ["1.5", "1700000000"], true);
        check(["2.5", ""], ["3.5", ""], false);
        check(["2.5", ""], ["1.5", ""], true);
        check(["", "1700000000"], ["", "1700000009"], true);
    }

    #[test]
    fn a_pod_is_late_until_it_is_ready_and_in_the_mesh() {
        let check = |is_ready, is_captured, is_in_mesh, expected: &str| {
            let name = PodName { namespace: "a".to_owned(), name: "b".to_owned() };
            let waits_for = "ErrImagePull".to_owned();
            let pod = LivePod { name, is_ready, is_captured, restarts: 0, waits_for };
            let late = lateness(&pod, is_in_mesh).unwrap_or_default();
            assert!(late.starts_with(expected) && late.is_empty() == expected.is_empty(), "{late}");
        };
        check(false, false, false, "a/b is not ready: ErrImagePull");
        check(true, false, true, "a/b is not in the mesh");
        check(true, false, false, "");
        check(true, true, true, "");
    }
}
