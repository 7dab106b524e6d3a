//! The manifests of the experiments, rendered: pure functions from a size and a mode to YAML.
//!
//! Every application is described once, in the files of `manifests/`. Mesh and no mesh differ only
//! in the namespaces' label, so modes differ in nothing else. An experiment needs a machine with
//! two nodes: the client is on `node-1`, what it calls is on `node-2`, where the published
//! experiment separated them.
//!
//! | function | client pod | what it calls |
//! |---|---|---|
//! | [`tiered`] | `ns-K/vegeta` | `http://tier-1-app-a.ns-K:8080/` |
//! | [`details`] | `bookinfo/fortio` | `http://details.bookinfo:9080/details/0` |
//! | [`bookinfo`] | `bookinfo/fortio` | `http://productpage.bookinfo:9080/productpage` |
//! | [`ratings`] | `bookinfo/fortio` | `http://ratings.bookinfo:9080/ratings/0` |
//! | [`path`] | `bench/client` | `server.bench` and `neighbour.bench` on 8080, 9000 and 9001 |

use ambit_words::labels::{AMBIENT, DATAPLANE_MODE, USE_WAYPOINT, WAYPOINT_FOR};
use ambit_words::names::{DEFAULT_MESH_NAMESPACE, DEFAULT_TRUST_DOMAIN};
use ambit_words::ports;
use serde_json::{Value, json};

const TIER: &str = include_str!("manifests/tier.yaml");
const CLIENT: &str = include_str!("manifests/client.yaml");
const LOAD_GENERATOR_RESOURCES: &str = include_str!("manifests/load-generator-resources.yaml");
const BOOKINFO_SERVICE: &str = include_str!("manifests/bookinfo-service.yaml");
const BOOKINFO_DEPLOYMENT: &str = include_str!("manifests/bookinfo-deployment.yaml");
const AWAY_FROM_CLIENT: &str = include_str!("manifests/away-from-client.yaml");
const PATH: &str = include_str!("manifests/path.yaml");
const SERVER: &str = include_str!("manifests/server.yaml");
const POLICY: &str = include_str!("manifests/policy.yaml");
const WAYPOINT_AND_POLICY: &str = include_str!("manifests/waypoint.yaml");
/// The waypoint of every namespace that has one, and its Deployment.
pub(super) const WAYPOINT: &str = "waypoint";

/// Which release of bookinfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bookinfo {
    /// As Istio 1.22 brings it.
    Old,
    /// As Istio 1.23 brings it.
    New,
}

impl Bookinfo {
    /// The tag of its images.
    fn tag(self) -> &'static str {
        match self {
            Self::Old => "1.19.1",
            Self::New => "1.20.1",
        }
    }
}

/// One of the four services of the tiered application.
struct Tier {
    app: &'static str,
    deployment: &'static str,
    /// With the client on the first node, every call goes to the other node.
    node: &'static str,
    /// The services that it calls.
    upstreams: &'static [&'static str],
    /// The services that call it; none means the load generator.
    callers: &'static [&'static str],
}

const TIERS: [Tier; 4] = [
    Tier {
        app: "tier-1-app-a",
        deployment: "tier-1-app-a",
        node: "node-2",
        upstreams: &["tier-2-app-a", "tier-2-app-b"],
        callers: &[],
    },
    Tier {
        app: "tier-2-app-a",
        deployment: "tier-2-app-a-v1",
        node: "node-1",
        upstreams: &["tier-3-app-a"],
        callers: &["tier-1-app-a"],
    },
    Tier {
        app: "tier-2-app-b",
        deployment: "tier-2-app-b-v1",
        node: "node-1",
        upstreams: &["tier-3-app-a"],
        callers: &["tier-1-app-a"],
    },
    Tier {
        app: "tier-3-app-a",
        deployment: "tier-3-app-a-v1",
        node: "node-2",
        upstreams: &[],
        callers: &["tier-2-app-a", "tier-2-app-b"],
    },
];

/// The tiered application in `ns-1` to `ns-N`, with a load generator in each.
pub fn tiered(namespaces: u32, mesh: bool) -> String {
    let mut text = namespace(DEFAULT_MESH_NAMESPACE, false);
    for number in 1..=namespaces {
        let name = format!("ns-{number}");
        text += &namespace(&name, mesh);
        for tier in &TIERS {
            let uris = tier.upstreams.iter().map(|app| format!("http://{app}.{name}:8080"));
            let values = [
                ("namespace", &*name),
                ("app", tier.app),
                ("deployment", tier.deployment),
                ("node", tier.node),
                ("upstreams", &uris.collect::<Vec<_>>().join(",")),
            ];
            text += &render(TIER, &values);
        }
        let image = "peterevans/vegeta:6.9.1";
        text += &client(&name, "vegeta", image, LOAD_GENERATOR_RESOURCES);
    }
    text
}

/// One policy for each tier, in the root namespace: the tier above may call it, in any of the
/// namespaces; the first tier may be called by the load generators, and by `client/sleep` as
/// published. A load generator's call to any other tier is refused.
pub fn tiered_policies(namespaces: u32) -> String {
    let mut text = String::new();
    for tier in &TIERS {
        let mut principals = Vec::new();
        if tier.callers.is_empty() {
            principals.push(principal("client", "sleep"));
        }
        for number in 1..=namespaces {
            let namespace = format!("ns-{number}");
            let callers = if tier.callers.is_empty() { &["vegeta"] } else { tier.callers };
            principals.extend(callers.iter().map(|caller| principal(&namespace, caller)));
        }
        text += &policy(DEFAULT_MESH_NAMESPACE, "app", tier.app, &principals);
    }
    text
}

/// The details service of bookinfo alone, never on the client's node.
pub fn details(release: Bookinfo, mesh: bool) -> String {
    let mut text = bookinfo_client(mesh) + &bookinfo_stranger();
    text += &bookinfo_service("details");
    text += &bookinfo_deployment("details", "v1", release, 2, AWAY_FROM_CLIENT);
    text
}

/// [`details`] may be called by its client, not by `stranger`.
pub fn details_policies() -> String {
    bookinfo_policy("details", "fortio")
}

/// All of bookinfo: two pods of each Deployment, spread over the nodes; productpage and details are
/// never on the client's node.
pub fn bookinfo(release: Bookinfo, mesh: bool) -> String {
    let mut text = bookinfo_client(mesh);
    for (app, versions, affinity) in [
        ("productpage", &["v1"][..], AWAY_FROM_CLIENT),
        ("details", &["v1"], AWAY_FROM_CLIENT),
        ("reviews", &["v1", "v2", "v3"], ""),
        ("ratings", &["v1"], ""),
    ] {
        text += &bookinfo_service(app);
        for version in versions {
            text += &bookinfo_deployment(app, version, release, 2, affinity);
        }
    }
    text
}

/// Each service of [`bookinfo`] may be called by the one before it. The client's call to any but
/// productpage is refused.
pub fn bookinfo_policies() -> String {
    let callers = [
        ("productpage", "fortio"),
        ("details", "bookinfo-productpage"),
        ("reviews", "bookinfo-productpage"),
        ("ratings", "bookinfo-reviews"),
    ];
    callers.into_iter().map(|(app, caller)| bookinfo_policy(app, caller)).collect()
}

/// The ratings service of bookinfo alone, not on the client's node.
pub fn ratings(mesh: bool) -> String {
    let mut text = bookinfo_client(mesh) + &bookinfo_stranger();
    text += &bookinfo_service("ratings");
    text += &bookinfo_deployment("ratings", "v1", Bookinfo::New, 1, AWAY_FROM_CLIENT);
    text
}

/// [`ratings`] may be called by its client, not by `stranger`.
pub fn ratings_policies() -> String {
    bookinfo_policy("ratings", "fortio")
}

/// One client and two servers: `server` on the other node, `neighbour` on the client's. Both have
/// an HTTP echo on 8080, a TCP sink on 9000, a TCP echo on 9001. `stranger` is a client that no
/// policy names.
pub fn path(mesh: bool) -> String {
    let mut text = namespace("bench", mesh);
    text += PATH;
    for (name, node) in [("server", "node-2"), ("neighbour", "node-1")] {
        text += &render(SERVER, &[("name", name), ("node", node)]);
    }
    text
}

/// The servers of [`path`] may be called by `bench/client` alone.
pub fn path_policies() -> String {
    policy("bench", "role", "server", &[principal("bench", "client")])
}

/// A waypoint for the services of a namespace, which lets in what comes from the same namespace
/// and only looks (GET), as published.
pub fn waypoint(namespace: &str) -> String {
    render(WAYPOINT_AND_POLICY, &[("namespace", namespace)])
}

/// The same without the policy, and the namespace that goes through it.
pub(super) fn waypoint_objects(namespace: &str) -> [Value; 2] {
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {
            "name": WAYPOINT,
            "namespace": namespace,
            "labels": { WAYPOINT_FOR: "service" },
        },
        "spec": {
            "gatewayClassName": "istio-waypoint",
            "listeners": [{ "name": "mesh", "port": ports::HBONE, "protocol": "HBONE" }],
        },
    });
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": namespace,
            "labels": { DATAPLANE_MODE: AMBIENT, USE_WAYPOINT: WAYPOINT },
        },
    });
    [gateway, namespace]
}

/// What is in the mesh goes through the waypoint of its namespace.
pub fn behind_waypoints(manifests: &str) -> String {
    let label = format!("    {DATAPLANE_MODE}: {AMBIENT}\n");
    manifests.replace(&label, &format!("{label}    {USE_WAYPOINT}: {WAYPOINT}\n"))
}

fn namespace(name: &str, mesh: bool) -> String {
    let labels = match mesh {
        true => format!("  labels:\n    {DATAPLANE_MODE}: {AMBIENT}\n"),
        false => String::new(),
    };
    format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n{labels}---\n")
}

fn client(namespace: &str, name: &str, image: &str, resources: &str) -> String {
    let values =
        [("namespace", namespace), ("name", name), ("image", image), ("resources", resources)];
    render(CLIENT, &values)
}

fn bookinfo_client(mesh: bool) -> String {
    namespace("bookinfo", mesh) + &client("bookinfo", "fortio", "fortio/fortio:1.66.5", "")
}

/// A client that no policy names.
fn bookinfo_stranger() -> String {
    client("bookinfo", "stranger", "fortio/fortio:1.66.5", "")
}

fn bookinfo_service(app: &str) -> String {
    render(BOOKINFO_SERVICE, &[("app", app)])
}

fn bookinfo_deployment(
    app: &str,
    version: &str,
    release: Bookinfo,
    replicas: u32,
    affinity: &str,
) -> String {
    let values = [
        ("app", app),
        ("version", version),
        ("tag", release.tag()),
        ("replicas", &replicas.to_string()),
        ("affinity", affinity),
    ];
    render(BOOKINFO_DEPLOYMENT, &values)
}

fn bookinfo_policy(app: &str, caller: &str) -> String {
    policy("bookinfo", "app", app, &[principal("bookinfo", caller)])
}

fn principal(namespace: &str, account: &str) -> String {
    format!("{DEFAULT_TRUST_DOMAIN}/ns/{namespace}/sa/{account}")
}

/// Pods with this label may be called by these principals, and by nobody else.
fn policy(namespace: &str, label: &str, value: &str, principals: &[String]) -> String {
    let list: String = principals.iter().map(|name| format!("        - {name}\n")).collect();
    let values =
        [("namespace", namespace), ("label", label), ("app", value), ("principals", &*list)];
    render(POLICY, &values)
}

/// Puts values in the places that a template marks as `@name@`.
fn render(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts documents of each kind.
    fn check(text: &str, expected: &[(&str, usize)]) {
        assert!(!text.contains('@'), "a place is not filled in: {text}");
        for (kind, count) in expected {
            let line = format!("kind: {kind}\n");
            let found = text.matches(&format!("\n{line}")).count();
            assert_eq!(found, *count, "{kind}");
        }
        let documents = text.split("---\n").filter(|document| document.contains("kind: ")).count();
        let counted: usize = expected.iter().map(|(_, count)| count).sum();
        assert_eq!(documents, counted, "kinds that are not expected");
    }

    #[test]
    fn every_experiment_has_its_objects() {
        for namespaces in [1, 50] {
            let n = namespaces as usize;
            let kinds = [
                ("Namespace", n + 1),
                ("ServiceAccount", 5 * n),
                ("Service", 4 * n),
                ("Deployment", 4 * n),
                ("Pod", n),
            ];
            check(&tiered(namespaces, true), &kinds);
            let policies = tiered_policies(namespaces);
            check(&policies, &[("AuthorizationPolicy", 4)]);
            assert_eq!(policies.matches("- cluster.local/").count(), 1 + 5 * n);
        }
        let some = |app, clients| {
            [
                ("Namespace", 1),
                ("ServiceAccount", app + clients),
                ("Service", app),
                ("Deployment", app),
                ("Pod", clients),
            ]
        };
        check(&details(Bookinfo::Old, false), &some(1, 2));
        check(&ratings(true), &some(1, 2));
        let mut all = some(4, 1);
        all[3].1 = 6;
        check(&bookinfo(Bookinfo::New, true), &all);
        check(&bookinfo_policies(), &[("AuthorizationPolicy", 4)]);
        check(&details_policies(), &[("AuthorizationPolicy", 1)]);
        check(&ratings_policies(), &[("AuthorizationPolicy", 1)]);
        let path_kinds = [("Namespace", 1), ("ServiceAccount", 3), ("Service", 2), ("Pod", 4)];
        check(&path(true), &path_kinds);
        check(&path_policies(), &[("AuthorizationPolicy", 1)]);
    }

    #[test]
    fn a_mesh_is_a_label_and_nothing_else() {
        let label = "  labels:\n    istio.io/dataplane-mode: ambient\n";
        for (on, off, namespaces) in [
            (tiered(3, true), tiered(3, false), 3),
            (details(Bookinfo::New, true), details(Bookinfo::New, false), 1),
            (bookinfo(Bookinfo::Old, true), bookinfo(Bookinfo::Old, false), 1),
            (ratings(true), ratings(false), 1),
            (path(true), path(false), 1),
        ] {
            assert_eq!(on.matches(label).count(), namespaces);
            assert_eq!(on.replace(label, ""), off);
        }
    }

    #[test]
    fn a_waypoint_is_one_more_label_and_its_own_objects() {
        let behind = behind_waypoints(&tiered(3, true));
        let label = "    istio.io/use-waypoint: waypoint\n";
        assert_eq!(behind.matches(label).count(), 3);
        assert_eq!(behind.replace(label, ""), tiered(3, true));
        assert_eq!(behind_waypoints(&tiered(3, false)), tiered(3, false));
        check(&waypoint("bench"), &[("Gateway", 1), ("AuthorizationPolicy", 1)]);
        let [gateway, _namespace] = waypoint_objects("bench");
        let text = waypoint("bench");
        for (pointer, line) in
            [("/metadata/name", "  name: "), ("/spec/gatewayClassName", "  gatewayClassName: ")]
        {
            let value = gateway.pointer(pointer).and_then(Value::as_str).unwrap();
            assert!(text.contains(&format!("{line}{value}\n")), "{pointer}");
        }
    }

    #[test]
    fn the_example_is_the_experiment() {
        let check = |example: &str, rendered: &str| {
            let manifests = example.find("apiVersion").map(|start| &example[start..]);
            assert_eq!(manifests, Some(rendered.trim_end_matches("---\n")));
        };
        macro_rules! example {
            ($file:literal) => {
                include_str!(concat!("../../../examples/", $file))
            };
        }
        check(example!("bookinfo/app.yaml"), &bookinfo(Bookinfo::New, false));
        check(example!("bookinfo-steps/mesh-on.yaml"), &namespace("bookinfo", true));
        check(example!("bookinfo-steps/policies.yaml"), &bookinfo_policies());
        let old = ["productpage", "details"]
            .map(|app| bookinfo_deployment(app, "v1", Bookinfo::Old, 2, AWAY_FROM_CLIENT));
        check(example!("bookinfo-steps/old.yaml"), &old.concat());
    }

    #[test]
    fn releases_differ_in_the_tags_of_their_images() {
        let old = bookinfo(Bookinfo::Old, true);
        assert_eq!(old.replace(":1.19.1\n", ":1.20.1\n"), bookinfo(Bookinfo::New, true));
    }
}
