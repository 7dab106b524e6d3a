//! Services without a selector: which endpoints they have, in whatever order objects arrive.

use std::net::IpAddr;

use super::*;

const DB: &str = "shop/db.shop.svc.cluster.local";

fn db(spec: &Value) -> Event {
    service("shop", "db", spec)
}

/// The Service `db` with two ports; one has its own name as its target.
fn two_ports() -> Value {
    json!({"clusterIP": "10.96.0.9", "ports": [
        {"name": "sql", "port": 5432, "targetPort": "postgres"}, {"name": "web", "port": 80},
    ]})
}

/// A slice of `db` in a namespace, with port `sql` at 6432.
fn slice_in(namespace: &str, name: &str, endpoints: &Value) -> Event {
    let labels = json!({"kubernetes.io/service-name": "db"});
    put(
        Kind::EndpointSlice,
        &json!({
            "metadata": meta(namespace, name, &labels), "addressType": "IPv4",
            "endpoints": endpoints, "ports": [{"name": "sql", "port": 6432}],
        }),
    )
}

fn slice(name: &str, endpoints: &Value) -> Event {
    slice_in("shop", name, endpoints)
}

fn at(ip: &str) -> Value {
    json!({"addresses": [ip]})
}

/// An endpoint that says which pod it is, and where that once was.
fn is_pod(name: &str) -> Value {
    json!({"addresses": ["10.9.9.9"], "targetRef": {"kind": "Pod", "name": name}})
}

/// The endpoints of `db`: the end of the uid, then ports, and what is not as usual.
fn endpoints(builder: &Builder) -> Vec<String> {
    let key: ServiceName = DB.parse().unwrap();
    let of_one = |workload: &Arc<Workload>| {
        let uid = workload.uid.strip_prefix("Kubernetes/").unwrap();
        let uid = uid.strip_prefix("discovery.k8s.io/EndpointSlice/shop/").unwrap_or(uid);
        let ports = workload.services[&key].iter();
        let ports: String =
            ports.map(|port| format!(" {}:{}", port.service_port, port.target_port)).collect();
        let unready = if workload.healthy { "" } else { " unready" };
        let tunnel = if workload.tunnel == Tunnel::Hbone { " hbone" } else { "" };
        format!("{uid}{ports}{unready}{tunnel}")
    };
    builder.view().endpoints(&key).into_iter().flat_map(|all| all.iter()).map(of_one).collect()
}

#[test]
fn slices_list_the_endpoints() {
    let mut builder = builder();
    let changes = builder.apply([db(&two_ports())]);
    assert_eq!(names(&changes), [format!("+{DB}")]);
    assert_eq!(endpoints(&builder), [""; 0], "without a slice there is no endpoint");
    let object = json!({
        "metadata": meta("shop", "a", &json!({"kubernetes.io/service-name": "db"})),
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["192.0.2.1", "192.0.2.9"]},
            {"addresses": ["192.0.2.2"], "conditions": {"ready": false, "serving": true}},
            {"addresses": ["nowhere"]}, {"addresses": []},
        ],
        "ports": [{"name": "sql", "port": 6432, "protocol": "TCP"}, {"name": "web"},
            {"name": "other", "port": 1}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    });
    let changes = builder.apply([put(Kind::EndpointSlice, &object)]);
    assert_eq!(names(&changes), ["+a", "+a"]);
    assert_eq!(endpoints(&builder), ["a/192.0.2.1 5432:6432", "a/192.0.2.2 5432:6432 unready"]);
    assert_eq!(names(&builder.apply([put(Kind::EndpointSlice, &object)])), [""; 0]);

    let uid = "Kubernetes/discovery.k8s.io/EndpointSlice/shop/a/192.0.2.1";
    let got = builder.view().workload(uid).unwrap().clone();
    let ip: IpAddr = "192.0.2.1".parse().unwrap();
    assert_eq!((&*got.name, &*got.addresses, got.tunnel), ("a", &[ip][..], Tunnel::None));
    assert_eq!(builder.view().workload_at(&"".into(), ip), None, "the address is not its own");

    let mut names_only = object.clone();
    names_only["addressType"] = "FQDN".into();
    let changes = builder.apply([put(Kind::EndpointSlice, &names_only)]);
    assert_eq!(names(&changes), [format!("-{uid}"), format!("-{}", uid.replace("2.1", "2.2"))]);
}

#[test]
fn a_port_without_a_name_is_found_too() {
    let mut builder = builder();
    let mut object = json!({
        "metadata": meta("shop", "a", &json!({"kubernetes.io/service-name": "db"})),
        "addressType": "IPv6", "endpoints": [{"addresses": ["2001:db8::1"]}],
        "ports": [{"port": 6443}],
    });
    builder.apply([db(&json!({"ports": [{"port": 443}]})), put(Kind::EndpointSlice, &object)]);
    assert_eq!(endpoints(&builder), ["a/2001:db8::1 443:6443"]);
    object["ports"] = json!([]);
    builder.apply([put(Kind::EndpointSlice, &object)]);
    assert_eq!(endpoints(&builder), ["a/2001:db8::1"], "it serves nothing");
}

#[test]
fn a_pod_that_is_listed_is_a_member_itself() {
    let check = |endpoint: Value| {
        let mut builder = builder();
        builder.apply([db(&two_ports()), slice("a", &json!([endpoint]))]);
        assert_eq!(endpoints(&builder).len(), 1, "not known as a pod yet");
        builder.apply(pod("shop", "web", &json!({}), "10.0.0.2"));
        assert_eq!(endpoints(&builder), ["/Pod/shop/web 5432:6432 hbone"], "{endpoint}");
        builder.apply([slice("a", &json!([at("192.0.2.1")]))]);
        assert_eq!(endpoints(&builder), ["a/192.0.2.1 5432:6432"]);
        builder.apply([slice("a", &json!([endpoint]))]);
        builder.apply([status("shop", "web", "10.0.0.2", false)]);
        assert_eq!(endpoints(&builder), ["/Pod/shop/web 5432:6432 unready hbone"]);
        builder.apply([delete(Kind::Pod, "shop", "web")]);
        assert_eq!(endpoints(&builder).len(), 1, "whatever is there is no pod of ours");
        builder.apply([delete(Kind::EndpointSlice, "shop", "a")]);
        assert_eq!(endpoints(&builder), [""; 0]);
    };
    check(at("10.0.0.2"));
    check(is_pod("web"));
}

#[test]
fn a_slice_can_leave_a_ready_pod_out() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({}), "10.0.0.2"));
    let mut unready = is_pod("web");
    unready["conditions"] = json!({"ready": false});
    let deny = json!({"action": "DENY", "targetRefs": [{"kind": "Service", "name": "db"}]});
    builder.apply([db(&two_ports()), policy("shop", "p", &deny)]);
    builder.apply([slice("a", &json!([unready]))]);
    assert_eq!(endpoints(&builder), ["/Pod/shop/web hbone"], "it serves no port");
    assert_eq!(workload(&builder, "web").policies.len(), 1, "whom it refuses stays out");
    let mut any = two_ports();
    any["publishNotReadyAddresses"] = true.into();
    builder.apply([db(&any)]);
    assert_eq!(endpoints(&builder), ["/Pod/shop/web 5432:6432 hbone"]);
}

#[test]
fn a_service_has_so_many_endpoints_outside_and_those_that_are_ready_first() {
    let mut builder = builder();
    let listed = |at: u32| {
        let ip = std::net::Ipv4Addr::from_bits(0xc633_6400 + at);
        json!({"addresses": [ip.to_string()], "conditions": {"ready": at >= 200}})
    };
    let all: Vec<Value> = (0..1100).map(listed).collect();
    builder.apply([db(&two_ports()), slice("a", &json!(all))]);
    let endpoints = endpoints(&builder);
    let unready = endpoints.iter().filter(|it| it.contains("unready")).count();
    assert_eq!((endpoints.len(), unready), (1000, 100));
}

#[test]
fn only_pods_of_the_own_namespace_and_address_are_members() {
    let mut builder = builder();
    builder.apply(pod("bank", "till", &json!({}), "10.0.0.3"));
    let mut on_node = json!({
        "metadata": meta("shop", "agent", &json!({})),
        "spec": {"nodeName": "node-1", "hostNetwork": true, "containers": []},
    });
    builder.apply([put(Kind::Pod, &on_node), status("shop", "agent", "10.66.0.1", true)]);
    let mut till = is_pod("till");
    till["targetRef"]["namespace"] = "bank".into();
    let all = json!([at("10.0.0.3"), at("10.66.0.1"), till]);
    builder.apply([db(&two_ports()), slice("a", &all)]);
    let own = ["a/10.0.0.3 5432:6432", "a/10.66.0.1 5432:6432", "a/10.9.9.9 5432:6432"];
    assert_eq!(endpoints(&builder), own, "as a member a pod would bow to the Service's waypoint");
    builder.apply([slice("a", &json!([is_pod("agent")]))]);
    assert_eq!(endpoints(&builder), ["/Pod/shop/agent 5432:6432"]);
    on_node["spec"]["hostNetwork"] = false.into();
    builder.apply([put(Kind::Pod, &on_node), slice("a", &json!([at("10.66.0.1")]))]);
    assert_eq!(endpoints(&builder), ["/Pod/shop/agent 5432:6432"]);
    let slices_of_others = slice_in("bank", "b", &json!([at("192.0.2.1")]));
    assert_eq!(names(&builder.apply([slices_of_others])), [""; 0]);
}

#[test]
fn an_address_counts_once_in_several_slices() {
    let mut builder = builder();
    let mut web = json!({
        "metadata": meta("shop", "b", &json!({"kubernetes.io/service-name": "db"})),
        "addressType": "IPv4", "endpoints": [at("192.0.2.1"), at("192.0.2.2")],
        "ports": [{"name": "web", "port": 8080}, {"name": "sql", "port": 1}],
    });
    let first = slice("a", &json!([at("192.0.2.1")]));
    builder.apply([db(&two_ports()), put(Kind::EndpointSlice, &web), first]);
    let both = ["a/192.0.2.1 5432:6432 80:8080", "b/192.0.2.2 5432:1 80:8080"];
    assert_eq!(endpoints(&builder), both);
    web["endpoints"][0]["conditions"] = json!({"ready": false});
    builder.apply([put(Kind::EndpointSlice, &web)]);
    assert_eq!(endpoints(&builder)[0], "a/192.0.2.1 5432:6432", "who is ready is heard");
    builder.apply([delete(Kind::EndpointSlice, "shop", "a")]);
    assert_eq!(endpoints(&builder)[0], "b/192.0.2.1 5432:1 80:8080 unready");
}

#[test]
fn a_slice_moves_to_another_service() {
    let mut builder = builder();
    let labelled = |service: &str| {
        put(
            Kind::EndpointSlice,
            &json!({
                "metadata": meta("shop", "a", &json!({"kubernetes.io/service-name": service})),
                "addressType": "IPv4", "endpoints": [at("192.0.2.1")],
                "ports": [{"name": "sql", "port": 6432}],
            }),
        )
    };
    builder.apply([db(&two_ports()), service("shop", "aa", &two_ports()), labelled("db")]);
    for service in ["aa", "db", "aa"] {
        assert_eq!(names(&builder.apply([labelled(service)])), ["+a"], "it stays, elsewhere");
        let key = format!("shop/{service}.shop.svc.cluster.local").parse().unwrap();
        assert_eq!(workload(&builder, "a").services.keys().collect::<Vec<_>>(), [&key]);
    }
}

#[test]
fn a_selector_takes_the_place_of_slices() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({"app": "web"}), "10.0.0.2"));
    builder.apply(pod("shop", "old", &json!({}), "10.0.0.3"));
    let listed = json!([at("192.0.2.1"), at("10.0.0.3")]);
    builder.apply([slice("a", &listed), db(&two_ports())]);
    let by_slice = ["/Pod/shop/old 5432:6432 hbone", "a/192.0.2.1 5432:6432"];
    assert_eq!(endpoints(&builder), by_slice);
    let mut selecting = two_ports();
    selecting["selector"] = json!({"app": "web"});
    builder.apply([db(&selecting)]);
    assert_eq!(endpoints(&builder), ["/Pod/shop/web 80:80 hbone"]);
    builder.apply([db(&two_ports())]);
    assert_eq!(endpoints(&builder), by_slice);
    builder.apply([delete(Kind::Service, "shop", "db")]);
    assert_eq!(endpoints(&builder), [""; 0]);
}

/// Puts in an order that depends on `seed` alone.
fn shuffled(mut events: Vec<Event>, mut seed: u64) -> Vec<Event> {
    for last in (1..events.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = usize::try_from(seed >> 33).unwrap() % (last + 1);
        events.swap(last, draw);
    }
    events
}

#[test]
fn the_order_of_events_does_not_matter() {
    let before = || {
        let mut events = pod("shop", "old", &json!({"app": "web"}), "10.0.0.2");
        events.extend(pod("shop", "web", &json!({}), "10.0.0.3"));
        events.push(slice("a", &json!([is_pod("old"), at("10.0.0.3"), at("192.0.2.7")])));
        events.push(slice("gone", &json!([at("192.0.2.8"), at("10.0.0.2")])));
        events.push(db(&json!({"selector": {"app": "web"}, "ports": [{"port": 1}]})));
        events
    };
    let after = || {
        let mut events = pod("shop", "web", &json!({"app": "web"}), "10.0.0.2");
        events.extend(pod("shop", "new", &json!({}), "10.0.0.4"));
        let listed = json!([at("10.0.0.2"), is_pod("new"), is_pod("old"), at("192.0.2.1")]);
        events.push(slice("a", &listed));
        events.push(slice("b", &json!([at("192.0.2.1"), at("10.0.0.3"), at("10.0.0.4")])));
        events.push(db(&two_ports()));
        events.push(delete(Kind::Pod, "shop", "old"));
        events.push(delete(Kind::EndpointSlice, "shop", "gone"));
        events
    };
    let forget = || {
        let (namespace, name) = (Text::from("shop"), Text::from("old"));
        let (also_namespace, also_name) = (namespace.clone(), name.clone());
        [
            Event::PodStatus { namespace, name, status: None },
            Event::Captured {
                namespace: also_namespace,
                name: also_name,
                uid: None,
                notes: CaptureNotes::default(),
            },
        ]
    };
    let view = |builder: &Builder| {
        let workloads = builder.view().workloads();
        let mut all: Vec<Workload> = workloads.map(|workload| (**workload).clone()).collect();
        all.sort_by(|one, other| one.uid.cmp(&other.uid));
        (all, endpoints(builder))
    };
    let mut scratch = builder();
    scratch.apply(after());
    let expected = view(&scratch);
    assert_eq!(
        expected.1,
        [
            "/Pod/shop/new 5432:6432 hbone",
            "/Pod/shop/web 5432:6432 hbone",
            "a/10.9.9.9 5432:6432",
            "a/192.0.2.1 5432:6432",
            "b/10.0.0.3 5432:6432",
        ]
    );
    for seed in 0..200 {
        let mut builder = builder();
        let size = usize::try_from(seed % 4 + 1).unwrap();
        let mut events = shuffled(before(), seed);
        events.extend(shuffled(after().into_iter().chain(forget()).collect(), seed));
        for batch in events.chunks(size) {
            builder.apply(batch.to_vec());
        }
        assert_eq!(view(&builder), expected, "seed {seed}");
    }
}
