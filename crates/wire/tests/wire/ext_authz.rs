//! Authorization services: what they are told, and that only a clear answer counts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use ambit_wire::ext_authz::{
    Allowed, AnswerError, Asked, Body, Change, Denied, FieldChange, Peer, Verdict, decode, encode,
};
use ambit_wire::proto::envoy::service::auth::v3 as proto;
use ambit_wire::proto::google::rpc::Status;
use proptest::prelude::*;
use prost::Message;
use proto::check_response::HttpResponse::{DeniedResponse, OkResponse};

fn asked(body: Body) -> Asked {
    let peer = |port: u16, principal: &str| Peer {
        address: SocketAddr::from(([10, 0, 0, 1], port)),
        service: String::new(),
        principal: principal.to_owned(),
    };
    Asked {
        source: peer(4000, "spiffe://t/ns/shop/sa/cart"),
        destination: peer(80, ""),
        received: UNIX_EPOCH + Duration::new(7, 5),
        id: "one".to_owned(),
        method: "GET".to_owned(),
        path: "/a?b=c".to_owned(),
        host: "web.app:80".to_owned(),
        scheme: "http",
        protocol: "HTTP/1.1",
        size_bytes: None,
        headers: BTreeMap::from([("x-a".to_owned(), "1".to_owned())]),
        body,
    }
}

fn http(body: Body) -> (proto::AttributeContext, proto::HttpRequest) {
    let message = proto::CheckRequest::decode(&*encode(asked(body))).unwrap();
    let attributes = message.attributes.unwrap();
    let http = attributes.request.clone().unwrap().http.unwrap();
    (attributes, http)
}

#[test]
fn a_service_is_told_who_asks_for_what() {
    let (attributes, http) = http(Body::Hidden);
    let source = attributes.source.unwrap();
    assert_eq!(source.principal, "spiffe://t/ns/shop/sa/cart");
    let address = source.address.unwrap().socket_address.unwrap();
    assert_eq!((&*address.address, address.port_value), ("10.0.0.1", 4000));
    let time = attributes.request.unwrap().time.unwrap();
    assert_eq!((time.seconds, time.nanos), (7, 5));
    assert_eq!((&*http.method, &*http.path, &*http.host), ("GET", "/a?b=c", "web.app:80"));
    assert_eq!((http.size, &*http.protocol, &*http.scheme), (-1, "HTTP/1.1", "http"));
    assert_eq!(http.headers["x-a"], "1");
}

#[test]
fn a_body_is_shown_as_text_or_as_bytes() {
    let bytes = bytes::Bytes::from_static(b"a\xff");
    assert_eq!(http(Body::Text(bytes.clone())).1.body, "a\u{fffd}");
    assert_eq!(http(Body::Raw(bytes.clone())).1.raw_body, bytes);
}

fn option(name: &str, append: Option<bool>, action: i32) -> proto::HeaderValueOption {
    let header = proto::HeaderValue { key: name.into(), value: "v".into(), ..Default::default() };
    proto::HeaderValueOption { header: Some(header), append, append_action: action }
}

fn answer(code: i32, http_response: Option<proto::check_response::HttpResponse>) -> Vec<u8> {
    let status = Some(Status { code, ..Default::default() });
    proto::CheckResponse { status, http_response }.encode_to_vec()
}

#[test]
fn an_answer_changes_fields_as_in_envoy() {
    let options = || {
        vec![
            option("a", None, 0),
            option("b", Some(true), 0),
            option("c", Some(false), 0),
            option("d", None, 1),
            option("e", None, 2),
            option("f", None, 3),
        ]
    };
    let ok = proto::OkHttpResponse {
        headers: options(),
        headers_to_remove: vec!["cookie".into()],
        response_headers_to_add: options(),
        query_parameters_to_set: vec![proto::QueryParameter { key: "k".into(), value: "v".into() }],
        query_parameters_to_remove: vec!["token".into()],
    };
    let Ok(Verdict::Allowed(it)) = decode(&answer(0, Some(OkResponse(ok)))) else { panic!() };
    let hows = |all: &[FieldChange]| all.iter().map(|it| it.how).collect::<Vec<_>>();
    use Change::{Append, Set, SetIfAbsent, SetIfPresent};
    assert_eq!(hows(&it.request), [Set, Append, Set, SetIfAbsent, Set, SetIfPresent]);
    assert_eq!(hows(&it.response), [Append, Append, Set, SetIfAbsent, Set, SetIfPresent]);
    assert_eq!((it.remove, it.remove_parameters), (vec!["cookie".into()], vec!["token".into()]));
    assert_eq!(it.parameters, [("k".to_owned(), "v".to_owned())]);
}

#[test]
fn only_a_clear_answer_allows() {
    let denied = |code: i32| {
        let status = Some(proto::HttpStatus { code });
        DeniedResponse(proto::DeniedHttpResponse { status, headers: vec![], body: "no".into() })
    };
    let ok = || OkResponse(proto::OkHttpResponse::default());
    assert_eq!(decode(&answer(0, None)).unwrap(), Verdict::Allowed(Allowed::default()));
    assert_eq!(decode(&answer(0, Some(ok()))).unwrap(), Verdict::Allowed(Allowed::default()));
    assert_eq!(decode(&answer(7, None)).unwrap(), Verdict::Denied(Denied::default()));
    for (code, expected) in [(401, Some(401)), (302, Some(302)), (0, None), (99, None), (-1, None)]
    {
        let Ok(Verdict::Denied(it)) = decode(&answer(16, Some(denied(code)))) else { panic!() };
        assert_eq!((it.status, &*it.body), (expected, &b"no"[..]), "{code}");
    }
    assert!(matches!(decode(b""), Err(AnswerError::Empty)));
    let unsaid = |http_response| {
        decode(&proto::CheckResponse { status: None, http_response }.encode_to_vec())
    };
    assert!(matches!(unsaid(Some(ok())), Ok(Verdict::Allowed(_))));
    assert!(matches!(unsaid(Some(denied(401))), Ok(Verdict::Denied(_))));
    assert!(matches!(decode(b"\x0a\xff"), Err(AnswerError::Decode(_))));
    assert!(matches!(decode(&answer(0, Some(denied(401)))), Err(AnswerError::Contradiction)));
    assert!(matches!(decode(&answer(7, Some(ok()))), Err(AnswerError::Contradiction)));
    let headers = vec![option("a", None, 0); 300];
    let many = proto::OkHttpResponse { headers, ..Default::default() };
    assert!(matches!(decode(&answer(0, Some(OkResponse(many)))), Err(AnswerError::TooMany)));
    let headers = vec![proto::HeaderValueOption::default()];
    let unnamed = proto::OkHttpResponse { headers, ..Default::default() };
    assert!(matches!(decode(&answer(0, Some(OkResponse(unnamed)))), Err(AnswerError::NoField)));
}

proptest! {
    #[test]
    fn nothing_panics(bytes: Vec<u8>) {
        let _ = decode(&bytes);
    }
}
