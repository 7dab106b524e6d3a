//! Keys of a token issuer within the mesh, on one machine: fetched, changed, missing; and a route
//! that a claim chooses.

use std::time::Duration;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

/// How long keys may take to arrive: the pause after a fetch that failed grows to a minute.
const KEYS_TIMEOUT: Duration = Duration::from_secs(90);
/// Of Ed25519, by their names, and what each has signed:
/// `{"iss":"https://login.example.com","sub":"ann","group":"beta"}`.
const KEYS: [(&str, &str, &str); 3] = [
    (
        "a",
        "MctzsQC41IwjLoBcuZA6zrHRnlMkf5sRRf4-0rki2Os",
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.\
         eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUuY29tIiwic3ViIjoiYW5uIiwiZ3JvdXAiOiJiZXRhIn0.\
         RQA3GYYpsjM0tarkRBHBJTHNIZ5J5AXZPJSY4vfhU2l-3nPcXKzYLdvpnpYcuAhZ7K4eOJQBV2B3cQKOQGheBw",
    ),
    (
        "b",
        "a-dP4wuet0OFHdO4uBjAqdsSJzCP66pGcxZfRkaC7Ug",
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImIifQ.\
         eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUuY29tIiwic3ViIjoiYW5uIiwiZ3JvdXAiOiJiZXRhIn0.\
         IECggM0a3kVqb7rYFdn1j7hthyx7dRBNobsyXyc3PIL62OOhzsiUpUgZ3nB9uQ1RvdI1FTlJ1foAqE10qTBRAw",
    ),
    (
        "c",
        "Hnfoslb6F5ALPjl8fxq-nKlcg4O_7XYRBvp84LdBSPg",
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImMifQ.\
         eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUuY29tIiwic3ViIjoiYW5uIiwiZ3JvdXAiOiJiZXRhIn0.\
         VbAXW2Oto-Q-vAZuBXvbSUe_27TsQhsoQakvT6wCdSsVcrW2S1rCJy8s9kf0COlbj0lHKA59kH0My3X3GBieAg",
    ),
];

/// The issuer: a captured pod that takes mutual TLS alone, from control alone.
const ISSUER: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: auth, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Service
metadata: {name: keys, namespace: auth}
spec:
  selector: {app: keys}
  ports: [{name: http, port: 80, targetPort: 8000}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: auth}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: control, namespace: auth}
spec:
  rules: [{from: [{source: {principals: [cluster.local/ns/istio-system/sa/istiod]}}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: keys, namespace: auth, labels: {app: keys}}
spec:
  nodeName: node-2
  containers:
  - name: keys
    image: python
    command: [python3, -u, -m, http.server, '8000', --directory, /tmp]
";

const LOGIN: &str = "\
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: login, namespace: app}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  jwtRules:
  - issuer: https://login.example.com
    jwksUri: http://keys.auth/jwks.json
";

const BETA: &str = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: app}
spec:
  hosts: [web]
  http:
  - match: [{headers: {'@request.auth.claims.group': {exact: beta}}}]
    headers: {response: {set: {x-route: beta}}}
    route: [{destination: {host: web}}]
  - route: [{destination: {host: web}}]
";

#[test]
fn keys_of_an_issuer_in_the_mesh_are_fetched_and_follow_its_rotation() {
    let machine = Machine::up("tokens", Mesh::On, &["--control-flag=--jwks-refresh=1s"]);
    machine.put_behind_waypoint(|| ask(&machine, None).starts_with("HTTP/1.1 200"));
    machine.apply(LOGIN);
    // Nobody has the keys: nothing is let in by a token, and status says why.
    machine.wait("tokens are refused without keys", SETTLE_TIMEOUT, || {
        ask(&machine, Some("a")).starts_with("HTTP/1.1 401")
    });
    assert!(ask(&machine, Some("a")).contains("Jwks of the issuer is not available"));
    assert!(ask(&machine, None).starts_with("HTTP/1.1 200"), "no token is no wrong one");
    machine.wait("status names the keys that are missing", SETTLE_TIMEOUT, || {
        keys_finding(&machine).is_some_and(|it| it.contains("were never fetched"))
    });

    machine.apply(ISSUER);
    publish(&machine, &["a"]);
    passes(&machine, "a");
    assert_eq!(keys_finding(&machine), None);
    let unknown = ask(&machine, Some("c"));
    assert!(unknown.starts_with("HTTP/1.1 401"), "{unknown}");
    assert!(unknown.ends_with("Jwks doesn't have key to match kid or alg from Jwt"), "{unknown}");

    // The next key is published before it signs, and the last one until its tokens are over.
    publish(&machine, &["a", "b"]);
    machine.wait("a token of the next key is accepted", SETTLE_TIMEOUT, || {
        let old = ask(&machine, Some("a"));
        assert!(old.starts_with("HTTP/1.1 200"), "no gap for the last one: {old}");
        ask(&machine, Some("b")).starts_with("HTTP/1.1 200")
    });
    publish(&machine, &["b"]);
    machine.wait("a token of the withdrawn key is refused", SETTLE_TIMEOUT, || {
        let new = ask(&machine, Some("b"));
        assert!(new.starts_with("HTTP/1.1 200"), "no gap for the next one: {new}");
        ask(&machine, Some("a")).starts_with("HTTP/1.1 401")
    });

    // The issuer is away: what was good stays good, and status says that it is old.
    machine.delete(ISSUER);
    machine.wait("status says that the keys are old", SETTLE_TIMEOUT, || {
        keys_finding(&machine).is_some_and(|it| it.contains("go on being used"))
    });
    passes(&machine, "b");
    routed_by_a_claim(&machine);
    machine.down();
}

/// What claims say chooses the route, and no field that a client sends.
fn routed_by_a_claim(machine: &Machine) {
    machine.apply(BETA);
    machine.wait("the claim chooses the route", SETTLE_TIMEOUT, || {
        ask(machine, Some("b")).contains("x-route: beta")
    });
    let without = ask(machine, None);
    assert!(without.starts_with("HTTP/1.1 200") && !without.contains("x-route"), "{without}");
    let spoofed = send(machine, "@request.auth.claims.group: beta\\r\\n");
    assert!(spoofed.starts_with("HTTP/1.1 400"), "{spoofed}");
}

fn passes(machine: &Machine, key: &str) {
    machine.wait("a token of a known key is accepted", KEYS_TIMEOUT, || {
        ask(machine, Some(key)).starts_with("HTTP/1.1 200")
    });
}

/// The issuer's set has these keys from now on.
fn publish(machine: &Machine, names: &[&str]) {
    let keys = KEYS.iter().filter(|(name, ..)| names.contains(name));
    let keys = keys.map(
        |(name, x, _)| serde_json::json!({"kty": "OKP", "crv": "Ed25519", "kid": name, "x": x}),
    );
    let set = serde_json::json!({"keys": keys.collect::<Vec<_>>()});
    let script =
        format!("printf '%s' '{set}' > /tmp/next && mv /tmp/next /tmp/jwks.json && echo published");
    machine.wait("the issuer publishes its keys", SETTLE_TIMEOUT, || {
        machine.bash("auth/keys", &script).contains("published")
    });
}

/// What a client in the mesh is answered, with a token of this key.
fn ask(machine: &Machine, key: Option<&str>) -> String {
    let token = |key| KEYS.iter().find(|(name, ..)| *name == key).expect("a key").2;
    let field = |key| format!("Authorization: Bearer {}\\r\\n", token(key));
    send(machine, &key.map(field).unwrap_or_default())
}

fn send(machine: &Machine, field: &str) -> String {
    let head = "GET / HTTP/1.1\\r\\nHost: web.app\\r\\nConnection: close\\r\\n";
    let script = format!(
        "exec 3<>/dev/tcp/web.app/80 && printf '{head}{field}\\r\\n' >&3 && timeout 5 cat <&3"
    );
    machine.bash("client/load", &script)
}

/// What `ambit status` says of the keys.
fn keys_finding(machine: &Machine) -> Option<String> {
    let said = machine.ambit(&["status"]).out;
    let line = said.lines().find(|it| it.contains("RequestAuthentication app/login"));
    line.map(str::to_owned)
}
