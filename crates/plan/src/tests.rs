//! Plans with figures calculated by hand, and properties of every plan.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::*;

fn inputs(pods: Vec<PodGroup>) -> Inputs {
    Inputs {
        application: Application { pods, ..Application::default() },
        node_type: NodeType::named(DEFAULT_NODE_TYPE).unwrap(),
        reservations: Reservations::default(),
        surroundings: Surroundings::default(),
    }
}

fn pods(count: u32, cpu: &str, memory: &str) -> PodGroup {
    let requests = Resources::new(parse_cpu(cpu).unwrap(), parse_memory(memory).unwrap());
    PodGroup::plain("shop", "web", count, requests)
}

fn spec(name: &str, count: u32, cpu: &str, more: Value) -> PodGroup {
    let requests = json!({"cpu": cpu, "memory": "1Mi"});
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": requests}}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec: PodSpec = serde_json::from_value(spec).unwrap();
    let labels = BTreeMap::from([("app".to_owned(), name.to_owned())]);
    PodGroup::read("shop", name, count, &labels, &spec).unwrap().group
}

fn measured(cpu_per_request_us: u32, requests_per_second: u32) -> Measured {
    Measured {
        run: "bench/runs/one".to_owned(),
        case: "1000 rps".to_owned(),
        mode: "ambient".to_owned(),
        repetitions: 3,
        cpu_per_request_ns: cpu_per_request_us * 1000,
        requests_per_second,
    }
}

/// An error with its cause, as the command prints it.
fn wrong(error: &PlanError) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or(error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Nodes of each estimate, mode by mode.
fn nodes(plan: &Plan) -> Vec<(u32, u32, u32)> {
    let nodes = |it: &ModePlan| (it.ideal.nodes, it.allocatable.nodes, it.placed.nodes);
    plan.modes.iter().map(nodes).collect()
}

#[test]
fn the_published_tables_come_out_of_their_inputs() {
    let inputs = published_inputs().unwrap();
    let planned = plan(&inputs).unwrap();
    assert_eq!(nodes(&planned), [(18, 19, 20), (24, 26, 29), (18, 20, 20), (19, 20, 20)]);
    let prices = |it: &ModePlan| {
        let shown = |it: Estimate| it.monthly.unwrap().to_string();
        (shown(it.ideal), shown(it.allocatable))
    };
    let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        planned.modes.iter().map(prices).collect::<Vec<_>>(),
        [
            text("5190.72", "5475.11"),
            text("6897.03", "7465.80"),
            text("5190.72", "5759.49"),
            text("5475.11", "5759.49"),
        ]
    );
    let comparison = compare(&inputs, &planned).unwrap();
    let differing: Vec<&String> =
        comparison.rows.iter().flatten().filter(|cell| cell.contains('#')).collect();
    assert_eq!(differing, ["6328.26 # 5759.49"]);
    let expected = "ambient + waypoints: the published 6328.26 is the price of 22 nodes; the 20 \
                    nodes beside it cost 5759.49, and 20 nodes come out of its inputs.";
    assert!(comparison.remarks.iter().any(|it| it == expected), "{:?}", comparison.remarks);
}

#[test]
fn whole_pods_need_the_nodes_that_a_hand_counts() {
    let check = |pods: Vec<PodGroup>, expected: [(u32, u32, u32); 4]| {
        assert_eq!(nodes(&plan(&inputs(pods)).unwrap()), expected);
    };
    // Ten of 700m fill 7.0 of 7.5; seven of 950m 6.65, and istiod fits beside them. On a node with
    // ztunnel and the agent 7.2 are left: ten pods, and istiod needs a node of its own.
    check(
        vec![pods(200, "700m", "500Mi")],
        [(18, 19, 20), (24, 26, 29), (19, 20, 21), (19, 20, 21)],
    );
    // 300 of 1500m and 2Gi: five on a node of 7.5. With a sidecar (1750m) four, and istiod beside
    // them. With 7.2 left four too (6.0), and istiod beside them.
    check(
        vec![pods(300, "1500m", "2Gi")],
        [(57, 60, 60), (66, 71, 75), (59, 63, 75), (59, 63, 75)],
    );
    // Memory decides: 28.34 GiB hold two of 12Gi; 32 GiB as a liquid 2.67.
    check(vec![pods(10, "100m", "12Gi")], [(4, 5, 5), (4, 5, 5), (4, 5, 5), (4, 5, 5)]);
}

#[test]
fn a_price_of_ones_own() {
    let mut inputs = inputs(vec![pods(120, "1", "1Gi")]);
    inputs.node_type = NodeType {
        allocatable: Resources::of_mebibytes(3900, 14 << 10),
        price: Some(Price::parse("100.5").unwrap()),
        fixed_fee: Price::parse("10").unwrap(),
        ..NodeType::custom(Resources::of_mebibytes(4000, 16 << 10))
    };
    let planned = plan(&inputs).unwrap();
    // 120 / 4 = 30, 120 / 3.9 = 30.8, three pods of one core on each node: 40.
    assert_eq!(nodes(&planned)[0], (30, 31, 40));
    assert_eq!(planned.modes[0].placed.monthly.unwrap().to_string(), "4030.00");
}

#[test]
fn the_limit_of_pods_holds_where_requests_do_not() {
    let planned = plan(&inputs(vec![pods(220, "10m", "1Mi")])).unwrap();
    assert_eq!(nodes(&planned)[0], (1, 1, 2));
    // With a sidecar 260m, 28 on a node. istiod is one pod more; ztunnel and the agent take two
    // places of each node.
    assert_eq!((planned.modes[1].placed.nodes, planned.modes[2].placed.nodes), (8, 3));
}

#[test]
fn daemon_sets_come_first_and_are_on_every_node() {
    let mut inputs = inputs(vec![pods(20, "1", "1Mi")]);
    inputs.application.daemons = vec![
        spec("agent", 1, "1", json!({"nodeSelector": {"beta.kubernetes.io/os": "linux"}})),
        spec("elsewhere", 1, "7", json!({"nodeSelector": {"kubernetes.io/os": "windows"}})),
    ];
    let planned = plan(&inputs).unwrap();
    // 20 / (8 - 1) = 2.9, 20 / (7.5 - 1) = 3.1; six whole pods beside the agent: 4.
    assert_eq!(nodes(&planned)[0], (3, 4, 4));
    let pods: Vec<u32> = planned.modes[0].nodes.iter().map(|node| node.pods).collect();
    assert_eq!(pods, [7, 7, 7, 3]);
}

#[test]
fn rules_decide_where_pods_go() {
    let check = |groups: Vec<PodGroup>, expected: &[(&str, u32)]| {
        let planned = plan(&inputs(groups)).unwrap();
        let found: Vec<(&str, u32)> =
            planned.modes[0].nodes.iter().map(|it| (it.name.as_str(), it.pods)).collect();
        assert_eq!(found, expected);
    };
    let near = |name: &str, key: &str| {
        let selector = json!({"matchLabels": {"app": name}});
        json!({"topologyKey": key, "labelSelector": selector})
    };
    let required = |kind: &str, term: Value| {
        let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        json!({"affinity": {kind: terms}})
    };
    let apart = required("podAntiAffinity", near("a", "kubernetes.io/hostname"));
    check(vec![spec("a", 3, "100m", apart)], &[("node-1", 1), ("node-2", 1), ("node-3", 1)]);
    // Pods that are there already may not be joined either, whichever side says so.
    let alone = required("podAntiAffinity", near("b", "kubernetes.io/hostname"));
    check(
        vec![spec("a", 1, "100m", alone), spec("b", 1, "100m", json!({}))],
        &[("node-1", 1), ("node-2", 1)],
    );
    let zones = required("podAntiAffinity", near("a", "topology.kubernetes.io/zone"));
    check(vec![spec("a", 3, "100m", zones)], &[("node-1", 1), ("node-2", 1), ("node-3", 1)]);
    let together = required("podAffinity", near("a", "kubernetes.io/hostname"));
    check(
        vec![pods(1, "7", "1Mi"), spec("a", 2, "600m", together)],
        &[("node-1", 1), ("node-2", 2)],
    );
    let named = json!({"nodeSelector": {"kubernetes.io/hostname": "node-1"}});
    check(
        vec![pods(5, "1500m", "1Mi"), spec("a", 1, "100m", named)],
        &[("node-1", 5), ("node-2", 1)],
    );
}

#[test]
fn scores_choose_the_emptier_node_and_heed_wishes() {
    // 5.0 and 4.0 on nodes of their own; a pod of 2.0 goes where less is allocated.
    let groups = vec![pods(1, "5", "1Mi"), pods(1, "4", "1Mi"), pods(1, "2", "1Mi")];
    let planned = plan(&inputs(groups)).unwrap();
    let cores: Vec<String> = planned.modes[0].nodes.iter().map(|it| it.requested.cores()).collect();
    assert_eq!(cores, ["5", "6"]);
    let term = json!({"topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    let wish = json!({"weight": 100, "podAffinityTerm": term});
    let wish = json!({"affinity": {"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [wish]}}});
    let other = PodGroup::plain("shop", "other", 1, Resources::of_mebibytes(4000, 1));
    let groups = vec![pods(1, "5", "1Mi"), other, spec("a", 1, "2", wish)];
    let planned = plan(&inputs(groups)).unwrap();
    let cores: Vec<String> = planned.modes[0].nodes.iter().map(|it| it.requested.cores()).collect();
    assert_eq!(cores, ["7", "4"], "beside web, though the other node is emptier");
}

#[test]
fn what_fits_no_node_says_why_and_what_to_do() {
    let check = |groups: Vec<PodGroup>, expected: &str| {
        assert_eq!(wrong(&plan(&inputs(groups)).unwrap_err()), expected);
    };
    check(
        vec![pods(1, "9", "1Gi")],
        "plan mode baseline: shop/web fits no node: it requests 9 vCPU and 1 GiB and an empty \
         n2-standard-8 has 7.5 vCPU and 28.34 GiB for it; take a larger --node-type, or make \
         the pod request less",
    );
    check(
        vec![spec("a", 1, "1", json!({"nodeSelector": {"disk": "ssd"}}))],
        "plan mode baseline: shop/a fits no node: planned nodes lack the label disk=ssd; give \
         --node-label KEY=VALUE",
    );
    check(
        vec![spec("a", 9, "1", json!({"nodeName": "node-7"}))],
        "plan mode baseline: shop/a fits no node: it requests 1 vCPU and 1 MiB and the node \
         node-7 that it names has no more for it; leave the node's name away, or plan with \
         --ignore-hostnames",
    );
    check(
        vec![],
        "the input has no pods; name manifests with some, or give --pods, --cpu and \
                   --memory",
    );
    let mut inputs = inputs(vec![pods(1, "1", "1Mi")]);
    inputs.reservations.set(Component::Ztunnel, Resources::of_mebibytes(8000, 1));
    let error = wrong(&plan(&inputs).unwrap_err());
    assert!(error.starts_with("plan mode ambient L4: the pods of every node (ztunnel, cni) need"));
}

#[test]
fn measured_cpu_is_shared_by_the_nodes_there_are() {
    let mut inputs = inputs(vec![pods(200, "700m", "500Mi")]);
    inputs.reservations.measured = Some(measured(100, 112_500));
    let planned = plan(&inputs).unwrap();
    // 100 µs x 112,500/s are 11.25 vCPU. As a liquid 140.5 + 11.25 over 7.9 and 7.4: 20 and 21. On
    // 22 nodes each gives 512m and 100m to the mesh and has 6.888 left: nine pods, 198 in all; on
    // 23 nodes nine pods too, 207.
    assert_eq!(nodes(&planned)[2], (20, 21, 23));
    let least = planned.modes[2].nodes.iter().map(|it| it.mesh.cpu_millicores).min();
    assert_eq!(least, Some(11_250_u64.div_ceil(23) + 100));
    assert_eq!(nodes(&planned)[0], (18, 19, 20), "no mesh, no proxies");
}

#[test]
fn words_and_pictures_are_of_the_plan() {
    let planned = plan(&inputs(vec![pods(200, "700m", "500Mi")])).unwrap();
    let words = explain(&planned);
    assert_eq!(
        words[0],
        "baseline: 140 vCPU of pods over nodes of 8 is 18 nodes, over the 7.5 that pods may \
         request 19; whole pods need 20, 1 more than if a pod could be split. 20 nodes hold 10 \
         pods of 700m/500Mi and 0.5 vCPU are left, less than one more needs. On all 20 together 10 \
         vCPU and 469.19 GiB are paid for and stay free."
    );
    let bars = chart(&planned);
    let full = "  20 nodes |#####################################...| 7 vCPU (93 %), 4.88 GiB, \
                10 pods";
    assert!(bars.contains(full), "{bars}");
    let picture = svg(&planned);
    let columns = picture.matches("class=\"application\"").count();
    assert_eq!(columns, 20 + 29 + 21 + 21 + 1, "a column for each node, and the legend");
    let value = json(&inputs(vec![]), &planned);
    assert_eq!(value["modes"][1]["placed"]["monthly"], "8318.96");
    assert_eq!(value["modes"][0]["nodes"].as_array().map(Vec::len), Some(20));
}

mod properties {
    use proptest::prelude::*;
    use proptest::test_runner::TestCaseResult;

    use super::*;

    fn group() -> impl Strategy<Value = Group> {
        (0_u32..30, 0_u64..3000, 0_u64..6000, any::<bool>())
    }

    type Group = (u32, u64, u64, bool);

    fn check(
        groups: &[Group],
        daemon: (u64, u64),
        limit: u32,
        rate: Option<u32>,
    ) -> TestCaseResult {
        let apart = json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"app": "apart"}}}]}}});
        let pods = groups.iter().enumerate().map(|(index, (count, cpu, mebibytes, is_apart))| {
            let requests = Resources::of_mebibytes(*cpu, *mebibytes);
            let plain = PodGroup::plain("shop", &format!("web-{index}"), *count, requests);
            match is_apart {
                true => PodGroup {
                    rules: spec("apart", 1, "1", apart.clone()).rules,
                    labels: BTreeMap::from([("app".into(), "apart".into())]),
                    ..plain
                },
                false => plain,
            }
        });
        let mut inputs = inputs(pods.collect());
        inputs.node_type.pods = limit;
        inputs.application.service_namespaces = BTreeSet::from(["shop".to_owned()]);
        let daemon = Resources::of_mebibytes(daemon.0, daemon.1);
        inputs.application.daemons = vec![PodGroup::plain("kube-system", "d", 1, daemon)];
        inputs.reservations.measured = rate.map(|rate| measured(90, rate));
        let total: u32 = groups.iter().map(|it| it.0).sum();
        let planned = match plan(&inputs) {
            Err(PlanError::NoPods) if total == 0 => return Ok(()),
            planned => planned.unwrap(),
        };
        for mode in &planned.modes {
            prop_assert!(mode.placed.nodes >= mode.allocatable.nodes);
            prop_assert!(mode.allocatable.nodes >= mode.ideal.nodes);
            for node in &mode.nodes {
                prop_assert!(node.requested.fits_in(inputs.node_type.allocatable));
                prop_assert!(node.pods <= limit);
            }
            for (index, group) in mode.demand.pods.iter().enumerate() {
                let placed = mode.nodes.iter().filter_map(|it| it.groups.get(&index));
                prop_assert_eq!(placed.sum::<u32>(), group.count);
            }
            let first = mode.demand.pods.len();
            let daemons = first..first + mode.demand.daemons.len();
            for node in &mode.nodes {
                prop_assert!(daemons.clone().all(|it| node.groups.get(&it) == Some(&1)));
            }
        }
        Ok(())
    }

    #[test]
    fn what_all_proxies_need_may_be_less_than_a_millicore_each() {
        let groups = [(22, 2807, 0, true), (20, 1642, 0, true), (23, 923, 0, false)];
        check(&groups, (122, 0), 8, Some(1)).expect("placed");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_pod_is_placed_once_and_no_node_is_over_full(
            groups in proptest::collection::vec(group(), 1..8),
            daemon in (0_u64..500, 0_u64..500),
            limit in 8_u32..40,
            rate in prop::option::of(1_u32..100_000),
        ) {
            check(&groups, daemon, limit, rate)?;
        }
    }
}
