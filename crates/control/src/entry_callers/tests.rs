//! Who is taken for the computer of a WorkloadEntry, and who is not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ambit_manifest::istio::WorkloadEntry;
use ambit_manifest::{Kind, Typed};
use ambit_net::admission::Owner;
use ambit_tls::token::{Claims, ISSUER, TokenSigner};
use ambit_words::names::TOKEN_AUDIENCE;
use serde_json::json;

use super::testing::{Bed, LIFE};
use super::*;
use crate::callers::Callers;
use crate::registry::Event;

fn of(name: &str) -> SpeaksFor {
    SpeaksFor::Entry(EntryClaim { name: name.into(), uid: format!("uid-{name}").into() })
}

#[tokio::test(start_paused = true)]
async fn a_computer_speaks_for_the_entry_of_its_own_account() {
    let bed = Bed::new();
    bed.put("shop", "vm", "uid-vm", "web");
    bed.put("shop", "other", "uid-other", "db");
    bed.put("shop", "plain", "uid-plain", "");
    bed.put("bank", "safe", "uid-safe", "web");
    bed.put("mesh", "sly", "uid-sly", "node");
    let unreadable = json!({"apiVersion": "", "kind": "WorkloadEntry",
        "metadata": {"namespace": "shop", "name": "odd", "uid": "uid-odd"},
        "spec": {"address": "192.0.2.7", "serviceAccount": "web"}});
    let mut unreadable: WorkloadEntry = serde_json::from_value(unreadable).expect("an entry");
    unreadable.unreadable = Some("it is odd".to_owned());
    bed.world.apply(vec![Event::Put(Typed::WorkloadEntry(Arc::new(unreadable)))]);
    let going = json!({"metadata": {"namespace": "shop", "name": "going", "uid": "uid-going",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.example/b"]},
        "spec": {"address": "192.0.2.7", "serviceAccount": "web"}});
    bed.put_object(Kind::WorkloadEntry, &going);
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "web-1", "uid": "web-1"},
        "spec": {"nodeName": "node-1", "serviceAccountName": "web", "containers": []}});
    bed.put_object(Kind::Pod, &pod);
    let node_proxy = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "mesh", "name": "proxy-1", "uid": "proxy-1"},
        "spec": {"nodeName": "node-1", "serviceAccountName": "node", "containers": []}});
    bed.put_object(Kind::Pod, &node_proxy);
    let check = async |account: (&str, &str), pod, named, expected: Result<SpeaksFor, &str>| {
        let token = bed.token(account.0, account.1, pod, LIFE);
        let called = bed.call(&token, named).await;
        match (called, expected) {
            (Ok(caller), Ok(speaks_for)) => {
                assert_eq!(caller.speaks_for, speaks_for, "{account:?} {named:?}");
            }
            (Err(refusal), Err(why)) => {
                let text = refusal.status().message().to_owned();
                assert!(text.contains(why), "{account:?} {named:?}: {text}");
                assert_eq!(refusal.status().code(), tonic::Code::PermissionDenied, "{text}");
                assert_eq!(refusal.reason(), "denied");
            }
            (called, expected) => {
                panic!("{account:?} {pod:?} {named:?}: {called:?}, not {expected:?}")
            }
        }
    };
    let web = ("shop", "web");
    check(web, None, Some("vm"), Ok(of("vm"))).await;
    check(("shop", "default"), None, Some("plain"), Ok(of("plain"))).await;
    let wrong = "the serviceAccount of WorkloadEntry shop/other is db, the token's is web; make";
    check(web, None, Some("other"), Err(wrong)).await;
    let wrong = "the serviceAccount of WorkloadEntry shop/plain is default, the token's is web";
    check(web, None, Some("plain"), Err(wrong)).await;
    check(web, None, None, Err("names it in the metadata ambit-workload-entry")).await;
    check(web, None, Some("no"), Err("there is no WorkloadEntry shop/no; apply it")).await;
    check(web, None, Some("safe"), Err("there is no WorkloadEntry shop/safe")).await;
    check(web, None, Some("going"), Err("there is no WorkloadEntry shop/going")).await;
    check(web, None, Some("odd"), Err("WorkloadEntry shop/odd cannot be read: it is odd")).await;
    let long = "a".repeat(300);
    for name in ["", "bank/safe", "../safe", "VM", "é", &long] {
        check(web, None, Some(name), Err("does not hold a name of Kubernetes")).await;
    }
    let wrong = "the token is bound to pod shop/web-1, and no pod is the computer of WorkloadEntry \
                 shop/vm; make a token with `ambit token create --kube -n shop vm`";
    check(web, Some("web-1"), Some("vm"), Err(wrong)).await;
    let wrong = "the account of node proxies (see --trusted-node-accounts), which WorkloadEntry";
    check(("mesh", "node"), None, Some("sly"), Err(wrong)).await;
    // What else such tokens prove is as without the metadata.
    check(("mesh", "node"), None, None, Ok(SpeaksFor::Node)).await;
    check(("mesh", "node"), Some("proxy-1"), Some("sly"), Ok(SpeaksFor::Node)).await;
}

#[tokio::test(start_paused = true)]
async fn half_of_a_pods_claim_is_no_token_of_no_pod() {
    let bed = Bed::new();
    bed.put("shop", "vm", "uid-vm", "web");
    let token = bed.token("shop", "web", None, LIFE);
    for half in ["pod-name", "pod-uid"] {
        let extra = json!({ format!("authentication.kubernetes.io/{half}"): ["web-1"] });
        bed.review(&token, "shop", "web", &extra);
        let refusal = bed.call(&token, Some("vm")).await.expect_err(half);
        assert_eq!(refusal.reason(), "unauthenticated", "{refusal}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_of_a_token_says_nothing_of_an_entry() {
    let bed = Bed::new();
    let token = bed.token("shop", "web", None, LIFE);
    for (uid, account, is_taken) in
        [("1", "web", true), ("2", "db", false), ("3", "web", true), ("4", "web", true)]
    {
        bed.put("shop", "vm", uid, account);
        let called = bed.call(&token, Some("vm")).await;
        assert_eq!(called.is_ok(), is_taken, "{called:?}");
        if let Ok(caller) = called {
            let uid = uid.into();
            let claim = EntryClaim { name: "vm".into(), uid };
            assert_eq!(caller.speaks_for, SpeaksFor::Entry(claim));
        }
    }
    assert!(bed.call(&token, None).await.is_err(), "nor is the token an entry's from now on");
    bed.delete("shop", "vm");
    assert!(bed.call(&token, Some("vm")).await.is_err());
    assert_eq!(bed.api.count("POST /apis/authentication.k8s.io"), 1, "it was remembered");
}

#[tokio::test(start_paused = true)]
async fn an_entry_may_appear_in_a_moment() {
    let bed = Bed::new();
    let token = bed.token("shop", "web", None, LIFE);
    let check = async |after: Duration, is_taken: bool| {
        bed.delete("shop", "vm");
        let appears = async {
            tokio::time::sleep(after).await;
            bed.put("shop", "vm", "1", "web");
        };
        let (called, ()) = tokio::join!(bed.call(&token, Some("vm")), appears);
        assert_eq!(called.is_ok(), is_taken, "{after:?}: {called:?}");
    };
    check(ENTRY_WAIT / 2, true).await;
    check(ENTRY_WAIT * 2, false).await;
}

#[tokio::test(start_paused = true)]
async fn who_was_judged_is_judged_again() {
    let bed = Bed::new();
    bed.put("shop", "vm", "1", "web");
    let caller = bed.computer("shop", "web", "vm").await;
    assert_eq!(still(&caller, &bed.world), Ok(()));
    let entry = || Named { namespace: "shop".into(), name: "vm".into() };
    bed.put("shop", "vm", "1", "db");
    let of_token = "web".to_owned();
    let other = EntryRefusal::OtherAccount { entry: entry(), account: "db".into(), of_token };
    assert_eq!(still(&caller, &bed.world), Err(other));
    bed.put("shop", "vm", "2", "web");
    assert_eq!(still(&caller, &bed.world), Err(EntryRefusal::Replaced { entry: entry() }));
    bed.put("shop", "vm", "1", "web");
    assert_eq!(still(&caller, &bed.world), Ok(()));
    bed.delete("shop", "vm");
    assert_eq!(still(&caller, &bed.world), Err(EntryRefusal::NoEntry { entry: entry() }));
}

#[tokio::test(start_paused = true)]
async fn a_machines_own_token_is_no_entrys() {
    let mut bed = Bed::new();
    bed.put("shop", "vm", "1", "web");
    let signer = TokenSigner::generate().expect("a key");
    bed.authentication.callers = Callers::Own(signer.verifier());
    let now = std::time::SystemTime::now();
    let claims = Claims {
        issuer: ISSUER.to_owned(),
        audience: vec![TOKEN_AUDIENCE.to_owned()],
        issued_at: now,
        expires_at: now + LIFE,
        namespace: "shop".to_owned(),
        service_account: "web".to_owned(),
        node: String::new(),
        pod: None,
    };
    let token = signer.sign(&claims).expect("signed");
    let refusal = bed.call(&token, Some("vm")).await.expect_err("it is not taken");
    assert!(refusal.to_string().contains("neither the account of a node proxy"), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn nobody_counts_for_anybody_else() {
    let bed = Bed::new();
    bed.put("shop", "vm", "1", "web");
    bed.put("shop", "web", "2", "web");
    let (vm, web) =
        (bed.computer("shop", "web", "vm").await, bed.computer("shop", "web", "web").await);
    let pod = |name: &str| ambit_tls::token::PodClaim { name: name.into(), uid: "u".into() };
    let waypoint = Caller {
        speaks_for: SpeaksFor::Waypoint,
        pod: Some(pod("vm")),
        node: "vm".into(),
        ..vm.clone()
    };
    let node = Caller { speaks_for: SpeaksFor::Node, ..waypoint.clone() };
    let all = [&vm, &web, &waypoint, &node].map(Caller::account_holder);
    assert_eq!(all, ["entry:shop/vm", "entry:shop/web", "shop/vm", "vm"]);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    let connections = [&vm, &web, &waypoint, &node].map(|it| it.connection_owner());
    let (entries, pod) = (Owner::Guest("shop".into()), Owner::Named("shop/vm".into()));
    let of = [entries.clone(), entries, pod, Owner::Named("vm".into())].map(Some);
    assert_eq!(connections, of, "no entry's connection closes one of another kind");
    // By whatever name they are called, the certificates of an account are one lot.
    let certificates = [&vm, &web, &waypoint, &node].map(Caller::certificate_holder);
    assert_eq!(certificates, ["entry:shop/web", "entry:shop/web", "vm", "vm"]);
}
