//! From Istio ambient to Ambit and back, part by part, as docs/guide/migration.md says: what each
//! step costs under the everyday load, and that a policy by identity holds after each.

use std::time::Instant;

use crate::cluster::{Cluster, MESH, Namespace, must, until};
use crate::disturbance::under_load;
use crate::istio::{Mesh, Parts};
use crate::load::{Everyday, KEPT, LONG, Outcome};

/// How long the load runs around a step, and longer than any takes.
const STEP_S: u32 = 90;
const REQUESTS: u32 = 20;
/// What the load asks for, and opens, in a second.
const REQUESTS_PER_SECOND: u64 = 200;
const FRESH_PER_SECOND: u64 = 10;
/// It admits the load and nobody else.
const POLICY: &str = "only-load";

/// What a step may cost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cost {
    /// Nothing at all.
    Nothing,
    /// Connections that were open, each once; new ones are served throughout.
    OpenConnections,
    /// Connections that were open, and what comes within a second: istio-cni captures pods before
    /// it names them to the proxy, which refuses their connections until then.
    Recapture,
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn from_istio_ambient_to_ambit_and_back_part_by_part() {
    let cluster = Cluster::alone();
    let Some(mesh) = Mesh::open(&cluster) else { return };
    // So that it is istiod that makes the root which both have to sign with.
    cluster.ask(&["-n", MESH, "delete", "secret", "istio-ca-secret"]);
    mesh.install(Parts::ISTIO);
    let namespace = cluster.namespace("migration");
    Everyday::deploy(&namespace);
    namespace.run("stranger", "n1", &["sample", "sleep"]);
    namespace.enrol();
    let migration = Migration { cluster: &cluster, namespace: &namespace };
    migration.admit_the_load_alone();
    let step = |what: &str, cost: Cost, event: &dyn Fn()| migration.step(what, cost, event);

    step("1: Ambit's proxy for ztunnel", Cost::OpenConnections, &|| {
        cluster.ask(&["-n", MESH, "delete", "daemonset", "ztunnel", "--cascade=orphan"]);
        mesh.ambit(&["control.enabled=false", "node.enabled=false"]);
        let theirs = "app=ztunnel,app.kubernetes.io/instance=ztunnel";
        cluster.ask(&["-n", MESH, "delete", "pods", "-l", theirs]);
        cluster.ask(&["-n", MESH, "delete", "secrets", "-l", "owner=helm,name=ztunnel"]);
    });
    step("2: Ambit's agent for istio-cni", Cost::Nothing, &|| {
        mesh.uninstall("istio-cni");
        mesh.ambit(&["control.enabled=false"]);
    });
    step("3: Ambit's control for istiod", Cost::Nothing, &|| {
        mesh.uninstall("istiod");
        mesh.ambit(&[]);
    });
    step("back 3: istiod for Ambit's control", Cost::Nothing, &|| {
        mesh.ambit(&["control.enabled=false"]);
        mesh.istiod();
    });
    step("back 2: istio-cni for Ambit's agent", Cost::Recapture, &|| {
        // Pods come back one by one: the first would refuse those that are still outside.
        cluster.ask(&["-n", namespace.name, "delete", "authorizationpolicy", POLICY]);
        must(&cluster.ambit(&["uninstall", "--grace", "20s"]));
        mesh.ambit(&["control.enabled=false", "node.enabled=false"]);
        mesh.istio_cni();
        namespace.await_captured();
        migration.admit_the_load_alone();
    });
    step("back 1: ztunnel for Ambit's proxy", Cost::Nothing, &|| {
        mesh.uninstall("ambit");
        mesh.ztunnel();
    });
    // Before its agent goes.
    cluster.ask(&["delete", "namespace", namespace.name]);
}

struct Migration<'a> {
    cluster: &'a Cluster,
    namespace: &'a Namespace<'a>,
}

impl Migration<'_> {
    /// Nobody but the load's own account may come in.
    fn admit_the_load_alone(&self) {
        let name = self.namespace.name;
        self.cluster.must_apply(&format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: \
             {POLICY}, namespace: {name}}}\nspec: {{rules: [{{from: [{{source: {{principals: \
             [cluster.local/ns/{name}/sa/load, cluster.local/ns/{name}/sa/near]}}}}]}}]}}\n"
        ));
        self.await_policy("before");
    }

    fn await_policy(&self, when: &str) {
        let failed =
            |client: &str| self.namespace.load(client, "http://web:8080/", REQUESTS).failed;
        until(&format!("{when}: a stranger is refused and the load is not"), || {
            failed("stranger") == u64::from(REQUESTS) && failed("load") == 0
        });
    }

    fn step(&self, what: &str, cost: Cost, event: &dyn Fn()) {
        let outcome = under_load(self.cluster, self.namespace, STEP_S, what, || {
            let start = Instant::now();
            event();
            let took = start.elapsed();
            eprintln!("{what}: took {} s", took.as_secs());
            assert!(took.as_secs() < STEP_S.into(), "{what}: took {took:?}, longer than the load");
        });
        assert_cost(&outcome, what, cost);
        self.await_policy(what);
    }
}

fn assert_cost(outcome: &Outcome, what: &str, cost: Cost) {
    let (fresh, kept) = match cost {
        Cost::Nothing => return outcome.assert_whole(what),
        Cost::OpenConnections => (0, KEPT as u64),
        Cost::Recapture => (FRESH_PER_SECOND, REQUESTS_PER_SECOND),
    };
    assert!(outcome.fresh.failed <= fresh, "{what}: {outcome:#?}");
    assert!(outcome.kept.failed.max(outcome.near.failed) <= kept, "{what}: {outcome:#?}");
    assert!(outcome.long.cut <= LONG as u64, "{what}: {outcome:#?}");
}
