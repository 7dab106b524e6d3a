//! What expressions of a Telemetry know of a request that has ended, or of a connection.
//!
//! What is not known has no value, so what an expression makes of it is an error: the request is
//! not logged, and a label is `unknown`.

use ambit_http::Path;
use ambit_http::engine::record::Record;
use ambit_model::expression::{Attributes, Value};

use super::entry::Entry;
use super::line::code_details;

impl Attributes for Entry<'_> {
    fn attribute(&self, name: &str) -> Option<Value<'_>> {
        let source = &self.arrival.source;
        Some(match name {
            "source.principal" => Value::text(source.identity()?.to_string()),
            "source.namespace" => Value::text(&*source.identity()?.namespace),
            "source.address" => Value::text(self.arrival.client.to_string()),
            "destination.principal" => Value::text(self.endpoint_identity()?.to_string()),
            "destination.service" => Value::text(&*self.service?.key.hostname),
            "destination.port" => Value::Int(self.arrival.destination.port().into()),
            "upstream.address" => Value::text(self.endpoint?.to_string()),
            "xds.route_name" => Value::text(self.route_name()?),
            "connection.mtls" => Value::Bool(source.identity().is_some()),
            "request.size" => whole(self.received_bytes),
            "response.size" => whole(self.sent_bytes),
            "request.duration_ms" => whole(self.duration.as_millis().try_into().ok()?),
            _ => return of_request(self, self.record?, name),
        })
    }
}

fn of_request<'a>(entry: &Entry<'a>, record: &'a Record, name: &str) -> Option<Value<'a>> {
    let field = |name| Some(Value::text(String::from_utf8_lossy(entry.field(name)?)));
    let head = record.head.as_ref();
    let path = || Some(head?.path().map_or("*", Path::as_str));
    let parts = || Some(path()?.split_once('?').unwrap_or((path()?, "")));
    Some(match name {
        "request.method" => Value::text(head?.method().as_str()),
        "request.path" => Value::text(path()?),
        "request.url_path" => Value::text(parts()?.0),
        "request.query" => Value::text(parts()?.1),
        "request.host" => Value::text(head?.authority().as_str()),
        "request.scheme" => Value::text(entry.arrival.scheme.as_str()),
        "request.protocol" => Value::text(record.protocol.as_str()),
        "request.headers" => Value::Fields(head?),
        "request.useragent" => field("user-agent")?,
        "request.referer" => field("referer")?,
        "request.id" => field("x-request-id")?,
        "response.code" => Value::Int(record.status.into()),
        "response.code_details" => Value::text(code_details(record)),
        "response.flags" => Value::text(record.flags.letters()),
        "response.grpc_status" => Value::Int(record.grpc_status?.into()),
        _ => return None,
    })
}

fn whole(number: u64) -> Value<'static> {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use ambit_model::expression::Expression;
    use ambit_model::http::telemetry::NAMES;
    use ambit_model::service::Service;

    use super::*;
    use crate::access_log::entry::Passage;
    use crate::access_log::fixture::{HEAD, arrival, names, record};

    #[test]
    fn expressions_see_the_request_and_the_answer() {
        let (names, arrival, mut record) = (names(), arrival(), record(HEAD));
        record.status = 503;
        let service = Service::named("shop", "web.shop.svc.t");
        let entry = Entry::of_request(&names, &arrival, &record, Some(&service));
        for (source, expected) in [
            ("response.code >= 500 && request.method == 'GET'", Some(true)),
            (
                "request.url_path == '/a' && request.query == 'b' && request.path == '/a?b'",
                Some(true),
            ),
            ("request.headers['user-agent'].startsWith('curl')", Some(true)),
            ("request.host == 'web:80' && request.id == '1'", Some(true)),
            ("source.principal == 'spiffe://t/ns/shop/sa/cart' && connection.mtls", Some(true)),
            ("destination.service == 'web.shop.svc.t' && destination.port == 80", Some(true)),
            ("response.size == 7 && response.flags == '-'", Some(true)),
            ("response.code < 400", Some(false)),
            ("request.headers['x-none'] == 'a'", None),
            ("has(response.grpc_status)", Some(false)),
        ] {
            let expression = Expression::condition(source, &NAMES).expect(source);
            assert_eq!(expression.holds(&entry).ok(), expected, "{source}");
        }
    }

    #[test]
    fn a_connection_has_neither_request_nor_response() {
        let (names, arrival) = (names(), arrival());
        let passage = Passage::new(&arrival);
        let entry = Entry::of_connection(&names, &passage, None, None);
        let holds =
            |source: &str| Expression::condition(source, &NAMES).expect(source).holds(&entry).ok();
        assert_eq!(holds("response.code >= 0"), None);
        assert_eq!(holds("has(request.method) || destination.port == 80"), Some(true));
    }

    #[test]
    fn every_name_is_one_that_is_looked_up() {
        let (names, arrival, mut record) = (names(), arrival(), record(HEAD));
        record.grpc_status = Some(0);
        let service = Service::named("shop", "web.shop.svc.t");
        let entry = Entry::of_request(&names, &arrival, &record, Some(&service));
        let missing: Vec<_> =
            NAMES.into_iter().filter(|name| entry.attribute(name).is_none()).collect();
        assert_eq!(missing, ["request.referer", "destination.principal", "upstream.address"]);
    }
}
