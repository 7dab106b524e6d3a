//! Which shares get descriptors, whatever others have taken.

use super::*;

const LIMIT: usize = 20_000;

fn worker() -> Arc<Descriptors> {
    Descriptors::new(Process { limit: LIMIT, threads: 2 })
}

fn pod(descriptors: &Arc<Descriptors>, name: &str) -> Shares {
    Shares::new(descriptors, &WorkloadName::new("shop", name))
}

fn identity(name: &str) -> Identity {
    Identity::new("cluster.local", "shop", name)
}

fn client(name: &str, last: u8) -> Source {
    Source::proven([10, 0, 0, last].into(), identity(name))
}

/// Takes one descriptor after the other for this source until it is refused.
fn fill(share: &Arc<Share>, source: Option<&Source>) -> Vec<Permit> {
    std::iter::from_fn(|| share.take(source.cloned(), 1).ok()).collect()
}

fn count(permits: &[Vec<Permit>]) -> usize {
    permits.iter().map(Vec::len).sum()
}

#[test]
fn one_share_gets_a_quarter_and_leaves_as_much_for_the_next() {
    let worker = worker();
    let (first, second) = (pod(&worker, "first"), pod(&worker, "second"));
    let filled = fill(first.of(Direction::Outbound), None);
    let a_quarter = worker.room().total / 4;
    assert!(filled.len().abs_diff(a_quarter) < 20, "{} of {a_quarter}", filled.len());
    assert!(fill(second.of(Direction::Outbound), None).len() > a_quarter / 2);
}

#[test]
fn strangers_who_fill_the_inbound_never_stall_the_outbound() {
    let worker = worker();
    let pod = pod(&worker, "server");
    let sources: Vec<_> = (0..255).map(|last| client("many", last)).collect();
    let mut filled = Vec::new();
    for direction in [Direction::Inbound, Direction::Handshakes, Direction::Plaintext] {
        filled.extend(sources.iter().map(|it| fill(pod.of(direction), Some(it))));
    }
    assert!(count(&filled) > worker.room().total / 4);
    assert!(pod.of(Direction::Outbound).has_room(2));
    assert!(pod.of(Direction::Dns).has_room(2));
}

#[test]
fn a_client_leaves_as_many_to_its_neighbours_as_it_has() {
    let worker = worker();
    let pod = pod(&worker, "server");
    let share = pod.of(Direction::Inbound);
    let greedy = fill(share, Some(&client("greedy", 1)));
    let crowded = share.take(Some(client("greedy", 1)), 1).expect_err("it has its part");
    assert_eq!(crowded.what, UsedUp::Source(client("greedy", 1)));
    let expected = format!(
        "spiffe://cluster.local/ns/shop/sa/greedy at 10.0.0.1 has used up what one client may have \
         of the inbound share of pod shop/server ({0} of {0} descriptors)",
        greedy.len()
    );
    assert_eq!(crowded.to_string(), expected);
    let other = fill(share, Some(&client("other", 2)));
    assert!(greedy.len() > 2_000 && other.len() > greedy.len() / 3, "{}", other.len());
}

#[test]
fn an_identity_with_many_addresses_leaves_a_fifth() {
    let worker = worker();
    let pod = pod(&worker, "server");
    let share = pod.of(Direction::Inbound);
    let many: Vec<_> = (0..100).map(|last| fill(share, Some(&client("many", last)))).collect();
    let crowded = share.take(Some(client("many", 200)), 1).expect_err("as one identity");
    assert_eq!(crowded.what, UsedUp::Party(Party::Identity(identity("many"))));
    let other = fill(share, Some(&client("other", 1)));
    assert!(other.len() > count(&many) / 10, "{} beside {}", other.len(), count(&many));
}

#[test]
fn a_site_with_many_networks_leaves_a_fifth() {
    let worker = worker();
    let pod = pod(&worker, "server");
    let share = pod.of(Direction::Plaintext);
    let network = |number: u16| {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 1, number, 0, 0, 0, 7);
        Source::unproven(address.into(), false)
    };
    let many: Vec<_> = (0..4_000).map(|number| fill(share, Some(&network(number)))).collect();
    let crowded = share.take(Some(network(5_000)), 1).expect_err("as one site");
    let site = Party::Site(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0));
    assert_eq!(crowded.what, UsedUp::Party(site));
    assert!(crowded.to_string().starts_with("2001:db8:1::/48 has used up what one site may have"));
    let told = worker.told([&pod].into_iter()).used_up;
    assert!(told[0].contains("; 2001:db8:1::/48 may have no more; "), "{told:?}");
    let elsewhere = Source::unproven("2001:db8:2::7".parse().expect("an address"), false);
    for other in [Source::unproven([10, 1, 0, 1].into(), false), elsewhere] {
        let other = fill(share, Some(&other));
        assert!(other.len() > count(&many) / 20, "{} beside {}", other.len(), count(&many));
    }
    drop(many);
    assert!(share.uses().parties.is_empty());
}

#[test]
fn whatever_others_have_taken_every_pod_and_every_client_gets_something() {
    let worker = worker();
    let greedy: Vec<_> = (0..100).map(|number| pod(&worker, &format!("greedy-{number}"))).collect();
    let mut taken = Vec::new();
    for pod in &greedy {
        taken.push(fill(pod.of(Direction::Outbound), None));
        for last in 0..20 {
            taken.push(fill(pod.of(Direction::Inbound), Some(&client("greedy", last))));
            let stranger = Source::unproven([10, 1, 0, last].into(), false);
            taken.push(fill(pod.of(Direction::Plaintext), Some(&stranger)));
        }
    }
    let room = worker.room();
    assert!(count(&taken) < room.total && worker.fits_another_pod(), "{room:?}");
    let new = pod(&worker, "new");
    assert!(fill(new.of(Direction::Outbound), None).len() >= 10);
    assert!(fill(new.of(Direction::Inbound), Some(&client("other", 1))).len() >= 4);
    assert!(fill(new.of(Direction::Dns), None).len() >= 4);
    drop(taken);
    assert_eq!(worker.room().used(), 0);
    drop((greedy, new));
    assert_eq!(worker.pods.load(Ordering::Relaxed), 0);
}

#[test]
fn nothing_is_left_behind() {
    let worker = worker();
    let pod = pod(&worker, "server");
    let share = pod.of(Direction::Inbound);
    let mut permit = share.take(Some(client("a", 1)), 5).expect("room");
    let part = permit.split(2);
    drop(permit);
    assert_eq!((worker.room().used(), share.uses().all.all()), (2, 2));
    drop(part);
    let uses = share.uses();
    assert!(uses.sources.is_empty() && uses.parties.is_empty() && worker.room().used() == 0);
}

#[test]
fn connections_without_a_tunnel_are_bounded_for_each_source() {
    let worker = worker();
    let pod = pod(&worker, "server");
    let share = pod.of(Direction::Inbound);
    let open = |name, last| Carrier::new(share, client(name, last));
    let idle: Vec<_> = (0..MAX_IDLE_OF_A_SOURCE).map(|_| open("a", 1).expect("room")).collect();
    let crowded = open("a", 1).expect_err("one too many");
    let expected = "spiffe://cluster.local/ns/shop/sa/a at 10.0.0.1 keeps 128 HBONE connections \
                    without a tunnel with pod shop/server; it may keep 128";
    assert_eq!(crowded.to_string(), expected);
    assert!(open("a", 2).is_ok() && open("b", 1).is_ok());
    let tunnels = [idle[0].tunnel().expect("room"), idle[0].tunnel().expect("room")];
    let another = open("a", 1).expect("one of them carries something");
    drop(tunnels);
    assert!(open("a", 1).is_err(), "now it carries nothing again");
    drop(another);
    drop(idle);
    assert!(open("a", 1).is_ok() && share.uses().sources.is_empty());
}

#[test]
fn tunnels_without_a_descriptor_of_their_own_count_less_and_are_bounded() {
    let worker = worker();
    let pod = pod(&worker, "waypoint");
    let share = pod.of(Direction::Inbound);
    let open = || Carrier::new(share, client("a", 1)).expect("room");
    let fill = |carrier: &Rc<Carrier>, inner| {
        let take = || if inner { carrier.inner_tunnel() } else { carrier.tunnel() };
        std::iter::from_fn(|| take().ok()).collect::<Vec<_>>()
    };
    let carrier = open();
    let outer = fill(&carrier, false).len();
    let mut inner = fill(&carrier, true);
    assert_eq!(inner.len(), outer * TUNNELS_OF_A_DESCRIPTOR);
    assert!(carrier.inner_tunnel().is_err());
    // Whichever of them end, as many descriptors are given back.
    let used = |share: &Arc<Share>| share.uses().all.all();
    let before = used(share);
    let mut at = 0;
    inner.retain(|_| {
        at += 1;
        at % TUNNELS_OF_A_DESCRIPTOR != 1
    });
    let fewer = inner.len().div_ceil(TUNNELS_OF_A_DESCRIPTOR);
    assert_eq!(before - used(share), outer - fewer);
    let again = fill(&carrier, true);
    assert_eq!(inner.len() + again.len(), outer * TUNNELS_OF_A_DESCRIPTOR);
    drop((inner, again));
    drop(carrier);
    assert_eq!(used(share), 0);
}

#[test]
fn addresses_of_one_unknown_network_are_one_source() {
    let check = |address: &str, is_known, expected: &str| {
        let source = Source::unproven(address.parse().expect("an address"), is_known);
        assert_eq!(source.to_string(), expected);
    };
    check("192.0.2.1", false, "192.0.2.1");
    check("2001:db8:1:2:3:4:5:6", false, "2001:db8:1:2::");
    check("2001:db8:1:2:3:4:5:6", true, "2001:db8:1:2:3:4:5:6");
}

#[test]
fn what_is_used_up_is_told_with_whom() {
    let worker = worker();
    let (server, quiet) = (pod(&worker, "server"), pod(&worker, "quiet"));
    let share = server.of(Direction::Inbound);
    let told = || worker.told([&server, &quiet].into_iter());
    let _quiet = quiet.of(Direction::Inbound).take(Some(client("other", 9)), 1);
    let _neighbour = share.take(Some(client("other", 9)), 1);
    assert!(told().used_up.is_empty() && told().fits_another_pod);
    let greedy = fill(share, Some(&client("greedy", 1)));
    let told = told();
    let [sentence] = &*told.used_up else { panic!("{:?}", told.used_up) };
    let (pod, who) = ("pod shop/server, inbound: ", "sa/greedy at 10.0.0.1 has ");
    assert!(sentence.starts_with(pod) && sentence.contains(who), "{sentence}");
    assert!(sentence.contains(&format!("{} and may have no more", greedy.len())), "{sentence}");
    assert!(sentence.ends_with("has 1; 1 refused"), "{sentence}");
    assert!(told.fits_another_pod, "one greedy client does not take the node out of service");
    let json = serde_json::to_value(&told).expect("JSON");
    assert_eq!(json["items"][0]["isUsedUp"], true);
    assert_eq!(json["items"][1]["sources"][0]["used"], 1);
}
