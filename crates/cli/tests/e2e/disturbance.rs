//! What each program's death costs, under load: `kill -9` of everything there is, and a planned handover.

use std::time::Duration;

use ambit_net::sys::process::{Signal, kill};

use crate::load::{Everyday, KEPT, LONG, Outcome};
use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
/// How long the load runs around one disturbance.
const SECONDS: f64 = 4.0;
/// How soon new connections must work again after a worker's death.
const BACK_WITHIN_MS: u64 = 500;

/// Runs load around a disturbance.
fn under_load(machine: &Machine, what: &str, disturb: impl FnOnce()) -> Outcome {
    let load = Everyday::start(machine, SECONDS);
    disturb();
    let outcome = load.end();
    eprintln!("{what}: {}", outcome.summary());
    outcome
}

/// Kills a node's worker and waits until there is another that serves.
fn kill_worker(machine: &Machine, node: &str) {
    let old = machine.workers(node);
    assert_eq!(old.len(), 1, "one worker serves {node}");
    kill(old[0], Signal::Kill).expect("the worker can be killed");
    machine.wait("another worker serves", SETTLE_TIMEOUT, || {
        let new = machine.workers(node);
        new.len() == 1 && new != old
    });
}

/// A worker's death costs its own connections, each once, and nothing for longer than half a second.
fn assert_own_connections_only(outcome: &Outcome, what: &str) {
    assert!(outcome.kept.failed <= KEPT as u64, "{what}: {outcome:#?}");
    assert!(outcome.long.cut <= LONG as u64, "{what}: {outcome:#?}");
    let fresh = &outcome.fresh.failed_at_ms;
    let down_ms = fresh.last().copied().unwrap_or(0) - fresh.first().copied().unwrap_or(0);
    assert!(down_ms <= BACK_WITHIN_MS, "{what}: fresh ones failed for {down_ms} ms: {outcome:#?}");
    let slowest_ms = outcome.fresh.max_us / 1000;
    assert!(slowest_ms <= BACK_WITHIN_MS, "{what}: a fresh one waited {slowest_ms} ms");
}

#[test]
fn control_and_agents_die_and_nobody_notices() {
    let machine = Machine::up("kill-away", Mesh::On, &[]);
    let outcome = under_load(&machine, "kill -9 control", || machine.signal("control", SIGKILL));
    outcome.assert_whole("kill -9 control");
    let outcome = under_load(&machine, "kill -9 both node agents", || {
        machine.signal("node/node-1", SIGKILL);
        machine.signal("node/node-2", SIGKILL);
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
        let outcome = under_load(&machine, &what, || kill_worker(&machine, node));
        assert_eq!(outcome.long.cut, LONG as u64, "{what}: they were its own");
        assert_own_connections_only(&outcome, &what);
    }
    // With control away the new worker lives on the supervisor's view and keys.
    machine.signal("control", SIGSTOP);
    let what = "kill -9 a worker while control is away";
    let outcome = under_load(&machine, what, || kill_worker(&machine, "node-2"));
    machine.signal("control", SIGCONT);
    assert_own_connections_only(&outcome, what);
    machine.down();
}

#[test]
fn a_worker_hands_over_and_nothing_is_lost() {
    let machine = Machine::up("handover", Mesh::On, &[]);
    for node in ["node-1", "node-2"] {
        let what = format!("a new worker on {node}");
        let outcome = under_load(&machine, &what, || {
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
fn a_supervisor_dies_and_its_node_comes_back() {
    let machine = Machine::up("kill-super", Mesh::On, &[]);
    let what = "kill -9 the supervisor of node-2";
    let outcome = under_load(&machine, what, || machine.signal("proxy/node-2", SIGKILL));
    assert!(outcome.kept.failed <= 2 * KEPT as u64, "{what}: {outcome:#?}");
    machine
        .wait("all is well again", SETTLE_TIMEOUT, || machine.ambit(&["status"]).status.success());
    let outcome = under_load(&machine, "afterwards", || {});
    outcome.assert_whole("after the supervisor's return");
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
    machine.is_down(&footprint);
}
