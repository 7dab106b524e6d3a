//! Watches over a container that runs, until it must be ended: goes with it through its start, asks
//! its probes that are commands, and hears what the node says of the others.
//!
//! It ends nothing itself. Commands and statuses are its caller's, so that tests need no pod.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::probes::{Asked, ProbeKind, ProbeNews, ProbePlan, ProbeRecord, ProbeReport, Probes};
use crate::registry::ContainerStatus;

/// News of a container's probes that may wait.
pub(super) const REPORTS_MAX: usize = 16;

/// Why a container is ended though nobody asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ailment {
    /// Its `postStart` failed.
    PostStart,
    /// This probe fails.
    Probe(ProbeKind),
}

impl Ailment {
    /// Writes down that the container is being ended, in Kubernetes' words.
    pub(super) fn note(self, status: &mut ContainerStatus, is_last: bool) {
        let message = match self {
            Self::PostStart => {
                status.post_start_failures += 1;
                "FailedPostStartHook".to_owned()
            }
            Self::Probe(kind) => {
                let next = if is_last { "" } else { ", will be restarted" };
                let probe = kind.name().to_lowercase();
                format!("Container {} failed {probe} probe{next}", status.name)
            }
        };
        (status.probed, status.ready) = (false, false);
        status.reason.clone_from(&message);
        status.killed.add(message);
    }

    /// How long the container gets to end politely, if that is not as long as the pod.
    pub(super) fn grace_seconds(self, probes: &Probes) -> Option<u64> {
        match self {
            Self::PostStart => None,
            Self::Probe(kind) => probes.of(kind)?.grace_seconds,
        }
    }
}

/// Watches over a container with these probes, whose `postStart` has ended. `run` runs a command in
/// it: the answer is whether that went well, the error that it could not be started. `note` changes
/// its status.
pub(super) async fn until_unwell<'a, F>(
    probes: &'a Probes,
    run: impl Fn(&'a [String], Duration) -> F,
    note: impl Fn(&dyn Fn(&mut ContainerStatus)),
    news: &mut mpsc::Receiver<ProbeReport>,
) -> Ailment
where
    F: Future<Output = io::Result<Result<(), String>>>,
{
    let watch = Watch { probes, run, note, since: Instant::now() };
    if probes.startup.is_some() {
        (watch.note)(&|status: &mut ContainerStatus| {
            status.probed = true;
            status.reason = waits_for(ProbeKind::Startup);
        });
        if let Some(kind) = watch.until_news(&[ProbeKind::Startup], news).await {
            return Ailment::Probe(kind);
        }
    }
    (watch.note)(&|status: &mut ContainerStatus| {
        (status.probed, status.started) = (true, true);
        status.ready = probes.readiness.is_none();
        status.reason = match status.ready {
            true => String::new(),
            false => waits_for(ProbeKind::Readiness),
        };
    });
    loop {
        let then = [ProbeKind::Liveness, ProbeKind::Readiness];
        if let Some(kind) = watch.until_news(&then, news).await {
            return Ailment::Probe(kind);
        }
    }
}

fn waits_for(kind: ProbeKind) -> String {
    format!("its {} probe has not succeeded yet", kind.name().to_lowercase())
}

struct Watch<'a, R, N> {
    probes: &'a Probes,
    run: R,
    note: N,
    /// When the container could be asked first.
    since: Instant,
}

impl<'a, R, F, N> Watch<'a, R, N>
where
    R: Fn(&'a [String], Duration) -> F,
    F: Future<Output = io::Result<Result<(), String>>>,
    N: Fn(&dyn Fn(&mut ContainerStatus)),
{
    /// Asks these probes. Answers with the one for which the container must be ended, or with none
    /// when it has started.
    async fn until_news(
        &self,
        kinds: &[ProbeKind],
        news: &mut mpsc::Receiver<ProbeReport>,
    ) -> Option<ProbeKind> {
        let (telling, mut told) = mpsc::channel(REPORTS_MAX);
        let mut asking = pin!(join_all(kinds.iter().map(|kind| self.ask(*kind, &telling))));
        loop {
            let (kind, news) = tokio::select! {
                Some(said) = told.recv() => said,
                Some(report) = news.recv() => (report.kind, report.news),
                _ = &mut asking => unreachable!("a probe is asked for ever"),
            };
            // The node may have asked before it heard that the container has started.
            if !kinds.contains(&kind) {
                continue;
            }
            (self.note)(&|status: &mut ContainerStatus| take_in(status, kind, &news));
            match (kind, news) {
                (ProbeKind::Startup, ProbeNews::Success) => return None,
                (ProbeKind::Readiness, _)
                | (ProbeKind::Liveness, ProbeNews::Success)
                | (_, ProbeNews::Failure { is_final: false, .. }) => {}
                (_, ProbeNews::Failure { is_final: true, .. }) => return Some(kind),
            }
        }
    }

    /// Asks a probe that is a command for ever.
    async fn ask(&self, kind: ProbeKind, telling: &mpsc::Sender<(ProbeKind, ProbeNews)>) {
        let probe = self.probes.of(kind);
        let Some(ProbePlan { asked: Asked::Command(command), timing, .. }) = probe else {
            return std::future::pending().await;
        };
        let mut record = ProbeRecord::new(kind, *timing, false);
        sleep_until(self.since + timing.initial_delay()).await;
        loop {
            match (self.run)(command, timing.limit()).await {
                Ok(answer) => {
                    if let Some(news) = record.answer(answer) {
                        // The receiver goes together with this.
                        let _heard = telling.send((kind, news)).await;
                    }
                }
                // As in Kubernetes, a probe that cannot be asked says nothing.
                Err(error) => tracing::warn!(%error, "cannot ask a {} probe", kind.name()),
            }
            sleep(timing.period()).await;
        }
    }
}

/// Writes down what a probe says.
fn take_in(status: &mut ContainerStatus, kind: ProbeKind, news: &ProbeNews) {
    let is_readiness = kind == ProbeKind::Readiness;
    match news {
        ProbeNews::Success if is_readiness => {
            status.ready = true;
            status.reason.clear();
        }
        ProbeNews::Success => {}
        ProbeNews::Failure { message, is_final } => {
            status.unhealthy.add(format!("{} probe failed: {message}", kind.name()));
            if is_readiness && *is_final {
                status.ready = false;
                "its readiness probe fails".clone_into(&mut status.reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::pod::probes::ProbeTiming;

    fn probe(asked: Asked, failure_threshold: u32) -> Option<ProbePlan> {
        let timing = ProbeTiming {
            initial_delay_seconds: 2,
            period_seconds: 10,
            timeout_seconds: 1,
            success_threshold: 1,
            failure_threshold,
        };
        Some(ProbePlan { asked, timing, grace_seconds: Some(7) })
    }

    fn command(name: &str, failure_threshold: u32) -> Option<ProbePlan> {
        probe(Asked::Command(vec![name.to_owned()]), failure_threshold)
    }

    /// Runs the probes in simulated time. Each command answers by a script: `+` well, `-` badly,
    /// `?` not at all, the last one again and again. Returns what it came to, after how many
    /// seconds, and the status.
    async fn watched(
        probes: &Probes,
        scripts: &[(&str, &str)],
        reports: Vec<ProbeReport>,
    ) -> (Option<Ailment>, u64, ContainerStatus) {
        let status = RefCell::new(ContainerStatus { name: "web".to_owned(), ..Default::default() });
        let asked = RefCell::new(Vec::<String>::new());
        let run = |command: &[String], _limit| {
            let name = command[0].clone();
            let before = asked.borrow().iter().filter(|it| **it == name).count();
            let (_, script) = scripts.iter().find(|(of, _)| *of == name).expect("a script");
            let answer = script.chars().nth(before).or(script.chars().last());
            asked.borrow_mut().push(name);
            std::future::ready(match answer {
                Some('+') => Ok(Ok(())),
                Some('-') => Ok(Err("why".to_owned())),
                _ => Err(io::Error::other("no such container")),
            })
        };
        let note = |change: &dyn Fn(&mut ContainerStatus)| change(&mut status.borrow_mut());
        let (sender, mut news) = mpsc::channel(REPORTS_MAX);
        for report in reports {
            sender.send(report).await.expect("there is room");
        }
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let ended = tokio::time::timeout(hour, until_unwell(probes, run, note, &mut news)).await;
        (ended.ok(), start.elapsed().as_secs(), status.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_without_probes_is_ready_at_once() {
        let (ended, _, status) = watched(&Probes::default(), &[], Vec::new()).await;
        assert_eq!(ended, None);
        assert!(status.probed && status.started && status.ready && status.reason.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn liveness_ends_a_container_that_fails_often_enough() {
        let probes = Probes { liveness: command("live", 3), ..Probes::default() };
        // It cannot be asked once, which counts for nothing.
        let (ended, after, status) = watched(&probes, &[("live", "+-+--?-")], Vec::new()).await;
        assert_eq!((ended, after), (Some(Ailment::Probe(ProbeKind::Liveness)), 62));
        assert_eq!(status.unhealthy.count, 4);
        assert_eq!(status.unhealthy.message, "Liveness probe failed: why");
        assert!(status.started && status.ready, "it has no readiness probe");
    }

    #[tokio::test(start_paused = true)]
    async fn startup_holds_back_the_others() {
        let probes = Probes {
            startup: command("start", 30),
            liveness: command("live", 1),
            readiness: command("ready", 1),
        };
        let scripts = [("start", "--+"), ("live", "++-"), ("ready", "-+")];
        let (ended, after, status) = watched(&probes, &scripts, Vec::new()).await;
        // Started at 22, then live at once, and each 10 s.
        assert_eq!((ended, after), (Some(Ailment::Probe(ProbeKind::Liveness)), 42));
        assert!(status.started && status.ready);
        let (ended, after, status) = watched(
            &Probes { startup: command("start", 3), ..probes.clone() },
            &[("start", "-")],
            Vec::new(),
        )
        .await;
        assert_eq!((ended, after), (Some(Ailment::Probe(ProbeKind::Startup)), 22));
        assert!(status.probed && !status.started && !status.ready);
        assert_eq!(status.reason, "its startup probe has not succeeded yet");
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_ends_nothing() {
        let probes = Probes { readiness: command("ready", 2), ..Probes::default() };
        let (ended, _, status) = watched(&probes, &[("ready", "-+-")], Vec::new()).await;
        assert_eq!(ended, None);
        assert!(status.started && !status.ready);
        assert_eq!(status.reason, "its readiness probe fails");
        assert_eq!(status.unhealthy.count, 2, "those that mattered");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_node_hears_counts_in_its_time() {
        let report = |kind, news| {
            let container = "web".to_owned();
            ProbeReport { container, restarts: 0, kind, news }
        };
        let failure = || ProbeNews::Failure { message: "refused".to_owned(), is_final: true };
        let probes = Probes {
            startup: probe(Asked::Port, 1),
            liveness: probe(Asked::Port, 1),
            readiness: probe(Asked::Port, 1),
        };
        let (ended, _, status) = watched(
            &probes,
            &[],
            vec![
                report(ProbeKind::Liveness, failure()),
                report(ProbeKind::Startup, ProbeNews::Success),
                report(ProbeKind::Startup, failure()),
                report(ProbeKind::Readiness, ProbeNews::Success),
            ],
        )
        .await;
        assert_eq!(ended, None, "liveness before the start, startup after it");
        assert!(status.ready && status.unhealthy.count == 0);
        let (ended, _, status) = watched(
            &probes,
            &[],
            vec![report(ProbeKind::Startup, failure()), report(ProbeKind::Startup, failure())],
        )
        .await;
        assert_eq!(ended, Some(Ailment::Probe(ProbeKind::Startup)));
        assert_eq!(status.unhealthy.message, "Startup probe failed: refused");
    }

    #[test]
    fn an_end_is_noted_in_kubernetes_words() {
        let mut status = ContainerStatus { name: "web".to_owned(), ..Default::default() };
        for (ailment, is_last, expected) in [
            (
                Ailment::Probe(ProbeKind::Liveness),
                false,
                "Container web failed liveness probe, will be restarted",
            ),
            (Ailment::Probe(ProbeKind::Startup), true, "Container web failed startup probe"),
            (Ailment::PostStart, false, "FailedPostStartHook"),
        ] {
            ailment.note(&mut status, is_last);
            assert_eq!(status.killed.message, expected);
        }
        assert_eq!((status.killed.count, status.post_start_failures), (3, 1));
    }
}
