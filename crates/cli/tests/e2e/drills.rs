//! What each event in the life of a waypoint costs those who talk through it, on one machine.

use std::time::{Duration, Instant};

use ambit_net::sys::process::{Signal, kill};

use crate::drill::{CONNECTIONS, DRAIN_S, LOADS, Outcome, SHORT_S, loads};
use crate::load::Load;
use crate::machine::{MESH_ON, Machine, Mesh, SETTLE_TIMEOUT, deployment};

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
/// Routes of the drill of routes, besides the one for everything.
const ROUTES: usize = 20;

/// The servers' port of gRPC.
const GRPC: &str = "\
apiVersion: v1
kind: Service
metadata: {name: grpc, namespace: app}
spec:
  selector: {app: server}
  ports: [{name: grpc, port: 80, targetPort: 8080}]
";

/// Runs the load around an event and says what it cost.
fn under_load<T>(
    machine: &Machine,
    seconds: u32,
    what: &str,
    event: impl FnOnce() -> T,
) -> (Outcome, T) {
    let loads = start_load(machine, seconds);
    let done = event();
    let outcome = Outcome::new(loads.map(Load::http));
    eprintln!("{}", outcome.row(what));
    (outcome, done)
}

/// Starts the load, and returns when all of its connections are open.
pub(crate) fn start_load(machine: &Machine, seconds: u32) -> [Load; LOADS] {
    let loads = loads("web.app", "grpc.app", seconds);
    let loads = loads.map(|words| machine.load("client/load", &words));
    machine.wait("the load's connections stand", SETTLE_TIMEOUT, || {
        machine.established("client/load", 80) >= CONNECTIONS
    });
    loads
}

fn up(name: &'static str) -> Machine {
    let machine = Machine::up(name, Mesh::On, &[]);
    machine.apply(GRPC);
    machine
}

/// A machine whose servers have a waypoint of so many pods.
pub(crate) fn with_waypoint(name: &'static str, pods: u32) -> Machine {
    let machine = up(name);
    attach(&machine);
    if pods > 1 {
        scale(&machine, pods);
    }
    machine
}

fn attach(machine: &Machine) {
    machine.run(&["waypoint", "apply", "-n", "app", "--enroll-namespace", "--wait"]);
    await_plan(machine, "waypoint");
}

fn await_plan(machine: &Machine, plan: &str) {
    machine.wait(&format!("connections go by {plan}"), SETTLE_TIMEOUT, || {
        machine.why("client/load", "app/web:80")["plan"] == plan
    });
}

/// Sets how many pods the waypoint has, and waits until these and no others are there.
fn scale(machine: &Machine, pods: u32) {
    machine.ask(async |client| client.scale(&deployment("waypoint"), pods).await);
    await_pods(machine, pods);
}

fn await_pods(machine: &Machine, pods: u32) {
    let limit = SETTLE_TIMEOUT * 2 + Duration::from_secs(u64::from(DRAIN_S));
    machine.wait(&format!("{pods} pods of the waypoint are ready"), limit, || {
        let all = machine.pods();
        let own: Vec<_> = all.iter().filter(|pod| pod.owner == "waypoint").collect();
        own.len() == pods as usize && own.iter().all(|pod| pod.ready && !pod.terminating)
    });
}

#[test]
fn a_waypoint_is_attached_and_nothing_is_lost() {
    let machine = up("drill-attach");
    machine.run(&["waypoint", "apply", "-n", "app", "--wait"]);
    let (outcome, ()) = under_load(&machine, SHORT_S, "attach", || attach(&machine));
    outcome.assert_whole("attach");
    machine.down();
}

#[test]
fn a_waypoint_is_detached_and_nothing_is_lost() {
    let machine = with_waypoint("drill-detach", 1);
    let (outcome, ()) = under_load(&machine, 2 * SHORT_S, "detach", || {
        machine.apply(&MESH_ON.replace("ambient", "ambient, istio.io/use-waypoint: none"));
        await_plan(&machine, "tunnel");
    });
    outcome.assert_whole("detach");
    machine.down();
}

#[test]
fn a_waypoint_is_scaled_up_and_down_and_no_request_is_lost() {
    let machine = with_waypoint("drill-scale", 1);
    let what = "scale from 1 to 3";
    under_load(&machine, SHORT_S, what, || scale(&machine, 3)).0.assert_whole(what);
    let what = "scale from 3 to 1";
    let (outcome, ()) = under_load(&machine, DRAIN_S, what, || {
        machine.ask(async |client| client.scale(&deployment("waypoint"), 1).await);
    });
    outcome.assert_drained(1, what);
    await_pods(&machine, 1);
    machine.down();
}

#[test]
fn a_waypoint_is_rolled_and_no_request_is_lost() {
    let machine = with_waypoint("drill-roll", 2);
    let what = "rolling upgrade of 2";
    let (outcome, ()) = under_load(&machine, DRAIN_S + 10, what, || {
        machine.ask(async |client| client.restart(&deployment("waypoint")).await);
    });
    outcome.assert_drained(2, what);
    await_pods(&machine, 2);
    machine.down();
}

/// What was under way in it ends with it, and nothing else: whoever connects again finds the other
/// one.
#[test]
fn one_of_two_waypoints_is_killed_and_only_its_own_is_lost() {
    let machine = with_waypoint("drill-kill", 2);
    let what = "kill -9 of one of 2";
    let (outcome, ()) = under_load(&machine, SHORT_S, what, || {
        // The load has begun all at once, and what waits then would count as under way.
        std::thread::sleep(Duration::from_secs(1));
        // Each node is a zone, and clients prefer the pods of their own.
        let pods = machine.pods();
        let pod = pods.iter().find(|pod| pod.owner == "waypoint" && pod.node == "node-1");
        let name = format!("pod app/{}", pod.expect("one is on the clients' node").name);
        let all = machine.processes();
        let is_it = |command: &str| command.split(' ').nth(1) == Some("waypoint");
        let one = all.iter().find(|process| process.name == name && is_it(&process.command));
        let one = one.expect("it runs");
        kill(one.host_pid, Signal::Kill).expect("it can be killed");
    });
    outcome.assert_lost_with_one(what);
    machine.down();
}

#[test]
fn control_is_away_and_requests_go_on() {
    let machine = with_waypoint("drill-away", 2);
    machine.signal("control", SIGSTOP);
    let what = "control away";
    let (outcome, ()) = under_load(&machine, SHORT_S, what, || {});
    machine.signal("control", SIGCONT);
    outcome.assert_whole(what);
    machine.down();
}

#[test]
fn routes_change_all_the_time_and_nothing_is_lost() {
    let machine = with_waypoint("drill-routes", 1);
    machine.apply(&routes(0));
    let what = "routes change";
    let (outcome, changes) = under_load(&machine, SHORT_S, what, || {
        let end = Instant::now() + Duration::from_secs(u64::from(SHORT_S));
        let mut changes = 0;
        while Instant::now() < end {
            changes += 1;
            machine.apply(&routes(changes));
        }
        changes
    });
    outcome.assert_whole(what);
    assert!(changes > 1, "{changes}");
    eprintln!("drill | {what} | {} routes {changes} times", ROUTES + 1);
    machine.down();
}

/// Routes of which the last catches all, and says which edition it is.
fn routes(edition: usize) -> String {
    let route = |number: usize| {
        let path = if number == ROUTES { "/".to_owned() } else { format!("/route-{number}") };
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: \
             drill-{number}, namespace: app}}\nspec:\n  parentRefs: [{{group: '', kind: Service, \
             name: web, port: 80}}]\n  rules:\n  - matches: [{{path: {{type: PathPrefix, value: \
             {path}}}}}]\n    filters:\n    - type: ResponseHeaderModifier\n      \
             responseHeaderModifier: {{set: [{{name: x-edition, value: '{edition}'}}]}}\n    \
             backendRefs: [{{name: web, port: 80}}]\n"
        )
    };
    (0..=ROUTES).map(route).collect::<Vec<_>>().join("---\n")
}
