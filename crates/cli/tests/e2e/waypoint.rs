//! Waypoints on one machine: from a Gateway to pods that prove themselves, and back.

use serde_json::Value;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, deployment};

/// A pod of the waypoint, by the name of its Deployment.
const POD: &str = "app/way";

#[test]
fn a_waypoint_is_made_scaled_and_deleted() {
    let machine = Machine::up("waypoint", Mesh::On, &[]);
    made(&machine);
    credentials(&machine);
    in_the_way(&machine);
    scaled(&machine);
    deleted(&machine);
    machine.down();
}

fn made(machine: &Machine) {
    let words = "waypoint apply -n app --name way --for all --enroll-namespace --wait";
    let said = machine.run(&words.split(' ').collect::<Vec<_>>());
    assert!(said.contains("waypoint app/way is ready"), "{said}");
    let gateways = machine.list("gateways");
    let [way] = &*gateways else { panic!("{gateways:?}") };
    assert_eq!((&way["name"], &way["traffic"]), (&"way".into(), &"all".into()));
    assert!(way["addresses"][0].as_str().is_some_and(|ip| ip.starts_with("10.96.")), "{way}");
    // The command waited for the store; the control plane reads it a moment later.
    let is_true = |gateways: &[Value]| {
        let conditions = gateways[0]["conditions"].as_array().expect("conditions");
        conditions.iter().all(|it| it["status"] == "True")
    };
    machine.wait("the conditions hold", SETTLE_TIMEOUT, || is_true(&machine.list("gateways")));
    let listed = machine.run(&["waypoint", "list", "-A"]);
    assert!(listed.lines().any(|line| line.starts_with("app") && line.ends_with("True")));
    let status = machine.run(&["waypoint", "status", "way", "-n", "app"]);
    assert!(status.contains("1 of 1 pods are ready"), "{status}");
    let again = words.replace("--name way", "--name other");
    let refused = machine.ambit(&again.split(' ').collect::<Vec<_>>());
    assert!(refused.err.contains("--overwrite"), "{}", refused.err);
    assert_eq!(machine.list("gateways").len(), 1, "nothing is applied either");
}

/// The pod has what it proves itself by, and only it has.
fn credentials(machine: &Machine) {
    let token = "/var/run/secrets/tokens/istio-token";
    let said = machine.bash(POD, &format!("stat -c %a {token}; cut -d. -f1 {token} | wc -c"));
    let said: Vec<&str> = said.split_whitespace().collect();
    assert!(said[0] == "600" && said[1] != "0", "{said:?}");
    let root = machine.bash(POD, "head -1 /var/run/secrets/istio/root-cert.pem");
    assert_eq!(root.trim(), "-----BEGIN CERTIFICATE-----");
    let written = machine.bash(POD, &format!("echo x > {token} && echo written"));
    assert!(!written.contains("written\n"), "{written}");
    let variables = machine.bash(POD, "env");
    for variable in
        ["GATEWAY_NAME=way", "SERVICE_ACCOUNT=way", "POD_NAMESPACE=app", "TRUST_DOMAIN="]
    {
        assert!(variables.contains(variable), "{variable}: {variables}");
    }
    let other = machine.bash("app/server", &format!("cat {token} 2>&1"));
    assert!(other.contains("No such file"), "{other}");
}

/// What goes to the namespace goes to the waypoint, which is reached by HBONE and captured by
/// nobody.
fn in_the_way(machine: &Machine) {
    machine.wait("the waypoint serves", SETTLE_TIMEOUT, || {
        machine.why("client/load", "app/web:80")["plan"] == "waypoint"
    });
    assert_eq!(machine.why("client/load", "app/server:8080")["plan"], "waypoint");
    let workloads = machine.list("workloads");
    let of_waypoint =
        |it: &&serde_json::Value| it["name"].as_str().is_some_and(|name| name.starts_with("way-"));
    let own = workloads.iter().find(of_waypoint).expect("the pod is a workload");
    assert_eq!((&own["protocol"], &own["waypoint"]), (&"HBONE".into(), &serde_json::Value::Null));
    let pods = machine.list("pods");
    let own = pods.iter().find(of_waypoint).expect("the pod");
    assert_eq!(own["captured"], false);
}

fn scaled(machine: &Machine) {
    let ready = || machine.list("gateways")[0]["endpoints"]["ready"].as_u64();
    machine.ask(async |client| client.scale(&deployment("way"), 2).await);
    machine.wait("two pods serve", SETTLE_TIMEOUT, || ready() == Some(2));
    machine.ask(async |client| client.restart(&deployment("way")).await);
    machine.wait("two other pods serve", SETTLE_TIMEOUT * 2, || {
        let pods = machine.pods();
        let mut of_waypoint = pods.iter().filter(|pod| pod.owner == "way");
        of_waypoint.all(|pod| pod.ready && !pod.terminating) && ready() == Some(2)
    });
}

fn deleted(machine: &Machine) {
    let credentials = machine.layout.node("node-1").join("waypoints");
    let refused = machine.ambit(&["waypoint", "delete", "way", "-n", "app"]);
    assert!(refused.err.contains("Namespace app") && refused.err.contains("--force"));
    assert_eq!(machine.list("gateways").len(), 1, "it is there");
    machine.run(&["waypoint", "delete", "way", "-n", "app", "--force"]);
    machine.wait("its pods are gone", SETTLE_TIMEOUT, || {
        machine.pods().iter().all(|pod| pod.owner != "way")
    });
    assert!(machine.list("gateways").is_empty());
    assert!(machine.list("services").iter().all(|service| service["name"] != "way"));
    machine.wait("its credentials are gone", SETTLE_TIMEOUT, || {
        let left = std::fs::read_dir(&credentials);
        left.map_or(true, |mut left| left.next().is_none())
    });
    // The namespace still names it: nothing goes around it.
    let why = machine.why("client/load", "app/web:80");
    assert_eq!(why["decision"], "deny", "{why}");
    let status = machine.ambit(&["status"]);
    assert!(status.out.contains("which does not exist"), "{}", status.out);
}
