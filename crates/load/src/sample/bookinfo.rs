//! The application bookinfo: the four services of Istio's samples.
//!
//! `productpage` calls `details` and `reviews`, and `reviews` calls `ratings` from its second
//! version on. Paths, JSON and environment variables are the original's, so each of our services
//! can replace the original's, and the reverse. Behaviour that published experiments depend on has
//! its own flag: how details writes, and which connections productpage keeps.

pub(super) mod details;
mod page;
pub(super) mod productpage;
pub(super) mod ratings;
pub(super) mod reviews;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Bytes;

/// The port of every service of bookinfo.
const PORT: &str = "9080";
/// Header fields of a request that are forwarded to the services that it calls.
const FORWARDED: &[&str] = &[
    "authorization",
    "b3",
    "cookie",
    "end-user",
    "grpc-trace-bin",
    "jwt",
    "sw8",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-b3-flags",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-spanid",
    "x-b3-traceid",
    "x-cloud-trace-context",
    "x-datadog-parent-id",
    "x-datadog-sampling-priority",
    "x-datadog-trace-id",
    "x-ot-span-context",
    "x-request-id",
];

/// Variables that name no service.
#[derive(Debug, thiserror::Error)]
#[error(
    "{base:?} is no address of a service; correct {variables}_HOSTNAME, {variables}_SERVICE_PORT \
     or SERVICES_DOMAIN"
)]
pub(crate) struct ServiceError {
    base: String,
    variables: String,
}

/// A service that is called.
#[derive(Clone, Debug)]
struct Service {
    base: String,
}

impl Service {
    /// The service of this name, as far as the environment does not say otherwise.
    fn named(name: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, ServiceError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let variables = name.to_ascii_uppercase();
        let host = set(&format!("{variables}_HOSTNAME")).unwrap_or_else(|| name.to_owned());
        let domain = set("SERVICES_DOMAIN").map(|domain| format!(".{domain}")).unwrap_or_default();
        let port = set(&format!("{variables}_SERVICE_PORT")).unwrap_or_else(|| PORT.to_owned());
        let base = format!("http://{host}{domain}:{port}/{name}");
        let is_usable =
            base.parse::<Uri>().is_ok_and(|uri| uri.port_u16().is_some() && uri.host().is_some());
        if is_usable { Ok(Self { base }) } else { Err(ServiceError { base, variables }) }
    }

    /// The URI of its data about a product.
    fn of_product(&self, product: u32) -> Uri {
        let uri = format!("{}/{product}", self.base).parse();
        uri.expect("a number makes a URI no worse")
    }
}

/// The fields of a request that are passed on.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = HeaderMap::new();
    for (name, value) in headers {
        if FORWARDED.contains(&name.as_str()) {
            forwarded.append(name, value.clone());
        }
    }
    forwarded
}

/// The product that a path means after its prefix.
fn product(path: &str, prefix: &str) -> Option<u32> {
    path.strip_prefix(prefix)?.trim_end_matches('/').parse().ok()
}

fn response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    response(status, "application/json", body)
}

fn not_found() -> Response<Full<Bytes>> {
    json(StatusCode::NOT_FOUND, r#"{"error":"no such path"}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(environment: &[(&str, &str)], expected: Result<&str, &str>) {
        let variable = |name: &str| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let service = Service::named("details", variable);
        match (service, expected) {
            (Ok(service), Ok(expected)) => assert_eq!(service.of_product(7), *expected),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (service, _) => panic!("{service:?}"),
        }
    }

    #[test]
    fn services_are_where_the_variables_say() {
        check(&[], Ok("http://details:9080/details/7"));
        let all = [
            ("DETAILS_HOSTNAME", "d"),
            ("DETAILS_SERVICE_PORT", "80"),
            ("SERVICES_DOMAIN", "shop.svc"),
            ("REVIEWS_HOSTNAME", "r"),
        ];
        check(&all, Ok("http://d.shop.svc:80/details/7"));
        check(&[("DETAILS_SERVICE_PORT", "http")], Err("correct DETAILS_HOSTNAME"));
        check(&[("DETAILS_HOSTNAME", "a b")], Err("DETAILS_SERVICE_PORT"));
    }

    #[test]
    fn traces_are_passed_on_and_connections_are_not() {
        let mut headers = HeaderMap::new();
        for name in ["traceparent", "x-request-id", "connection", "accept"] {
            let name = header::HeaderName::from_static(name);
            headers.insert(name, HeaderValue::from_static("1"));
        }
        let mut names: Vec<_> = forwarded(&headers).keys().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(names, ["traceparent", "x-request-id"]);
    }
}
