//! A request that has ended, for tests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ambit_http::Scheme;
use ambit_http::engine::position::Arrival;
use ambit_http::engine::record::{Protocol, Record};
use ambit_http::h1::parse::{Limits, Parsed, Progress, request};
use ambit_model::authorize::Source;
use ambit_model::http::rule::{Origin, RouteKind};
use ambit_model::identity::Identity;

use super::entry::Names;

/// The waypoint.
pub(crate) fn names() -> Names {
    Names {
        pod: "waypoint-1".to_owned(),
        namespace: "shop".to_owned(),
        identity: "spiffe://t/ns/shop/sa/waypoint".to_owned(),
        node_id: "waypoint~10.0.0.2~waypoint-1.shop~shop.svc.t".to_owned(),
        service: "waypoint.shop".to_owned(),
        tags: Vec::new(),
        variables: BTreeMap::new(),
    }
}

/// A client's connection.
pub(crate) fn arrival() -> Arrival {
    let client = SocketAddr::from(([10, 0, 0, 9], 4000));
    Arrival {
        source: Source::new(Some(Identity::new("t", "shop", "cart")), client.ip()),
        workload: None,
        client,
        destination: SocketAddr::from(([10, 96, 0, 1], 80)),
        scheme: Scheme::Http,
        outside: None,
    }
}

/// A request with this head that was answered.
pub(crate) fn record(head: &str) -> Record {
    let mut record = Record::new(Protocol::Http11);
    let read = request(head.as_bytes(), Scheme::Http, &Limits::default(), &mut Progress::default());
    let Ok(Parsed::Complete { head, .. }) = read else { panic!("no head: {read:?}") };
    record.head = Some(head);
    record.status = 200;
    record.attempts = 1;
    record.upstream_time = Some(Duration::from_millis(3));
    record.sent_bytes = 7;
    record.route = Some(Origin {
        kind: RouteKind::HttpRoute,
        namespace: "shop".into(),
        name: "web".into(),
        created_unix_s: 0,
        index: 2,
        rule_name: None,
    });
    record
}

/// A head.
pub(crate) const HEAD: &str =
    "GET /a?b HTTP/1.1\r\nhost: web:80\r\nuser-agent: curl\r\nx-request-id: 1\r\n\r\n";
