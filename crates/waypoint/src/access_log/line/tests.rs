//! Lines of requests, as formats ask for them.

use std::time::Duration;

use ambit_model::authorize::RuleName;
use ambit_model::names::PolicyName;
use ambit_model::service::Service;

use super::*;
use crate::access_log::fixture::{HEAD, arrival, names, record};

fn shown(format: &Format, record: &Record) -> String {
    let (names, arrival) = (names(), arrival());
    let service = Service::named("shop", "web.shop.svc.t");
    let mut entry = Entry::of_request(&names, &arrival, record, Some(&service));
    entry.started = UNIX_EPOCH + Duration::new(1_700_000_000, 12_345_678);
    entry.duration = Duration::from_millis(5);
    entry.endpoint = Some(SocketAddr::from(([10, 0, 0, 5], 8080)));
    line(format, &entry)
}

fn text(format: &str, record: &Record) -> String {
    shown(&Format::text(format).expect("a format"), record)
}

#[test]
fn istios_default_text_has_its_columns() {
    let expected = "[2023-11-14T22:13:20.012Z] \"GET /a?b HTTP/1.1\" 200 - via_upstream - \"-\" 0 \
                    7 5 3 \"-\" \"curl\" \"1\" \"web:80\" \"10.0.0.5:8080\" \
                    inbound-vip|80|http|web.shop.svc.t - 10.96.0.1:80 10.0.0.9:4000 - shop.web.2";
    assert_eq!(shown(&Format::default_text(), &record(HEAD)), expected);
}

#[test]
fn istios_default_json_has_its_keys_numbers_and_nulls() {
    let line = shown(&Format::default_json(), &record(HEAD));
    let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let expected = serde_json::json!({
        "start_time": "2023-11-14T22:13:20.012Z", "method": "GET", "path": "/a?b",
        "protocol": "HTTP/1.1", "response_code": 200, "response_flags": "-",
        "response_code_details": "via_upstream", "connection_termination_details": null,
        "upstream_transport_failure_reason": null, "bytes_received": 0, "bytes_sent": 7,
        "duration": 5, "upstream_service_time": "3", "x_forwarded_for": null,
        "user_agent": "curl", "request_id": "1", "authority": "web:80",
        "upstream_host": "10.0.0.5:8080",
        "upstream_cluster": "inbound-vip|80|http|web.shop.svc.t", "upstream_local_address": null,
        "downstream_local_address": "10.96.0.1:80", "downstream_remote_address": "10.0.0.9:4000",
        "requested_server_name": null, "route_name": "shop.web.2",
    });
    assert_eq!(value, expected);
}

#[test]
fn operators_show_what_they_name() {
    let mut record = record(HEAD);
    record.allowed_by = Some(RuleName { policy: PolicyName::new("shop", "readers"), rule: 0 });
    record.audits = vec![RuleName { policy: PolicyName::new("shop", "watch"), rule: 1 }];
    let check = |format: &str, expected: &str| assert_eq!(text(format, &record), expected);
    check("%REQ(X-None?USER-AGENT):2%", "cu");
    check("%START_TIME(%s.%6f %z)%", "1700000000.012345 +0000");
    check("%START_TIME(%F %T)%", "2023-11-14 22:13:20");
    check("%DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_REMOTE_PORT%", "spiffe://t/ns/shop/sa/cart 4000");
    check("%HOSTNAME% %RESP(:STATUS)% %RESP(x)%", "waypoint-1 200 -");
    check("%UPSTREAM_REQUEST_ATTEMPT_COUNT%%%", "1%");
    let (allowed, audit) = (record.allowed_by.as_ref(), &record.audits[0]);
    let expected = format!("\"{}\" \"{audit}\" -", allowed.expect("a rule"));
    check("\"%AMBIT_ALLOWED_BY%\" \"%AMBIT_AUDIT%\" %AMBIT_DRY_RUN%", &expected);
}

#[test]
fn a_path_that_a_route_has_changed_is_shown_as_it_came() {
    let mut record = record(HEAD);
    record.original_path = Some("/before".into());
    assert_eq!(text("%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %REQ(:PATH)%", &record), "/before /a?b");
}

#[test]
fn the_proxys_own_answers_have_envoys_words() {
    let mut record = record(HEAD);
    (record.status, record.flags) = (503, Flags::ConnectFailure);
    record.reason = "connect";
    record.details = "nobody listens".to_owned();
    let format = "%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\"";
    assert_eq!(text(format, &record), "UF connect{nobody_listens} \"nobody listens\"");
    record.reason = "denied";
    record.flags = Flags::Denied;
    record.details.clear();
    assert_eq!(text(format, &record), "UAEX rbac_access_denied \"-\"");
}

#[test]
fn a_client_can_write_no_line_column_or_value_of_its_own() {
    let agent = "a\" 200 \\ \u{202e}b\tc";
    let head = format!("GET / HTTP/1.1\r\nhost: web\r\nuser-agent: {agent}\r\n\r\n");
    let record = record(&head);
    let quoted = r#""a\" 200 \\ \u{202e}b\u{9}c""#;
    assert_eq!(text("\"%REQ(USER-AGENT)%\"", &record), quoted);
    let line = text("%REQ(USER-AGENT)% end", &record);
    assert!(line.starts_with(r#"a\"\u{20}200"#), "{line}");
    assert_eq!(line.matches(' ').count(), 1, "{line}");
    let json = shown(&Format::json([("a", "%REQ(USER-AGENT)%")]).expect("a format"), &record);
    assert!(json.chars().all(is_printable), "{json}");
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["a"], agent);
}

#[test]
fn values_and_lines_are_bounded() {
    let head = format!("GET / HTTP/1.1\r\nhost: web\r\nx: {}\r\n\r\n", "a".repeat(50_000));
    let record = record(&head);
    assert_eq!(text("%REQ(x)%", &record).len(), MAX_VALUE_CHARS);
    let line = text(&"%REQ(x)%".repeat(100), &record);
    assert!(line.len() < MAX_LINE_BYTES + MAX_VALUE_CHARS + 100, "{}", line.len());
}
