//! Conditions in CEL on one machine: the policy that the guide shows.

use serde_json::Value;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

const OWN_TEAM: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata:
  name: own-team
  namespace: app
  annotations:
    ambit.io/condition: request.headers['x-team'] == source.namespace || request.method == 'GET'
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  action: ALLOW
  rules: [{}]
";

#[test]
fn a_condition_is_judged_beside_the_rules() {
    let machine = Machine::up("conditions", Mesh::On, &[]);
    machine.put_behind_waypoint(|| send(&machine, "POST", &[]).starts_with("HTTP/1.1 200"));
    machine.apply(OWN_TEAM);
    machine.wait("the policy holds", SETTLE_TIMEOUT, || {
        send(&machine, "POST", &[]).starts_with("HTTP/1.1 403")
    });
    for (method, teams, status) in [
        ("GET", &[][..], "200"),
        ("POST", &["client"], "200"),
        ("POST", &["bank"], "403"),
        ("POST", &[], "403"),
        ("POST", &["client", "client"], "403"),
    ] {
        let answer = send(&machine, method, teams);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method} {teams:?}: {answer}");
        // Of two equal lines the command is asked about one.
        if teams.len() < 2 {
            let why = explained(&machine, method, teams);
            let decision = if status == "200" { "allow" } else { "deny" };
            assert_eq!(why["decision"], decision, "{method} {teams:?}: {why}");
            let notes = why["notes"].to_string();
            assert!(notes.contains("the condition of app/own-team"), "{notes}");
        }
    }
    let wrong = OWN_TEAM.replace("source.namespace", "source.nonsense");
    let said = machine.ambit_with(&["apply", "-"], &wrong);
    assert!(!said.status.success(), "{}", said.out);
    assert!(said.err.contains("\"source.nonsense\" is not known"), "{}", said.err);
    let answer = send(&machine, "GET", &[]);
    assert!(answer.starts_with("HTTP/1.1 200"), "nothing of it was taken: {answer}");
    machine.down();
}

fn send(machine: &Machine, method: &str, teams: &[&str]) -> String {
    let teams: String = teams.iter().map(|it| format!("x-team: {it}\\r\\n")).collect();
    let head = format!("{method} / HTTP/1.1\\r\\nHost: web.app\\r\\nConnection: close\\r\\n");
    let rest = format!("{teams}Content-Length: 0\\r\\n\\r\\n");
    let script =
        format!("exec 3<>/dev/tcp/web.app/80 && printf '{head}{rest}' >&3 && timeout 5 cat <&3");
    machine.bash("client/load", &script)
}

fn explained(machine: &Machine, method: &str, teams: &[&str]) -> Value {
    let mut words = vec!["why", "client/load", "app/web:80", "--method", method, "-o", "json"];
    let fields: Vec<String> = teams.iter().map(|it| format!("x-team: {it}")).collect();
    words.extend(fields.iter().flat_map(|it| ["-H", it]));
    serde_json::from_str(&machine.run(&words)).expect("it prints JSON")
}
