//! Policies on requests, both as noise: nothing may panic, what an ALLOW policy lets pass a DENY
//! policy with the same rules forbids, and what is no HTTP is let pass by no rule that reads
//! requests.
#![no_main]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ambit_http::{Normalisation, Path};
use ambit_model::authorize::Source;
use ambit_model::http::authorize::{Asked, RequestDecision, authorize};
use ambit_model::http::head::{Client, NamedValues, RequestHead};
use ambit_model::http::policy::{Action, RequestPolicy};
use ambit_model::identity::Identity;
use ambit_wire::proto::ambit::http as proto;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;

fuzz_target!(|data: (&[u8], &str, &str, &[u8], Vec<(&str, &str)>, bool)| {
    let (policy, method, host, target, fields, is_known) = data;
    let Ok(message) = proto::RequestPolicy::decode(policy) else { return };
    let Ok(policy) = RequestPolicy::try_from(message) else { return };
    let Ok(mut path) = Path::parse(target) else { return };
    if path.normalise(Normalisation::Base).is_err() {
        return;
    }
    let own = |(name, value): &(&str, &str)| (name.to_lowercase(), (*value).to_owned());
    let fields: Vec<(String, String)> = fields.iter().map(own).collect();
    let fields = NamedValues(&fields);
    let head = RequestHead {
        method,
        scheme: "http",
        host,
        port: None,
        path: path.path(),
        query: path.query().unwrap_or_default(),
        fields: &fields,
        client: Client::default(),
    };
    let ip = IpAddr::from([10, 0, 0, 1]);
    let source = Source::new(is_known.then(|| Identity::new("t", "shop", "cart")), ip);
    let asked = Asked {
        head: &head,
        source: &source,
        remote_ip: ip,
        destination: SocketAddr::from(([10, 96, 0, 1], 80)),
        service: None,
        server_name: None,
        token: None,
    };
    let judged = |policy: &RequestPolicy, action: Action| {
        let policy = RequestPolicy { action, is_dry_run: false, ..policy.clone() };
        authorize([Ok(&Arc::new(policy))], &asked).decision
    };
    let allowed = matches!(judged(&policy, Action::Allow), RequestDecision::Allowed(Some(_)));
    let denied = matches!(judged(&policy, Action::Deny), RequestDecision::Denied(_));
    assert!(!allowed || denied, "a doubt lets a request pass");
    let asks = matches!(judged(&policy, Action::Custom("a".into())), RequestDecision::Ask { .. });
    assert_eq!(asks, denied, "a provider is asked where a denial would hold");
    // As bytes, with the name of the handshake or without: an ALLOW may match less, a DENY more.
    let as_bytes = |action: Action, is_server_name_known| {
        let whole = RequestPolicy { action: action.clone(), ..policy.clone() };
        judged(&whole.for_bytes(is_server_name_known), action)
    };
    for is_known in [false, true] {
        let _ = (as_bytes(Action::Allow, is_known), as_bytes(Action::Deny, is_known));
    }
});
