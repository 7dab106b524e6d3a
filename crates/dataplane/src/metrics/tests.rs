//! What a scrape shows.

use ambit_wire::hbone::Baggage;

use super::*;
use crate::failure::ResponseFlags;

fn labels(workload: &str) -> TrafficLabels {
    TrafficLabels {
        reporter: Reporter::Source,
        source: EndLabels { workload: workload.into(), ..Default::default() },
        destination: EndLabels { principal: "spiffe://a/ns/b/sa/c".into(), ..Default::default() },
        service: "cart.shop.svc.cluster.local".into(),
        service_namespace: "shop".into(),
        service_name: "cart".into(),
        mutual_tls: true,
        flags: ResponseFlags::None,
    }
}

fn value(text: &str, metric: &str, part: &str) -> Option<f64> {
    let line = text.lines().find(|it| it.starts_with(metric) && it.contains(part))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn traffic_is_counted_by_istios_names_and_labels() {
    let metrics = Metrics::new("ambit-proxy");
    let traffic = metrics.traffic(&labels("web"));
    traffic.opened();
    metrics.traffic(&labels("web")).opened();
    traffic.closed();
    traffic.moved(10, 2000);
    metrics.traffic(&labels("other")).failed();
    let text = metrics.encode().expect("encoded");
    let check = |metric, expected| {
        let part = "source_workload=\"web\"";
        assert_eq!(value(&text, metric, part), Some(expected), "{metric}\n{text}");
    };
    check("istio_tcp_connections_opened_total", 2.0);
    check("istio_tcp_connections_closed_total", 1.0);
    check("istio_tcp_sockets_open", 1.0);
    check("istio_tcp_sent_bytes_total", 2000.0);
    check("istio_tcp_received_bytes_total", 10.0);
    for part in [
        "reporter=\"source\"",
        "source_principal=\"unknown\"",
        "destination_principal=\"spiffe://a/ns/b/sa/c\"",
        "destination_service=\"cart.shop.svc.cluster.local\"",
        "destination_service_name=\"cart\"",
        "destination_service_namespace=\"shop\"",
        "connection_security_policy=\"mutual_tls\"",
        "response_flags=\"-\"",
        "request_protocol=\"tcp\"",
    ] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn what_a_peer_says_fills_its_own_share_only() {
    let metrics = Metrics::new("ambit-proxy");
    let said = |principal: &str, workload: String| {
        let mut told = labels(&workload);
        told.source.principal = principal.into();
        let mut without = labels("");
        without.source.principal = principal.into();
        metrics.traffic_as_told(&told, &without).opened();
    };
    for number in 0..1000 {
        said("talker", format!("invented-{number}"));
    }
    said("talker", "invented-0".into());
    said("other", "web".into());
    let text = metrics.encode().expect("encoded");
    let metric = "istio_tcp_connections_opened_total";
    let sets = text.lines().filter(|it| it.starts_with(metric) && it.contains("talker")).count();
    assert_eq!(sets, 33, "32 of its own words, and one for all others");
    let opened = |part| value(&text, metric, part);
    assert_eq!(opened("source_workload=\"invented-0\""), Some(2.0), "known ones go on");
    assert_eq!(opened("source_workload=\"unknown\""), Some(968.0), "none is lost");
    assert_eq!(opened("source_workload=\"web\""), Some(1.0), "others are told apart as before");
}

/// As a taken-over node does: 8 KiB of baggage in each of forty connections of one identity.
#[test]
fn long_words_of_a_peer_do_not_swell_a_scrape() {
    let metrics = Metrics::new("ambit-proxy");
    let size = || metrics.encode().expect("encoded").len();
    let before = size();
    for (number, filler) in (0..40).flat_map(|number| [(number, "x"), (number, "%22")]) {
        let key = |name: &str| format!("{name}={number}-{},", filler.repeat(1150 / filler.len()));
        let header: String =
            ["k8s.cluster.name", "k8s.pod.name", "service.name", "service.version"]
                .iter()
                .chain(&["cloud.region", "cloud.availability_zone"])
                .map(|name| key(name))
                .collect();
        assert!(header.len() > 6 << 10, "{}", header.len());
        let said = Baggage::parse([header.as_bytes()]).expect("within the header's bound");
        let mut told = labels("");
        told.source.principal = "spiffe://cluster.local/ns/shop/sa/talker".into();
        let without = told.clone();
        told.source.workload = said.workload.expect("said").1;
        told.source.canonical_service = said.service_name.expect("said");
        told.source.canonical_revision = said.service_version.expect("said");
        told.source.cluster = said.cluster.expect("said");
        told.source.region = said.region.expect("said");
        told.source.zone = said.zone.expect("said");
        metrics.traffic_as_told(&told, &without).opened();
    }
    let grown = size() - before;
    assert!(grown < 300_000, "{grown}");
    let text = metrics.encode().expect("encoded");
    let metric = "istio_tcp_connections_opened_total";
    let opened = text.lines().filter(|it| it.starts_with(metric)).map(|it| value(it, "", ""));
    assert_eq!(opened.flatten().sum::<f64>(), 80.0, "none is lost");
    assert!(value(&text, "ambit_told_labels_refused_total", "").is_some_and(|it| it > 0.0));
    println!("a scrape grew by {grown} bytes");
}

#[test]
fn words_of_all_peers_together_have_a_bound() {
    let metrics = Metrics::new("ambit-proxy");
    for (peer, number) in (0..100).flat_map(|peer| (0..32).map(move |number| (peer, number))) {
        let mut told = labels(&format!("w{number}"));
        told.source.principal = format!("p{peer}").into();
        let mut without = labels("");
        without.source.principal = told.source.principal.clone();
        metrics.traffic_as_told(&told, &without).opened();
    }
    let text = metrics.encode().expect("encoded");
    let metric = "istio_tcp_connections_opened_total";
    let is_told = |it: &&str| it.starts_with(metric) && it.contains("source_workload=\"w");
    let told = text.lines().filter(is_told).count();
    assert!((1000..=2048).contains(&told), "{told}");
    let refused = value(&text, "ambit_told_labels_refused_total", "");
    assert_eq!(refused, Some(3200.0 - told as f64));
}

#[test]
fn everything_else_is_there_from_the_start() {
    let metrics = Metrics::new("ambit-proxy");
    metrics.handshake(Reporter::Destination, "X25519MLKEM768");
    metrics.refused(Reporter::Source, "no_endpoint");
    metrics.dry_run_denial(&PolicyName::new("shop", "trial"));
    metrics.discovery_message("type.googleapis.com/istio.workload.Address", 3, 1);
    let text = metrics.encode().expect("encoded");
    let check = |metric: &str, part: &str, expected: f64| {
        assert_eq!(value(&text, metric, part), Some(expected), "{metric}\n{text}");
    };
    check("ambit_tls_handshakes_total", "group=\"X25519MLKEM768\"", 1.0);
    check("ambit_refusals_total", "reason=\"no_endpoint\"", 1.0);
    check("ambit_dry_run_denials_total", "policy=\"shop/trial\"", 1.0);
    check("istio_xds_message_total", "istio.workload.Address", 1.0);
    check("ambit_xds_resources_total", "istio.workload.Address", 3.0);
    check("istio_build", "component=\"ambit-proxy\"", 1.0);
    assert!(value(&text, "process_resident_memory_bytes", "").is_some_and(|it| it > 0.0));
    assert!(value(&text, "process_open_fds", "").is_some_and(|it| it > 2.0));
    assert!(value(&text, "process_max_fds", "").is_some_and(|it| it > 2.0));
    assert!(text.ends_with("# EOF\n"));
}
