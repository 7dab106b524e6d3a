//! Resuming a stream, by names and by digests.

use ambit_wire::proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use ambit_wire::xds::ResourceType::Address;
use ambit_wire::xds::client::Interest;
use ambit_wire::xds::resources::Resources;
use ambit_wire::xds::server::{Stream, StreamError};
use proptest::prelude::*;

use super::{Pair, policy, request, service, workload};

#[test]
fn a_reconnect_resumes_with_versions() {
    let mut pair = Pair::new(Interest::Everything);
    for uid in ["same", "changed", "gone"] {
        pair.resources.put_workload(&workload(uid, [1, 1, 1, 1]));
    }
    pair.resources.put_policy(&policy("gone"));
    pair.connect();
    pair.take_log();
    // Another replica: what it serves has other sequence numbers, but equal versions.
    pair.resources = Resources::default();
    pair.resources.put_workload(&workload("new", [1, 1, 1, 1]));
    pair.resources.put_workload(&workload("changed", [2, 2, 2, 2]));
    pair.resources.put_workload(&workload("same", [1, 1, 1, 1]));
    pair.connect();
    assert_eq!(pair.take_log(), ["-n/gone", "changed new -gone"]);
    pair.check_equal();
    pair.connect();
    assert_eq!(pair.take_log(), ["", ""]);
}

#[test]
fn a_reconnect_by_digests_names_what_may_differ_and_no_more() {
    let mut pair = Pair::new(Interest::Everything);
    let put = |pair: &mut Pair, index: u16, last: u8| {
        let [high, low] = index.to_be_bytes();
        pair.resources.put_workload(&workload(&format!("w{index}"), [10, high, low, last]));
    };
    (0..1000).for_each(|index| put(&mut pair, index, 0));
    pair.connect();
    let held = pair.kept.len();
    pair.take_log();
    pair.compares = true;
    pair.connect();
    assert_eq!(pair.take_log(), ["", ""], "nothing has changed");
    // Another replica, which knows one more, one less, one in another version.
    pair.resources = Resources::default();
    (0..1000).rev().filter(|index| *index != 7).for_each(|index| put(&mut pair, index, 0));
    put(&mut pair, 8, 1);
    put(&mut pair, 1000, 0);
    pair.connect_without_delivery();
    let policies = pair.stream.next_response(&pair.resources).unwrap().unwrap();
    pair.deliver(policies);
    let asking = pair.stream.next_response(&pair.resources).unwrap().unwrap();
    assert!((1..=3).contains(&asking.differing_groups.len()), "{asking:?}");
    let received = pair.client.receive(asking);
    let named = received.reply.initial_resource_versions.len();
    assert!((2..100).contains(&named), "{named} of {held}");
    // A change meanwhile is not held up, and one to what was named is not lost.
    put(&mut pair, 9, 1);
    put(&mut pair, 8, 2);
    let meanwhile = pair.stream.next_response(&pair.resources).unwrap().unwrap();
    let reply = pair.apply(received);
    pair.stream.receive(reply, &pair.resources).unwrap();
    let is_behind = |pair: &Pair| {
        let newest = pair.resources.of(Address).sequence();
        let progress = pair.stream.progress();
        progress.iter().any(|it| it.resource_type == Address && it.acknowledged_sequence < newest)
    };
    assert!(is_behind(&pair), "it has answered, and has not got what it answered for");
    pair.deliver(meanwhile);
    pair.settle();
    assert!(!is_behind(&pair));
    assert_eq!(pair.take_log(), ["", "w8 w9", "w1000 w8 -w7"]);
    assert!(pair.client.is_complete());
    pair.check_equal();
}

#[test]
fn what_is_gone_is_removed_even_if_its_name_is_an_alias_by_now() {
    let cases = [
        (Interest::Everything, false, ["", "-n/1.1.1.1"].as_slice()),
        (Interest::Everything, true, &["", "", "-n/1.1.1.1"]),
        (Interest::OnDemand, false, &["", "-n/1.1.1.1"]),
    ];
    for (interest, compares, expected) in cases {
        let mut pair = Pair::new(interest);
        let mut alias = workload("w", [1, 1, 1, 1]);
        alias.network = "n".into();
        pair.resources.put_workload(&alias);
        pair.resources.put_service(&service("1.1.1.1", [2, 2, 2, 2]));
        pair.connect();
        pair.demand("n/1.1.1.1");
        assert_eq!((pair.view.workloads().count(), pair.view.services().count()), (1, 1));
        pair.take_log();
        pair.resources = Resources::default();
        pair.resources.put_workload(&alias);
        pair.compares = compares;
        pair.connect();
        assert_eq!(pair.take_log(), expected, "{interest:?}, by digests: {compares}");
        assert_eq!((pair.view.workloads().count(), pair.view.services().count()), (1, 0));
        assert_eq!(pair.kept.len(), 1);
    }
}

#[test]
fn digests_that_are_none_end_the_stream() {
    let mut stream = Stream::new();
    let digests = DeltaDiscoveryRequest {
        held_digests: bytes::Bytes::from_static(&[0; 17]),
        ..request(Address, &[], &[])
    };
    let error = stream.receive(digests, &Resources::default()).unwrap_err();
    assert_eq!(error, StreamError::Digests(Address));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// In many groups: whatever the client held, and whatever changes while it is asked for it.
    #[test]
    fn a_client_that_comes_back_by_digests_ends_up_with_what_is_served(
        held in prop::collection::btree_map(0..300_u16, 0..3_u8, 0..300),
        changes in prop::collection::btree_map(0..300_u16, prop::option::of(0..3_u8), 0..20),
        later in prop::collection::btree_map(0..300_u16, prop::option::of(0..3_u8), 0..20),
        delivered in 0..4_usize,
    ) {
        let mut pair = Pair::new(Interest::Everything);
        let change = |resources: &mut Resources, index: u16, last: Option<u8>| {
            let (uid, [high, low]) = (format!("w{index}"), index.to_be_bytes());
            match last {
                Some(last) => resources.put_workload(&workload(&uid, [10, high, low, last])),
                None => resources.remove_workload(&uid),
            };
        };
        held.iter().for_each(|(index, last)| change(&mut pair.resources, *index, Some(*last)));
        pair.connect();
        let mut other = held.clone();
        for (index, last) in changes {
            match last {
                Some(last) => drop(other.insert(index, last)),
                None => drop(other.remove(&index)),
            }
        }
        pair.resources = Resources::default();
        other.iter().for_each(|(index, last)| change(&mut pair.resources, *index, Some(*last)));
        pair.compares = true;
        pair.connect_without_delivery();
        for _ in 0..delivered {
            if let Some(response) = pair.stream.next_response(&pair.resources).unwrap() {
                pair.deliver(response);
            }
        }
        later.iter().for_each(|(index, last)| change(&mut pair.resources, *index, *last));
        pair.settle();
        prop_assert!(pair.client.is_complete());
        pair.check_equal();
    }
}
