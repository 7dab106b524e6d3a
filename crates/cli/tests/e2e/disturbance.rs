//! What the death of each program costs under load: `kill -9` of every program, and a planned
//! handover.

use std::time::{Duration, Instant};

use ambit_net::sys::process::{Signal, kill};
use serde_json::Value;

use crate::load::{Everyday, KEPT, LONG, Outcome};
use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::policy::{CUT_WITHIN, from, policy};
use crate::size::is_full;

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
/// How long the load runs around one disturbance.
const SECONDS: f64 = 4.0;
/// Deaths in a row.
const KILLS: u32 = 10;
/// Their rhythm.
const KILL_EVERY: Duration = Duration::from_secs(1);
/// Failures that are closer together than this have one cause: the next death comes later.
const SAME_OUTAGE_MS: u128 = KILL_EVERY.as_millis() / 2;
/// How soon new connections must work again after a worker's death.
const BACK_WITHIN_MS: u64 = 500;

/// Runs load around a disturbance.
fn under_load<T>(machine: &Machine, what: &str, disturb: impl FnOnce() -> T) -> (Outcome, T) {
    let load = Everyday::start(machine, SECONDS);
    let done = disturb();
    let outcome = load.end();
    eprintln!("{what}: {}", outcome.summary());
    (outcome, done)
}

/// Kills one of the mesh's programs and makes sure that it died and came back.
fn kill_role(machine: &Machine, role: &str) {
    let before = machine.restarts(role);
    machine.signal(role, SIGKILL);
    machine.wait(&format!("{role} is started again"), SETTLE_TIMEOUT, || {
        machine.restarts(role) == before + 1
    });
}

/// Kills a node's worker and waits until another serves. Returns how soon new connections must work
/// again: half a second, and, except at full size, as long as the processors were needed for
/// something else meanwhile.
fn kill_worker(machine: &Machine, node: &str) -> u64 {
    let old = machine.workers(node);
    assert_eq!(old.len(), 1, "one worker serves {node}");
    let starved = starved_ms();
    kill(old[0], Signal::Kill).expect("the worker can be killed");
    machine.wait("another worker serves", SETTLE_TIMEOUT, || {
        machine.workers(node) != old && machine.is_ready(node)
    });
    let allowance_ms = if is_full() { 0 } else { starved_ms() - starved };
    BACK_WITHIN_MS + allowance_ms
}

/// For how long since boot something has waited for a processor, where the kernel counts that.
fn starved_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = text.lines().find(|line| line.starts_with("some"));
    let total = some.and_then(|line| line.rsplit_once("total=")?.1.trim().parse::<u64>().ok());
    total.unwrap_or(0) / 1000
}

/// A worker's death costs its own connections, each once, and nothing for longer than this.
fn assert_own_connections_only(outcome: &Outcome, within_ms: u64, what: &str) {
    assert!(outcome.kept.failed <= KEPT as u64, "{what}: {outcome:#?}");
    assert!(outcome.long.cut <= LONG as u64, "{what}: {outcome:#?}");
    assert_back_within(outcome, within_ms, what);
}

/// After each death new connections fail for no longer than this, and none waits longer.
fn assert_back_within(outcome: &Outcome, within_ms: u64, what: &str) {
    let mut failed_at_ms = outcome.fresh.failed_at_ms.clone();
    failed_at_ms.sort_unstable();
    let mut outage: Option<(u64, u64)> = None;
    for at_ms in failed_at_ms {
        let same = outage.filter(|(_, last_ms)| u128::from(at_ms - last_ms) < SAME_OUTAGE_MS);
        let (first_ms, _) = *outage.insert((same.map_or(at_ms, |(first_ms, _)| first_ms), at_ms));
        let down_ms = at_ms - first_ms;
        assert!(down_ms <= within_ms, "{what}: fresh ones failed for {down_ms} ms: {outcome:#?}");
    }
    let slowest_ms = outcome.fresh.latency.max_us as u64 / 1000;
    assert!(slowest_ms <= within_ms, "{what}: a fresh one waited {slowest_ms} of {within_ms} ms");
}

#[test]
fn control_and_agents_die_and_nobody_notices() {
    let machine = Machine::up("kill-away", Mesh::On, &[]);
    let (outcome, ()) = under_load(&machine, "kill -9 control", || kill_role(&machine, "control"));
    outcome.assert_whole("kill -9 control");
    let (outcome, ()) = under_load(&machine, "kill -9 both node agents", || {
        kill_role(&machine, "node/node-1");
        kill_role(&machine, "node/node-2");
    });
    outcome.assert_whole("kill -9 of the node agents");
    machine
        .wait("all is well again", SETTLE_TIMEOUT, || machine.ambit(&["status"]).status.success());
    machine.down();
}

#[test]
fn a_worker_dies_and_only_its_own_connections_with_it() {
    let machine = Machine::up("kill-worker", Mesh::On, &[]);
    for node in ["node-2", "node-1"] {
        let what = format!("kill -9 the worker of {node}");
        let (outcome, within_ms) = under_load(&machine, &what, || {
            // A tunnel that is still being opened would be opened again. It stands when an answer
            // came through: the server's socket is there earlier.
            machine.wait("the tunnels stand", SETTLE_TIMEOUT, || {
                let all = machine.connections(9000);
                let answered = |item: &&Value| item["bytesToClient"].as_u64() > Some(0);
                all.iter().filter(answered).count() >= LONG
            });
            kill_worker(&machine, node)
        });
        assert_eq!(outcome.long.cut, LONG as u64, "{what}: they were its own");
        assert_own_connections_only(&outcome, within_ms, &what);
    }
    // With control away the new worker lives on the supervisor's view and keys.
    machine.signal("control", SIGSTOP);
    let what = "kill -9 a worker while control is away";
    let (outcome, within_ms) = under_load(&machine, what, || kill_worker(&machine, "node-2"));
    machine.signal("control", SIGCONT);
    assert_own_connections_only(&outcome, within_ms, what);
    machine.down();
}

#[test]
fn a_worker_hands_over_and_nothing_is_lost() {
    let machine = Machine::up("handover", Mesh::On, &[]);
    for node in ["node-1", "node-2"] {
        let what = format!("a new worker on {node}");
        let (outcome, ()) = under_load(&machine, &what, || {
            let old = machine.workers(node);
            machine.admin(node, http::Method::POST, "/worker/restart");
            machine.wait("a second worker serves", SETTLE_TIMEOUT, || {
                machine.workers(node).iter().any(|worker| !old.contains(worker))
            });
        });
        outcome.assert_whole(&what);
        machine.wait("the old worker has ended", Duration::from_secs(30), || {
            machine.workers(node).len() == 1
        });
    }
    machine.down();
}

#[test]
fn workers_die_ten_times_in_a_row() {
    let machine = Machine::up("ten-times", Mesh::On, &[]);
    let load = Everyday::start(&machine, 1.0 + KILL_EVERY.as_secs_f64() * f64::from(KILLS));
    let start = Instant::now();
    let mut within_ms = 0;
    for kill in 1..=KILLS {
        within_ms = within_ms.max(kill_worker(&machine, "node-2"));
        // The next one dies when its second is over, not when this one is missed.
        std::thread::sleep((start + KILL_EVERY * kill).saturating_duration_since(Instant::now()));
    }
    let outcome = load.end();
    let what = format!("kill -9 a worker {KILLS} times");
    eprintln!("{what}: {}", outcome.summary());
    assert!(outcome.kept.failed <= u64::from(KILLS) * KEPT as u64, "{what}: {outcome:#?}");
    assert!(outcome.fresh.failed <= u64::from(KILLS), "{what}: {outcome:#?}");
    assert_back_within(&outcome, within_ms, &what);
    under_load(&machine, "afterwards", || {}).0.assert_whole("after the last death");
    machine.down();
}

/// The worker continues without its supervisor, under the current policies, until another proxy
/// took over.
#[test]
fn a_supervisor_dies_and_nobody_notices() {
    let machine = Machine::up("kill-super", Mesh::On, &[]);
    for node in ["node-2", "node-1"] {
        let what = format!("kill -9 the supervisor of {node}");
        let role = format!("proxy/{node}");
        under_load(&machine, &what, || kill_role(&machine, &role)).0.assert_whole(&what);
        machine.wait("one worker is left", SETTLE_TIMEOUT, || machine.workers(node).len() == 1);
    }
    machine.wait("all is well", SETTLE_TIMEOUT, || machine.ambit(&["status"]).status.success());
    let mut held = machine.load("client/load", "long echo.app:9000 --connections 20 --seconds 30");
    machine.wait("connections stand", SETTLE_TIMEOUT, || machine.connections(9000).len() == 20);
    kill_role(&machine, "proxy/node-2");
    machine.wait("another worker serves", SETTLE_TIMEOUT, || machine.workers("node-2").len() == 2);
    machine.apply(&policy("no-load", &format!("action: DENY, rules: [{{{}}}]", from("load"))));
    machine.wait("the old worker cuts what is denied", CUT_WITHIN, || held.has_ended());
    let held = held.long();
    assert_eq!((held.opened, held.cut), (20, 20), "{held:?}");
    machine.down();
}

/// Whatever is killed, and in whatever order, `down` leaves nothing.
#[test]
fn everything_dies_at_once_and_nothing_is_left() {
    let machine = Machine::up("kill-all", Mesh::On, &[]);
    let _cut_off = Everyday::start(&machine, 60.0);
    let footprint = machine.footprint();
    let mut all: Vec<i32> = machine.processes().iter().map(|process| process.host_pid).collect();
    // Children first, process 1 last: nobody is spared by the death of its parent.
    all.sort_unstable();
    for pid in all.into_iter().rev() {
        // One that has died of another's death is what is wanted.
        let _dead = kill(pid, Signal::Kill);
    }
    machine.run(&["down"]);
    machine.was_taken_down(&footprint);
}
