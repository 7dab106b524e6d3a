//! Every row of the capture table in real namespaces: traffic that it takes and traffic that it
//! leaves alone, connections that live through every step, and repair.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ambit_net::conntrack::Conntrack;
use ambit_net::nftables::{Chain, Family, Hook, Nftables, Priority, Protocol, Rule, Table};
use ambit_net::socket::DialOptions;
use ambit_net::sys::mount::{self, MountOptions};
use ambit_net::sys::process::{self, Namespaces};
use ambit_words::ports::{INBOUND, OUTBOUND};

use super::rules::{
    Extent, IpVersion, LOOSE_PARAMETER, MIGRATE_PARAMETER, PROXY_MARK, TABLE, TRANSPARENT_MARK,
};
use super::*;
use crate::testbed::{
    APP, Addresses, Client, Testbed, both, set_parameter, udp, who_answers, who_answers_datagram,
};

const OPTIONS: CaptureOptions =
    CaptureOptions { dns: true, ipv6: true, bypass_inbound: false, cut_open: false };

/// Enrols the pod; says what was not in place.
fn program(
    netns: &NetNs,
    options: CaptureOptions,
    extent: Extent,
) -> Result<Vec<Drift>, CaptureError> {
    super::program(netns, options, extent, Occasion::Enrolment).map(|standing| standing.drifts)
}

/// The proxy's listeners and the application in the pod, a server outside, the rules in place.
fn captured(options: CaptureOptions) -> Testbed {
    let mut bed = Testbed::new();
    populate(&mut bed);
    program(&bed.pod, options, Extent::Full).expect("program");
    bed
}

fn populate(bed: &mut Testbed) {
    bed.proxy_listens();
    bed.pod_listens("app", APP, None);
    let node = bed.node.clone();
    for addresses in both() {
        for (tag, ip, port) in [
            ("remote", addresses.remote, APP),
            ("remote-dns", addresses.dns, 53),
            ("remote-15008", addresses.remote, 15008),
        ] {
            bed.listen(&node, tag, SocketAddr::new(ip, port), None);
        }
    }
}

/// From the pod, with this mark, to this address: this listener answers.
async fn check_out(bed: &Testbed, mark: u32, ip: IpAddr, port: u16, expected: &str) {
    let destination = SocketAddr::new(ip, port);
    let answer = who_answers(&bed.pod, destination, mark).await;
    assert_eq!(answer, expected, "from the pod to {destination}, mark {mark:#x}");
}

/// From the node to this address: this listener answers.
async fn check_in(bed: &Testbed, from: Option<IpAddr>, ip: IpAddr, port: u16, expected: &str) {
    let destination = SocketAddr::new(ip, port);
    let source = from.map(|ip| SocketAddr::new(ip, 0));
    let options = DialOptions { source, ..DialOptions::default() };
    let answer = Client::connect(&bed.node, destination, &options).await;
    let answer = answer.map_or_else(|error| error, |client| client.greeting);
    assert_eq!(
        answer.split(' ').next(),
        Some(expected),
        "from {from:?} to {destination}: {answer}"
    );
}

#[tokio::test]
async fn outbound_goes_to_the_proxy_which_knows_where_it_was_going() {
    let bed = captured(OPTIONS);
    for Addresses { remote, pod, .. } in both() {
        let destination = SocketAddr::new(remote, APP);
        let client = Client::connect(&bed.pod, destination, &DialOptions::default()).await;
        assert_eq!(client.expect("answered").greeting, format!("outbound {destination} {pod}"));
        check_out(&bed, 0, remote, 15008, "outbound").await;
        check_out(&bed, PROXY_MARK, remote, APP, "remote").await;
        check_out(&bed, PROXY_MARK | 0xf000, remote, APP, "remote").await;
        check_out(&bed, 0x53a, remote, APP, "outbound").await;
    }
}

#[tokio::test]
async fn the_pod_reaches_itself_directly() {
    let bed = captured(OPTIONS);
    for Addresses { pod, pod_second, localhost, .. } in both() {
        for ip in [pod, pod_second, localhost] {
            check_out(&bed, 0, ip, APP, "app").await;
        }
    }
    check_out(&bed, 0, "127.0.0.9".parse().expect("literal"), APP, "app").await;
}

#[tokio::test]
async fn packets_with_the_transparent_mark_stay_in_the_pod_and_are_not_redirected() {
    let mut bed = captured(OPTIONS);
    bed.pod_listens("own", 9090, Some(PROXY_MARK));
    for Addresses { remote, pod, .. } in both() {
        let destination = SocketAddr::new(remote, 9090);
        let source = Some(SocketAddr::new(pod, 0));
        let options =
            DialOptions { mark: Some(TRANSPARENT_MARK), source, ..DialOptions::default() };
        let client = Client::connect(&bed.pod, destination, &options).await.expect("connects");
        assert_eq!(client.greeting, format!("own {destination} {pod}"));
    }
}

#[tokio::test]
async fn inbound_goes_to_the_proxy_except_hbone() {
    let bed = captured(OPTIONS);
    for Addresses { pod, pod_second, node, .. } in both() {
        let destination = SocketAddr::new(pod, APP);
        let client = Client::connect(&bed.node, destination, &DialOptions::default()).await;
        assert_eq!(client.expect("answered").greeting, format!("inbound {destination} {node}"));
        check_in(&bed, None, pod, 9999, "inbound").await;
        check_in(&bed, None, pod_second, APP, "inbound").await;
        check_in(&bed, None, pod, 15008, "hbone").await;
    }
}

#[tokio::test]
async fn probes_reach_the_application_only_from_the_nodes_interface() {
    let bed = captured(OPTIONS);
    let mut routes = RouteSocket::open_in(&bed.node).expect("rtnetlink");
    for Addresses { probe, pod, pod_second, .. } in both() {
        routes.ensure_address("lo", probe.into()).expect("address");
        check_in(&bed, Some(probe), pod, APP, "app").await;
        check_in(&bed, Some(probe), pod, 15006, "inbound").await;
        check_in(&bed, Some(probe), pod_second, APP, "inbound").await;
    }
}

#[tokio::test]
async fn the_pod_reaches_the_probe_address_directly() {
    let mut bed = captured(OPTIONS);
    let mut routes = RouteSocket::open_in(&bed.node).expect("rtnetlink");
    let node = bed.node.clone();
    for Addresses { probe, .. } in both() {
        routes.ensure_address("lo", probe.into()).expect("address");
        bed.listen(&node, "kubelet", SocketAddr::new(probe, APP), None);
        check_out(&bed, 0, probe, APP, "kubelet").await;
    }
}

#[tokio::test]
async fn the_proxy_dials_the_application_with_the_clients_address() {
    let bed = captured(OPTIONS);
    for Addresses { pod, client, version, .. } in both() {
        let destination = SocketAddr::new(pod, APP);
        let source = Some(SocketAddr::new(client, 0));
        let options = DialOptions { mark: Some(PROXY_MARK), source, ..DialOptions::default() };
        let mut connection = Client::connect(&bed.pod, destination, &options).await.expect("dial");
        assert_eq!(connection.greeting, format!("app {destination} {client}"));
        connection.echo().await.expect("both ways");
        let mut routes = RouteSocket::open_in(&bed.pod).expect("rtnetlink");
        routes.delete_rule(&rules::policy_rule(version)).expect("delete");
        let dial = Client::connect(&bed.pod, destination, &options);
        let dialled = tokio::time::timeout(Duration::from_millis(500), dial).await;
        assert!(dialled.is_err(), "without the rule of routing the answer goes astray");
    }
}

#[tokio::test]
async fn dns_goes_to_the_proxy_and_its_answer_comes_from_where_it_was_asked() {
    let mut bed = captured(OPTIONS);
    let (node, pod) = (bed.node.clone(), bed.pod.clone());
    for Addresses { dns, localhost, pod: own, .. } in both() {
        for (tag, netns, ip, port) in [
            ("remote-dns", &node, dns, 53),
            ("remote-mdns", &node, dns, 5353),
            ("own-dns", &pod, localhost, 53),
        ] {
            bed.answers_datagrams(netns, tag, SocketAddr::new(ip, port), None);
        }
        let table = [
            (0, dns, 53, "dns"),
            (PROXY_MARK, dns, 53, "remote-dns"),
            (0, dns, 5353, "remote-mdns"),
            (0, localhost, 53, "own-dns"),
        ];
        for (mark, ip, port, expected) in table {
            let from = if ip == localhost { localhost } else { own };
            let client = udp(&pod, SocketAddr::new(from, 0), (mark != 0).then_some(mark));
            let answer = who_answers_datagram(&client, SocketAddr::new(ip, port)).await;
            assert_eq!(answer, expected, "{ip} {port} mark {mark:#x}");
        }
        check_out(&bed, 0, dns, 53, "dns").await;
        check_out(&bed, PROXY_MARK, dns, 53, "remote-dns").await;
    }
}

#[tokio::test]
async fn the_proxys_own_queries_are_tracked_apart() {
    let mut bed = captured(OPTIONS);
    let (node, pod) = (bed.node.clone(), bed.pod.clone());
    for Addresses { dns, pod: own, version, .. } in both() {
        let server = SocketAddr::new(dns, 53);
        bed.answers_datagrams(&node, "remote-dns", server, None);
        let client = udp(&pod, SocketAddr::new(own, 0), Some(PROXY_MARK));
        assert_eq!(who_answers_datagram(&client, server).await, "remote-dns");
        let mut conntrack = Conntrack::open_in(&pod).expect("conntrack");
        let entries = conntrack.entries().expect("entries");
        let zones: Vec<u16> = entries
            .iter()
            .filter(|entry| entry.original.destination == server)
            .map(|entry| entry.zone)
            .collect();
        assert_eq!(zones, [1], "{version:?}: one entry, both directions in the same zone");
    }
}

#[tokio::test]
async fn without_dns_capture_queries_go_where_they_are_sent() {
    let mut bed = captured(CaptureOptions { dns: false, ..OPTIONS });
    let (node, pod) = (bed.node.clone(), bed.pod.clone());
    for Addresses { dns, pod: own, .. } in both() {
        let server = SocketAddr::new(dns, 53);
        bed.answers_datagrams(&node, "remote-dns", server, None);
        let client = udp(&pod, SocketAddr::new(own, 0), None);
        assert_eq!(who_answers_datagram(&client, server).await, "remote-dns");
        check_out(&bed, 0, dns, 53, "outbound").await;
    }
}

#[tokio::test]
async fn bypassed_inbound_is_left_alone_and_outbound_is_not() {
    let bed = captured(CaptureOptions { bypass_inbound: true, ..OPTIONS });
    for Addresses { pod, remote, .. } in both() {
        check_in(&bed, None, pod, APP, "app").await;
        check_out(&bed, 0, remote, APP, "outbound").await;
    }
}

#[tokio::test]
async fn without_ipv6_only_ipv4_is_captured() {
    let bed = captured(CaptureOptions { ipv6: false, ..OPTIONS });
    let [v4, v6] = both();
    check_out(&bed, 0, v4.remote, APP, "outbound").await;
    check_in(&bed, None, v4.pod, APP, "inbound").await;
    check_out(&bed, 0, v6.remote, APP, "remote").await;
    check_in(&bed, None, v6.pod, APP, "app").await;
}

#[tokio::test]
async fn a_pod_with_ipv6_switched_off_is_captured() {
    let mut bed = Testbed::new();
    for interface in ["all", "default", "lo"] {
        set_parameter(&bed.pod, &format!("net.ipv6.conf.{interface}.disable_ipv6"), "1");
    }
    let pod = bed.pod.clone();
    let any = SocketAddr::from(([0, 0, 0, 0], 15001));
    bed.listen(&pod, "outbound", any, Some(PROXY_MARK));
    assert!(!program(&bed.pod, OPTIONS, Extent::Full).expect("program").is_empty());
    assert_eq!(program(&bed.pod, OPTIONS, Extent::Full).expect("program"), []);
    check_out(&bed, 0, both()[0].remote, APP, "outbound").await;
    remove_all(&bed.pod).expect("remove");
}

/// Connections of every kind, open at once, and what each must go on saying.
struct Open(Vec<(String, Client)>);

impl Open {
    /// Opens some from the pod and some to it; the greeting shows who took them.
    async fn more(&mut self, bed: &Testbed, when: &str, outward: &str, inward: &str) {
        for Addresses { pod, remote, .. } in both() {
            for (netns, ip, expected) in [(&bed.pod, remote, outward), (&bed.node, pod, inward)] {
                let destination = SocketAddr::new(ip, APP);
                for _ in 0..25 {
                    let options = DialOptions::default();
                    let client = Client::connect(netns, destination, &options).await;
                    let client = client.expect("connects");
                    assert_eq!(client.greeting.split(' ').next(), Some(expected), "{when}");
                    self.0.push((format!("{expected} to {destination}, opened {when}"), client));
                }
            }
        }
    }

    async fn all_live(&mut self, when: &str) {
        for (name, client) in &mut self.0 {
            let echo = client.echo().await;
            assert!(echo.is_ok(), "{name}: {echo:?} {when}");
        }
    }
}

#[tokio::test]
async fn no_open_connection_notices_capture_or_its_end() {
    let mut bed = Testbed::new();
    populate(&mut bed);
    let mut open = Open(Vec::new());
    open.more(&bed, "before", "remote", "app").await;
    for round in ["first", "second"] {
        program(&bed.pod, OPTIONS, Extent::Full).expect("program");
        open.all_live(&format!("after {round} enrolment")).await;
        open.more(&bed, round, "outbound", "inbound").await;
        remove_redirects(&bed.pod).expect("remove the redirects");
        open.all_live(&format!("after {round} un-enrolment")).await;
        open.more(&bed, "afterwards", "remote", "app").await;
    }
    open.0.retain(|(name, _)| !name.contains("outbound") && !name.contains("inbound"));
    remove_all(&bed.pod).expect("remove all");
    open.all_live("after everything was removed").await;
    open.more(&bed, "at the end", "remote", "app").await;
}

/// How the pod stands after one more look at it.
fn look(bed: &Testbed) -> Standing {
    super::program(&bed.pod, OPTIONS, Extent::Full, Occasion::Repair).expect("look")
}

#[tokio::test]
async fn older_connections_are_noted_once_and_leave_with_their_sockets() {
    let mut bed = Testbed::new();
    populate(&mut bed);
    let mut open = Open(Vec::new());
    open.more(&bed, "before", "remote", "app").await;
    let standing = super::program(&bed.pod, OPTIONS, Extent::Full, Occasion::Enrolment);
    assert_eq!(standing.expect("program").older, 100);
    open.more(&bed, "captured", "outbound", "inbound").await;
    assert_eq!(look(&bed), Standing { older: 100, ..Standing::default() }, "of those none");
    // Another agent, and one whose rules were altered: the record stays what it was.
    let again = super::program(&bed.pod, OPTIONS, Extent::Full, Occasion::Enrolment);
    assert_eq!(again.expect("program").older, 100);
    let mut nftables = Nftables::open_in(&bed.pod).expect("nftables");
    let filters = [rules::INPUT_FILTER, rules::OUTPUT_FILTER];
    nftables.delete_chains(Family::Ip, &[TABLE], &filters).expect("delete");
    assert_eq!(look(&bed).older, 100);
    open.all_live("after repair").await;

    // With the table its record is lost, and what came meanwhile is not taken for older.
    nftables.delete(Family::Ip6, TABLE).expect("delete");
    let mut meanwhile = Open(Vec::new());
    let [_, v6] = both();
    let destination = SocketAddr::new(v6.pod, APP);
    let client = Client::connect(&bed.node, destination, &DialOptions::default()).await;
    let client = client.expect("not captured");
    assert_eq!(client.greeting.split(' ').next(), Some("app"));
    meanwhile.0.push(("meanwhile".to_owned(), client));
    assert_eq!(look(&bed).older, 50, "those of IPv4");

    open.0.truncate(0);
    let ended = async {
        while look(&bed).older > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::testbed::PATIENCE, ended).await.expect("all leave the record");
}

#[tokio::test]
async fn older_connections_are_cut_where_that_is_asked_for() {
    for is_asked_later in [false, true] {
        let mut bed = Testbed::new();
        populate(&mut bed);
        let mut open = Open(Vec::new());
        open.more(&bed, "before", "remote", "app").await;
        if is_asked_later {
            program(&bed.pod, OPTIONS, Extent::Full).expect("program");
            open.all_live("while nobody asks").await;
        }
        let mut captured = Open(Vec::new());
        if is_asked_later {
            captured.more(&bed, "captured", "outbound", "inbound").await;
        }
        let cut = CaptureOptions { cut_open: true, ..OPTIONS };
        let standing = super::program(&bed.pod, cut, Extent::Full, Occasion::Enrolment);
        assert_eq!(standing.expect("program").older, 0);
        for (name, client) in &mut open.0 {
            assert!(client.is_cut().await, "{name}: cut, asked later: {is_asked_later}");
        }
        captured.all_live("captured ones").await;
        captured.more(&bed, "afterwards", "outbound", "inbound").await;
        assert_eq!(verify(&bed.pod, cut, Extent::Full).expect("verify"), []);
    }
}

#[tokio::test]
async fn what_bypassed_capture_on_purpose_lives_on_when_it_no_longer_does() {
    let bypass = CaptureOptions { bypass_inbound: true, ..OPTIONS };
    let bed = captured(bypass);
    let mut open = Open(Vec::new());
    open.more(&bed, "bypassing", "outbound", "app").await;
    let standing = super::program(&bed.pod, OPTIONS, Extent::Full, Occasion::Enrolment);
    assert_eq!(standing.expect("program").older, 50, "the inbound ones");
    open.all_live("captured from now on").await;
    open.more(&bed, "captured", "outbound", "inbound").await;
}

#[tokio::test]
async fn connections_dialled_to_the_application_live_on_without_redirects() {
    let bed = captured(OPTIONS);
    let mut dialled = Vec::new();
    for Addresses { pod, client, .. } in both() {
        let source = Some(SocketAddr::new(client, 0));
        let options = DialOptions { mark: Some(PROXY_MARK), source, ..DialOptions::default() };
        let destination = SocketAddr::new(pod, APP);
        dialled.push(Client::connect(&bed.pod, destination, &options).await.expect("dial"));
    }
    remove_redirects(&bed.pod).expect("remove the redirects");
    for connection in &mut dialled {
        connection.echo().await.expect("both ways");
    }
}

#[tokio::test]
async fn captured_connections_are_counted_until_they_end() {
    let bed = captured(OPTIONS);
    assert_eq!(connections(&bed.pod).expect("count"), 0);
    let mut open = Open(Vec::new());
    open.more(&bed, "captured", "outbound", "inbound").await;
    assert_eq!(connections(&bed.pod).expect("count"), 100);
    open.0.clear();
    let ended = async {
        while connections(&bed.pod).expect("count") > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::testbed::PATIENCE, ended).await.expect("all end");
}

#[tokio::test]
async fn tampering_is_found_named_and_put_right() {
    let bed = captured(OPTIONS);
    let mut nftables = Nftables::open_in(&bed.pod).expect("nftables");
    let mut routes = RouteSocket::open_in(&bed.pod).expect("rtnetlink");
    let stranger = Table::new(Family::Ip, "stranger")
        .chain(Chain::filter("c", Hook::Input, Priority::FILTER).rule(Rule::new("r").accept()));
    nftables.replace(std::slice::from_ref(&stranger)).expect("another's table");
    assert_eq!(verify(&bed.pod, OPTIONS, Extent::Full).expect("verify"), []);

    let check = |expected: &str| {
        let found = verify(&bed.pod, OPTIONS, Extent::Full).expect("verify");
        let words: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(words.join("; "), expected);
        assert_eq!(program(&bed.pod, OPTIONS, Extent::Full).expect("repair"), found);
        assert_eq!(verify(&bed.pod, OPTIONS, Extent::Full).expect("verify"), []);
    };
    nftables.delete(Family::Ip, TABLE).expect("delete");
    check("V4 table ambit missing");
    nftables.delete(Family::Ip6, TABLE).expect("delete");
    check("V6 table ambit missing");
    let emptied = Table::new(Family::Ip, TABLE);
    nftables.replace(&[emptied]).expect("replace");
    assert!(verify(&bed.pod, OPTIONS, Extent::Full).expect("verify").len() > 3);
    program(&bed.pod, OPTIONS, Extent::Full).expect("repair");
    for version in [IpVersion::V4, IpVersion::V6] {
        routes.delete_rule(&rules::policy_rule(version)).expect("delete");
        check(&format!("{version:?} policy routing rule missing"));
        for route in rules::routes(version) {
            routes.delete_route(&route).expect("delete");
            check(&format!("local route to {} missing", route.destination));
        }
    }
    set_parameter(&bed.pod, MIGRATE_PARAMETER, "0");
    check("net/ipv4/tcp_migrate_req was altered");
    set_parameter(&bed.pod, LOOSE_PARAMETER, "1");
    check("net/netfilter/nf_conntrack_tcp_loose was altered");
    let mut rules = nftables.list_rules(Family::Ip, TABLE).expect("list");
    rules.retain(|rule| [rules::INPUT_FILTER, rules::OUTPUT_FILTER].contains(&&*rule.chain));
    assert_eq!(rules.len(), 8 + 9, "the filters are part of what is compared");
    assert_eq!(nftables.verify(&stranger).expect("verify"), [], "another's table is not touched");
    remove_all(&bed.pod).expect("remove");
    assert_eq!(nftables.verify(&stranger).expect("verify"), [], "another's table is not touched");
}

#[tokio::test]
async fn the_parameter_is_set_where_a_container_sees_it_read_only() {
    let bed = Testbed::new();
    set_parameter(&bed.pod, MIGRATE_PARAMETER, "0");
    let in_container = || {
        process::unshare(Namespaces::MOUNT).expect("a mount namespace");
        mount::make_private().expect("private");
        let path = Path::new("/proc/sys");
        mount::bind(path, path).expect("bound");
        let read_only = MountOptions { read_only: true, ..MountOptions::default() };
        mount::remount_bind(path, read_only).expect("read-only");
        program(&bed.pod, OPTIONS, Extent::Full).expect("program");
    };
    std::thread::scope(|scope| scope.spawn(in_container).join().expect("programmed"));
    let path = Path::new("/proc/sys").join(MIGRATE_PARAMETER);
    let value = bed.pod.run(|| fs::read_to_string(path)).expect("enter").expect("read");
    assert_eq!(value.trim(), "1");
}

#[tokio::test]
async fn what_is_left_is_found_and_removed_whole() {
    let bed = Testbed::new();
    assert_eq!(footprint(&bed.pod).expect("look"), Footprint::None);
    program(&bed.pod, OPTIONS, Extent::Full).expect("program");
    assert_eq!(footprint(&bed.pod).expect("look"), Footprint::Some);
    remove_redirects(&bed.pod).expect("remove the redirects");
    assert_eq!(footprint(&bed.pod).expect("look"), Footprint::Some);
    let mut nftables = Nftables::open_in(&bed.pod).expect("nftables");
    for family in [Family::Ip, Family::Ip6] {
        nftables.delete(family, TABLE).expect("delete");
    }
    assert_eq!(footprint(&bed.pod).expect("look"), Footprint::Some, "the rules of routing");
    remove_all(&bed.pod).expect("remove all");
    remove_all(&bed.pod).expect("remove all twice");
    assert_eq!(footprint(&bed.pod).expect("look"), Footprint::None);
}

/// As istio-cni writes them with iptables over nftables: own chains, and jumps from the program's.
fn istio_rules(version: IpVersion) -> Table {
    let to = |chain: &str| Rule::new("").jump(chain);
    let redirect = |port| Rule::new("").protocol(Protocol::Tcp).redirect(port);
    let nat = Priority::DESTINATION_NAT;
    let foreign = Rule::new("another's").protocol(Protocol::Udp).accept();
    let prerouting = Chain::nat("PREROUTING", Hook::Prerouting, nat);
    Table::new(version.family(), "nat")
        .chain(prerouting.rule(to("ISTIO_PRERT")).rule(foreign))
        .chain(Chain::nat("OUTPUT", Hook::Output, nat).rule(to("ISTIO_OUTPUT")))
        .chain(Chain::regular("ISTIO_PRERT").rule(redirect(INBOUND)))
        .chain(Chain::regular("ISTIO_OUTPUT").rule(redirect(OUTBOUND)))
}

#[tokio::test]
async fn the_rules_of_istio_cni_give_way_and_their_connections_live_on() {
    let mut bed = Testbed::new();
    populate(&mut bed);
    let mut nftables = Nftables::open_in(&bed.pod).expect("nftables");
    nftables.replace(&[istio_rules(IpVersion::V4), istio_rules(IpVersion::V6)]).expect("iptables");
    let native = Table::new(Family::Inet, "istio-ambient-nat");
    nftables.replace(std::slice::from_ref(&native)).expect("native");
    let mut open = Open(Vec::new());
    open.more(&bed, "captured by istio-cni", "outbound", "inbound").await;
    let found = program(&bed.pod, OPTIONS, Extent::Full).expect("take over");
    assert!(found.contains(&Drift::Istio), "{found:?}");
    assert_eq!(program(&bed.pod, OPTIONS, Extent::Full).expect("again"), []);
    open.all_live("after the take-over").await;
    open.more(&bed, "captured by us", "outbound", "inbound").await;
    remove_redirects(&bed.pod).expect("release");
    open.all_live("after release").await;
    open.more(&bed, "released", "remote", "app").await;
    for family in [Family::Ip, Family::Ip6] {
        let left = nftables.list_rules(family, "nat").expect("list");
        let left: Vec<&str> = left.iter().map(|rule| rule.comment.as_str()).collect();
        assert_eq!(left, ["another's"], "nothing but istio-cni's goes");
    }
    assert!(!nftables.delete(Family::Inet, "istio-ambient-nat").expect("look"), "it is gone");
}
