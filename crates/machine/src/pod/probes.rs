//! Probes of a container: what is asked, when, and what the answers mean.
//!
//! Pure: whoever asks brings the answers. Commands are run by the pod's init. The network is asked
//! by the node, from its own network as the kubelet does, and the init hears of it by a
//! [`ProbeReport`]. The init alone acts on answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest text of a failure that is passed on.
const MESSAGE_MAX_CHARACTERS: usize = 512;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum ProbeKind {
    /// Holds back the others until it succeeds. The container ends if it fails.
    Startup,
    /// The container ends if it fails.
    Liveness,
    /// The container is ready as long as it succeeds.
    Readiness,
}

impl ProbeKind {
    /// Each of them, in the order in which they are asked.
    pub(crate) const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// Kubernetes' word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// The probes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probes {
    /// The first to be asked.
    pub(crate) startup: Option<ProbePlan>,
    /// Asked once it has started.
    pub(crate) liveness: Option<ProbePlan>,
    /// Likewise.
    pub(crate) readiness: Option<ProbePlan>,
}

impl Probes {
    /// The probe of a kind.
    pub(crate) fn of(&self, kind: ProbeKind) -> Option<&ProbePlan> {
        match kind {
            ProbeKind::Startup => self.startup.as_ref(),
            ProbeKind::Liveness => self.liveness.as_ref(),
            ProbeKind::Readiness => self.readiness.as_ref(),
        }
    }

    /// Whether one of them runs a command.
    pub(crate) fn run_commands(&self) -> bool {
        let all = [&self.startup, &self.liveness, &self.readiness].into_iter().flatten();
        all.into_iter().any(|probe| matches!(probe.asked, Asked::Command(_)))
    }
}

/// A probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbePlan {
    /// What is asked.
    pub(crate) asked: Asked,
    /// When, and how often.
    pub(crate) timing: ProbeTiming,
    /// How long the container gets to end politely if this fails; as long as the pod, if absent.
    pub(crate) grace_seconds: Option<u64>,
}

/// What a probe asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Asked {
    /// This command, inside the container.
    Command(Vec<String>),
    /// A port, which the node asks.
    Port,
}

/// When a probe is asked and how often its answers must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeTiming {
    /// Wait before the first.
    pub(crate) initial_delay_seconds: u32,
    /// Between two.
    pub(crate) period_seconds: u32,
    /// After which one has failed.
    pub(crate) timeout_seconds: u32,
    /// So many successes in a row count.
    pub(crate) success_threshold: u32,
    /// So many failures in a row count.
    pub(crate) failure_threshold: u32,
}

impl ProbeTiming {
    /// Wait before the first.
    pub(crate) fn initial_delay(&self) -> Duration {
        Duration::from_secs(self.initial_delay_seconds.into())
    }

    /// Wait between two.
    pub(crate) fn period(&self) -> Duration {
        Duration::from_secs(self.period_seconds.max(1).into())
    }

    /// How long an answer may take.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.max(1).into())
    }
}

/// What the answers of a probe come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProbeNews {
    /// It succeeds from now on.
    Success,
    /// It failed.
    Failure {
        /// Why, this time.
        message: String,
        /// That was one too many: it fails from now on.
        is_final: bool,
    },
}

/// News of a probe, for the pod's init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeReport {
    /// Whose.
    pub(crate) container: String,
    /// How often the container had been started again when it was asked.
    pub(crate) restarts: u32,
    /// Which.
    pub(crate) kind: ProbeKind,
    /// What.
    pub(crate) news: ProbeNews,
}

/// Keeps count of a probe's answers.
#[derive(Debug)]
pub(crate) struct ProbeRecord {
    timing: ProbeTiming,
    /// What holds now, if anything does.
    verdict: Option<bool>,
    last: Option<bool>,
    in_a_row: u32,
}

impl ProbeRecord {
    /// As in Kubernetes, a container is well until a probe says otherwise. Whether it is ready, who
    /// asked before may have found out.
    pub(crate) fn new(kind: ProbeKind, timing: ProbeTiming, is_ready: bool) -> Self {
        let verdict = match kind {
            ProbeKind::Startup => None,
            ProbeKind::Liveness => Some(true),
            ProbeKind::Readiness => Some(is_ready),
        };
        Self { timing, verdict, last: None, in_a_row: 0 }
    }

    /// Takes one answer in, a failure with its reason; answers with what is new. A failure is news
    /// as long as the probe does not count as failing.
    pub(crate) fn answer(&mut self, answer: Result<(), String>) -> Option<ProbeNews> {
        let success = answer.is_ok();
        if self.last.replace(success) != Some(success) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let ProbeTiming { success_threshold, failure_threshold, .. } = self.timing;
        let threshold = if success { success_threshold } else { failure_threshold };
        let was = self.verdict;
        let is_new = was != Some(success) && self.in_a_row >= threshold;
        if is_new {
            self.verdict = Some(success);
        }
        match answer {
            Ok(()) => is_new.then_some(ProbeNews::Success),
            Err(message) => (was != Some(false)).then(|| {
                let message = message.chars().take(MESSAGE_MAX_CHARACTERS).collect();
                ProbeNews::Failure { message, is_final: is_new }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as `+` and `-`; news as `S`, `f` for a failure, `F` for the final one, `.` for none.
    fn check(kind: ProbeKind, thresholds: (u32, u32), answers: &str, expected: &str) {
        let timing = ProbeTiming {
            initial_delay_seconds: 0,
            period_seconds: 1,
            timeout_seconds: 1,
            success_threshold: thresholds.0,
            failure_threshold: thresholds.1,
        };
        let mut record = ProbeRecord::new(kind, timing, false);
        let news = |answer: char| {
            let answer = if answer == '+' { Ok(()) } else { Err("why".to_owned()) };
            match record.answer(answer) {
                Some(ProbeNews::Success) => 'S',
                Some(ProbeNews::Failure { is_final: false, .. }) => 'f',
                Some(ProbeNews::Failure { is_final: true, .. }) => 'F',
                None => '.',
            }
        };
        assert_eq!(answers.chars().map(news).collect::<String>(), expected, "{kind:?}");
    }

    #[test]
    fn readiness_changes_at_its_thresholds() {
        check(ProbeKind::Readiness, (2, 3), "+-++--+---", "...Sff.ffF");
        check(ProbeKind::Readiness, (1, 1), "--+--+", "..SF.S");
    }

    #[test]
    fn liveness_holds_until_it_fails_often_enough() {
        check(ProbeKind::Liveness, (1, 3), "++--+---", "..ff.ffF");
        check(ProbeKind::Liveness, (1, 1), "-", "F");
    }

    #[test]
    fn startup_ends_with_a_success_or_with_its_last_failure() {
        check(ProbeKind::Startup, (1, 3), "--+", "ffS");
        check(ProbeKind::Startup, (1, 3), "---", "ffF");
    }

    #[test]
    fn who_asks_after_another_knows_what_that_found() {
        let timing = ProbeTiming {
            initial_delay_seconds: 0,
            period_seconds: 1,
            timeout_seconds: 1,
            success_threshold: 1,
            failure_threshold: 1,
        };
        let mut record = ProbeRecord::new(ProbeKind::Readiness, timing, true);
        assert_eq!(record.answer(Ok(())), None);
        let failure = ProbeNews::Failure { message: "why".to_owned(), is_final: true };
        assert_eq!(record.answer(Err("why".to_owned())), Some(failure));
    }

    #[test]
    fn what_failures_say_is_bounded() {
        let timing = ProbeTiming {
            initial_delay_seconds: 0,
            period_seconds: 0,
            timeout_seconds: 0,
            success_threshold: 1,
            failure_threshold: 1,
        };
        assert_eq!([timing.period(), timing.limit()], [Duration::from_secs(1); 2]);
        let mut record = ProbeRecord::new(ProbeKind::Liveness, timing, false);
        let long = "é".repeat(2 * MESSAGE_MAX_CHARACTERS);
        let Some(ProbeNews::Failure { message, .. }) = record.answer(Err(long)) else {
            panic!("a failure");
        };
        assert_eq!(message.chars().count(), MESSAGE_MAX_CHARACTERS);
    }
}
