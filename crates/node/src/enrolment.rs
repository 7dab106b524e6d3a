//! One pod's way into the mesh and out of it, as a state machine without I/O.
//!
//! In: announced to the proxy, acknowledged, captured. Out: redirects removed, the last captured
//! connection ended, withdrawn from the proxy, cleared. The caller passes in what is wanted and how
//! the last action went, and gets the next action; at most one is under way at a time. The machine
//! never performs one, and never reads a clock: `now` is passed in.

use std::time::{Duration, Instant};

use crate::pod::CaptureOptions;

/// Shortest time between the removal of the redirects and of everything else, so that connections
/// whose handshake was under way are seen as connections.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// How often a draining pod's remaining connections are counted.
pub(crate) const DRAIN_POLL: Duration = Duration::from_secs(1);
/// Wait before the first retry of a failed action; doubles with each further failure.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest wait between two retries.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// What should become of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Capture its new connections, with these options.
    Capture(CaptureOptions),
    /// Let it continue without the mesh, its captured connections undisturbed.
    Release,
    /// The pod has ended: leave nothing that names it.
    Forget,
}

/// Something to be done for the pod; each is idempotent and answered by one [`Outcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Look in the pod's namespace for what an earlier agent left.
    Inspect,
    /// Put the pod on the roster and say when a proxy has acknowledged it.
    Announce,
    /// Bring rules, routes and sysctls into place, then report the pod as captured.
    Program(CaptureOptions),
    /// Compare what is in place with what should be, and mend it.
    Verify(CaptureOptions),
    /// Stop capturing new connections, then report the pod as no longer captured.
    RemoveRedirects,
    /// Count the proxy's connections in the pod's namespace.
    CountConnections,
    /// Remove the pod from the roster and notify every proxy.
    Withdraw,
    /// Remove what is left in the pod's namespace.
    RemoveAll,
    /// Withdraw the pod and all that names it outside its namespace.
    Forget,
}

/// What an earlier agent left in the pod's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Footprint {
    /// Nothing: there is nothing to remove.
    None,
    /// At least a part of the capture rules.
    Some,
}

/// How an action went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answer to [`Action::Inspect`].
    Inspected(Footprint),
    /// Answer to [`Action::CountConnections`].
    Connections(usize),
    /// The action is complete.
    Done,
    /// The action failed; it is tried again after a while.
    Failed,
}

/// The phase of the pod. A resting phase waits for a new wish or a time; a busy one for its action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Resting: what is in the namespace is not known.
    Unseen,
    /// Busy with [`Action::Inspect`].
    Inspecting,
    /// Resting: an earlier agent left rules; the pod is not on the roster yet.
    Leftover,
    /// Resting: nothing of ours anywhere.
    Clean,
    /// Resting: on the roster, no proxy has acknowledged it yet.
    Announcing(Footprint),
    /// Resting: the proxy has it; the rules may be there in part.
    Announced(Footprint),
    /// Busy with [`Action::Program`].
    Programming(CaptureOptions),
    /// Resting: captured and reported so.
    Captured(CaptureOptions),
    /// Busy with [`Action::Verify`].
    Verifying(CaptureOptions),
    /// Busy with [`Action::RemoveRedirects`].
    Releasing,
    /// Resting: no new connection is captured, the old ones continue.
    Draining,
    /// Busy with [`Action::CountConnections`].
    Counting,
    /// Resting: the last captured connection has ended.
    Drained,
    /// Busy with [`Action::Withdraw`].
    Withdrawing(Footprint),
    /// Resting: off the roster; the namespace may still hold rules.
    Withdrawn,
    /// Busy with [`Action::RemoveAll`].
    Clearing,
    /// Busy with [`Action::Forget`].
    Forgetting,
    /// The end.
    Gone,
}

/// The machine of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Enrolment {
    phase: Phase,
    wish: Wish,
    /// The wish changed while an action was under way: no waiting after it.
    wish_changed: bool,
    /// Nothing is done before this moment.
    not_before: Option<Instant>,
    failures: u32,
    repair_interval: Duration,
}

impl Enrolment {
    /// A pod seen for the first time by this agent.
    pub(crate) fn new(wish: Wish, repair_interval: Duration) -> Self {
        Self {
            phase: Phase::Unseen,
            wish,
            wish_changed: false,
            not_before: None,
            failures: 0,
            repair_interval,
        }
    }

    /// Records the current wish.
    pub(crate) fn wish(&mut self, wish: Wish) {
        if self.wish != wish {
            self.wish = wish;
            self.wish_changed = true;
            self.not_before = None;
        }
    }

    /// Takes note that a proxy has acknowledged the pod.
    pub(crate) fn acknowledged(&mut self) {
        if let Phase::Announcing(footprint) = self.phase {
            self.phase = Phase::Announced(footprint);
            self.not_before = None;
        }
    }

    /// Takes note that somebody altered the rules of the pod's namespace.
    pub(crate) fn tampered(&mut self) {
        if let Phase::Captured(_) = self.phase {
            self.not_before = None;
        }
    }

    /// Takes note of how the action under way went.
    pub(crate) fn finish(&mut self, outcome: Outcome, now: Instant) {
        let wait = match outcome {
            Outcome::Failed => {
                self.phase = after_failure(self.phase);
                self.failures = self.failures.saturating_add(1);
                Some(retry_wait(self.failures))
            }
            outcome => {
                self.failures = 0;
                let (phase, wait) = after_success(self.phase, outcome, self.repair_interval);
                self.phase = phase;
                wait
            }
        };
        self.not_before = if self.wish_changed { None } else { wait.map(|wait| now + wait) };
    }

    /// The next action, if one is due; the machine counts it as under way from here on.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Action> {
        if self.not_before.is_some_and(|moment| now < moment) {
            return None;
        }
        let (phase, action) = due(self.phase, self.wish)?;
        self.phase = phase;
        self.not_before = None;
        self.wish_changed = false;
        Some(action)
    }

    /// When [`Enrolment::next`] is worth another call although nothing happened.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.not_before
    }

    /// Whether new connections of the pod are captured.
    pub(crate) fn is_captured(&self) -> bool {
        matches!(self.phase, Phase::Captured(_) | Phase::Verifying(_))
    }

    /// Whether the pod is waiting for a proxy to acknowledge it.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        matches!(self.phase, Phase::Announcing(_))
    }

    /// Whether this agent has not looked into the pod's namespace yet.
    pub(crate) fn is_unseen(&self) -> bool {
        matches!(self.phase, Phase::Unseen | Phase::Inspecting)
    }

    /// Whether the pod should be captured.
    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self.wish, Wish::Capture(_))
    }

    /// Whether nothing of the mesh is left in the pod's namespace, and no proxy knows the pod.
    pub(crate) fn is_out(&self) -> bool {
        matches!(self.phase, Phase::Clean | Phase::Gone)
    }

    /// Whether plain connections reach the pod without being judged.
    pub(crate) fn admits_plain(&self) -> bool {
        match self.phase {
            Phase::Captured(options) | Phase::Verifying(options) => options.bypass_inbound,
            // On the roster, and nothing is captured yet; or nothing any more.
            Phase::Announcing(Footprint::None) | Phase::Announced(Footprint::None) => true,
            Phase::Draining | Phase::Counting | Phase::Drained | Phase::Withdrawing(_) => true,
            Phase::Withdrawn | Phase::Clearing | Phase::Clean | Phase::Gone => true,
            Phase::Unseen | Phase::Inspecting | Phase::Leftover | Phase::Programming(_) => false,
            Phase::Announcing(Footprint::Some) | Phase::Announced(Footprint::Some) => false,
            Phase::Releasing | Phase::Forgetting => false,
        }
    }

    /// Whether the machine has reached its end and can be dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }
}

/// The table: from a resting phase and a wish to the busy phase and its action.
fn due(phase: Phase, wish: Wish) -> Option<(Phase, Action)> {
    use Footprint::{None as Bare, Some as Left};
    use Wish::{Capture, Forget, Release};
    let step = match (phase, wish) {
        (Phase::Gone, _) => return None,
        (phase, _) if is_busy(phase) => return None,
        (_, Forget) => (Phase::Forgetting, Action::Forget),
        (Phase::Unseen, _) => (Phase::Inspecting, Action::Inspect),
        (Phase::Leftover, _) => (Phase::Announcing(Left), Action::Announce),

        (Phase::Clean, Capture(_)) => (Phase::Announcing(Bare), Action::Announce),
        (Phase::Withdrawn, Capture(_)) => (Phase::Announcing(Left), Action::Announce),
        (Phase::Announced(_) | Phase::Draining | Phase::Drained, Capture(options)) => {
            (Phase::Programming(options), Action::Program(options))
        }
        (Phase::Captured(in_place), Capture(options)) if in_place == options => {
            (Phase::Verifying(options), Action::Verify(options))
        }
        (Phase::Captured(_), Capture(options)) => {
            (Phase::Programming(options), Action::Program(options))
        }

        (Phase::Announcing(Bare) | Phase::Announced(Bare), Release) => {
            (Phase::Withdrawing(Bare), Action::Withdraw)
        }
        (Phase::Announcing(Left) | Phase::Announced(Left) | Phase::Captured(_), Release) => {
            (Phase::Releasing, Action::RemoveRedirects)
        }
        (Phase::Draining, Release) => (Phase::Counting, Action::CountConnections),
        (Phase::Drained, Release) => (Phase::Withdrawing(Left), Action::Withdraw),
        (Phase::Withdrawn, Release) => (Phase::Clearing, Action::RemoveAll),
        _ => return None,
    };
    Some(step)
}

fn is_busy(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::Inspecting
            | Phase::Programming(_)
            | Phase::Verifying(_)
            | Phase::Releasing
            | Phase::Counting
            | Phase::Withdrawing(_)
            | Phase::Clearing
            | Phase::Forgetting
    )
}

/// Where a completed action leads, and how long to rest there if the wish stays.
fn after_success(phase: Phase, outcome: Outcome, repair: Duration) -> (Phase, Option<Duration>) {
    match (phase, outcome) {
        (Phase::Inspecting, Outcome::Inspected(Footprint::None)) => (Phase::Clean, None),
        (Phase::Inspecting, Outcome::Inspected(Footprint::Some)) => (Phase::Leftover, None),
        (Phase::Programming(options) | Phase::Verifying(options), Outcome::Done) => {
            (Phase::Captured(options), Some(repair))
        }
        (Phase::Releasing, Outcome::Done) => (Phase::Draining, Some(DRAIN_GRACE)),
        (Phase::Counting, Outcome::Connections(0)) => (Phase::Drained, None),
        (Phase::Counting, Outcome::Connections(_)) => (Phase::Draining, Some(DRAIN_POLL)),
        (Phase::Withdrawing(Footprint::None), Outcome::Done) => (Phase::Clean, None),
        (Phase::Withdrawing(Footprint::Some), Outcome::Done) => (Phase::Withdrawn, None),
        (Phase::Clearing, Outcome::Done) => (Phase::Clean, None),
        (Phase::Forgetting, Outcome::Done) => (Phase::Gone, None),
        (phase, _) => (phase, None),
    }
}

/// The resting phase from which a failed action is tried again. It presumes the least: a failed
/// action may have been half done.
fn after_failure(phase: Phase) -> Phase {
    match phase {
        Phase::Inspecting => Phase::Unseen,
        Phase::Programming(_) | Phase::Releasing => Phase::Announced(Footprint::Some),
        Phase::Verifying(options) => Phase::Captured(options),
        Phase::Counting => Phase::Draining,
        Phase::Withdrawing(_) => Phase::Drained,
        Phase::Clearing | Phase::Forgetting => Phase::Withdrawn,
        resting => resting,
    }
}

/// The wait before the next try, after this many failures in a row.
fn retry_wait(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    RETRY_MIN.saturating_mul(1 << doublings).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPAIR: Duration = Duration::from_secs(2);
    const OPTIONS: CaptureOptions =
        CaptureOptions { dns: true, ipv6: true, bypass_inbound: false, cut_open: false };
    const OTHER: CaptureOptions = CaptureOptions { dns: false, ..OPTIONS };
    const IN: Wish = Wish::Capture(OPTIONS);

    /// What happens to the pod in a script, beside time.
    enum Step {
        Wish(Wish),
        Acknowledged,
        Tampered,
        Finish(Outcome),
        /// Let this many milliseconds pass.
        Pass(u64),
    }
    use Step::{Acknowledged, Finish, Pass, Tampered};

    /// Runs a script; each step lists the actions that must follow it.
    fn check(first: Wish, opening: &[Action], script: &[(Step, &[Action])]) {
        let mut now = Instant::now();
        let mut machine = Enrolment::new(first, REPAIR);
        let due = |machine: &mut Enrolment, now| -> Vec<Action> {
            std::iter::from_fn(|| machine.next(now)).collect()
        };
        assert_eq!(due(&mut machine, now), opening, "at the start");
        for (index, (step, expected)) in script.iter().enumerate() {
            match step {
                Step::Wish(wish) => machine.wish(*wish),
                Acknowledged => machine.acknowledged(),
                Tampered => machine.tampered(),
                Finish(outcome) => machine.finish(*outcome, now),
                Pass(milliseconds) => now += Duration::from_millis(*milliseconds),
            }
            assert_eq!(due(&mut machine, now), *expected, "after step {index}: {machine:?}");
        }
    }

    const CLEAN: Step = Finish(Outcome::Inspected(Footprint::None));
    const LEFT: Step = Finish(Outcome::Inspected(Footprint::Some));
    const DONE: Step = Finish(Outcome::Done);
    const FAILED: Step = Finish(Outcome::Failed);
    const RELEASE: Step = Step::Wish(Wish::Release);
    const FORGET: Step = Step::Wish(Wish::Forget);
    const CAPTURE: Step = Step::Wish(IN);

    #[test]
    fn the_way_in_is_announce_acknowledge_program() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (CLEAN, &[Action::Announce]),
                (Pass(60_000), &[]),
                (Acknowledged, &[Action::Program(OPTIONS)]),
                (DONE, &[]),
                (Pass(1_999), &[]),
                (Pass(1), &[Action::Verify(OPTIONS)]),
                (DONE, &[]),
            ],
        );
    }

    #[test]
    fn the_way_out_waits_for_the_last_connection() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (CLEAN, &[Action::Announce]),
                (Acknowledged, &[Action::Program(OPTIONS)]),
                (DONE, &[]),
                (RELEASE, &[Action::RemoveRedirects]),
                (DONE, &[]),
                (Pass(4_999), &[]),
                (Pass(1), &[Action::CountConnections]),
                (Finish(Outcome::Connections(3)), &[]),
                (Pass(1_000), &[Action::CountConnections]),
                (Finish(Outcome::Connections(0)), &[Action::Withdraw]),
                (DONE, &[Action::RemoveAll]),
                (DONE, &[]),
                (Pass(60_000), &[]),
            ],
        );
    }

    #[test]
    fn a_pod_out_of_the_mesh_is_looked_at_once_and_left_alone() {
        check(Wish::Release, &[Action::Inspect], &[(CLEAN, &[]), (Pass(60_000), &[])]);
    }

    #[test]
    fn what_an_earlier_agent_left_is_drained_while_on_the_roster() {
        let opening = &[Action::Inspect];
        check(
            Wish::Release,
            opening,
            &[
                (LEFT, &[Action::Announce, Action::RemoveRedirects]),
                (DONE, &[]),
                (Pass(5_000), &[Action::CountConnections]),
                (Finish(Outcome::Connections(0)), &[Action::Withdraw]),
                (DONE, &[Action::RemoveAll]),
            ],
        );
        check(
            IN,
            opening,
            &[(LEFT, &[Action::Announce]), (Acknowledged, &[Action::Program(OPTIONS)])],
        );
    }

    #[test]
    fn a_pod_that_comes_back_while_draining_is_captured_again_at_once() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (LEFT, &[Action::Announce]),
                (RELEASE, &[Action::RemoveRedirects]),
                (DONE, &[]),
                (CAPTURE, &[Action::Program(OPTIONS)]),
                (DONE, &[]),
            ],
        );
    }

    #[test]
    fn a_pod_released_before_the_acknowledgement_is_only_withdrawn() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (CLEAN, &[Action::Announce]),
                (RELEASE, &[Action::Withdraw]),
                (Acknowledged, &[]),
                (DONE, &[]),
                (CAPTURE, &[Action::Announce]),
            ],
        );
    }

    #[test]
    fn a_wish_that_changes_under_way_is_followed_as_soon_as_the_action_ends() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (CLEAN, &[Action::Announce]),
                (Acknowledged, &[Action::Program(OPTIONS)]),
                (RELEASE, &[]),
                (DONE, &[Action::RemoveRedirects]),
                (FORGET, &[]),
                (FAILED, &[Action::Forget]),
                (DONE, &[]),
                (CAPTURE, &[]),
            ],
        );
    }

    #[test]
    fn changed_options_are_programmed_into_a_captured_pod() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (LEFT, &[Action::Announce]),
                (Acknowledged, &[Action::Program(OPTIONS)]),
                (DONE, &[]),
                (Step::Wish(Wish::Capture(OTHER)), &[Action::Program(OTHER)]),
            ],
        );
    }

    #[test]
    fn the_end_of_a_pod_is_announced_from_every_resting_phase() {
        let scripts: &[&[(Step, &[Action])]] = &[
            &[(CLEAN, &[Action::Announce]), (FORGET, &[Action::Forget])],
            &[
                (LEFT, &[Action::Announce]),
                (Acknowledged, &[Action::Program(OPTIONS)]),
                (DONE, &[]),
                (FORGET, &[Action::Forget]),
                (FAILED, &[]),
                (Pass(200), &[Action::Forget]),
                (DONE, &[]),
            ],
            &[(FAILED, &[]), (FORGET, &[Action::Forget])],
        ];
        for script in scripts {
            check(IN, &[Action::Inspect], script);
        }
    }

    #[test]
    fn failures_are_retried_with_growing_waits() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (CLEAN, &[Action::Announce]),
                (Acknowledged, &[Action::Program(OPTIONS)]),
                (FAILED, &[]),
                (Pass(200), &[Action::Program(OPTIONS)]),
                (FAILED, &[]),
                (Pass(399), &[]),
                (Pass(1), &[Action::Program(OPTIONS)]),
                (RELEASE, &[]),
                (FAILED, &[Action::RemoveRedirects]),
            ],
        );
        assert_eq!(retry_wait(1_000), RETRY_MAX);
    }

    #[test]
    fn tampering_is_looked_at_at_once() {
        check(
            IN,
            &[Action::Inspect],
            &[
                (LEFT, &[Action::Announce]),
                (Acknowledged, &[Action::Program(OPTIONS)]),
                (DONE, &[]),
                (Tampered, &[Action::Verify(OPTIONS)]),
                (FAILED, &[]),
                (Pass(200), &[Action::Verify(OPTIONS)]),
            ],
        );
    }
}
