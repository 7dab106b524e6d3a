//! Routes of the Gateway API as written: HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, UDPRoute, and
//! ReferenceGrant, which lets them refer to other namespaces.
//!
//! The structs follow the definitions field by field, also where Ambit cannot honour a field: a
//! route must be understood well enough to say so. What is an enumeration there is text here, so
//! that a newer value makes one rule unusable and not the whole object. [`crate::routing`] says
//! what a route means. Nothing here may change a value while reading it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::istio::IstioObject;

/// The API group of routes and Gateways.
pub(crate) const GROUP: &str = "gateway.networking.k8s.io";

/// gateway.networking.k8s.io HTTPRoute.
pub type HttpRoute = IstioObject<RouteSpec<HttpRouteRule>>;
/// gateway.networking.k8s.io GRPCRoute.
pub type GrpcRoute = IstioObject<RouteSpec<GrpcRouteRule>>;
/// gateway.networking.k8s.io TLSRoute.
pub type TlsRoute = IstioObject<RouteSpec<BytesRouteRule>>;
/// gateway.networking.k8s.io TCPRoute.
pub type TcpRoute = IstioObject<RouteSpec<BytesRouteRule>>;
/// gateway.networking.k8s.io UDPRoute.
pub type UdpRoute = IstioObject<RouteSpec<BytesRouteRule>>;
/// gateway.networking.k8s.io ReferenceGrant.
pub type ReferenceGrant = IstioObject<ReferenceGrantSpec>;

/// The controller that answers for routes of services, in their status.
pub const MESH_CONTROLLER: &str = "istio.io/mesh-controller";

/// Reads the specification of a route of a cluster, whose definition may be newer than this
/// program; also returns what of it cannot be read. Its parents are known then too, if they can be
/// read, so that the route answers 500 where it was meant to hold.
pub fn read_route<R>(spec: Value) -> (RouteSpec<R>, Option<String>)
where
    R: Default + DeserializeOwned,
{
    let parents = spec.get("parentRefs").cloned().map(serde_json::from_value);
    let parents = || parents.and_then(Result::ok).unwrap_or_default();
    match read(spec) {
        Ok(read) => read,
        Err(problem) => {
            (RouteSpec { parent_refs: parents(), ..RouteSpec::default() }, Some(problem))
        }
    }
}

/// Reads the specification of a ReferenceGrant of a cluster. One that cannot be read grants
/// nothing.
pub fn read_grant(spec: Value) -> (ReferenceGrantSpec, Option<String>) {
    match read(spec) {
        Ok((spec, None)) => (spec, None),
        Ok((_, problem)) => (ReferenceGrantSpec::default(), problem),
        Err(problem) => (ReferenceGrantSpec::default(), Some(problem)),
    }
}

/// What can be read, and what cannot.
pub(crate) fn read<T: DeserializeOwned>(spec: Value) -> Result<(T, Option<String>), String> {
    let (read, unknown) = read_known(spec).map_err(|problem| format!("spec: {problem}"))?;
    let unknown: Vec<String> = unknown.iter().map(|field| format!("spec.{field}")).collect();
    let unknown = unknown.join(", ");
    Ok((read, (!unknown.is_empty()).then(|| format!("unknown fields: {unknown}"))))
}

/// What can be read, and the fields that are not known, as in `rules.0.newer`.
pub(crate) fn read_known<T: DeserializeOwned>(value: Value) -> Result<(T, Vec<String>), String> {
    let mut unknown = Vec::new();
    // `?` stands for what is optional.
    let note = |path: serde_ignored::Path<'_>| unknown.push(path.to_string().replace(".?", ""));
    let read = serde_ignored::deserialize(value, note).map_err(|error| error.to_string())?;
    Ok((read, unknown))
}

impl<R: Default> RouteSpec<R> {
    /// The hosts for which it is asked at a Gateway; none for all of a listener's.
    pub fn hosts(&self) -> &[String] {
        &self.hostnames
    }
}

impl RouteSpec<HttpRouteRule> {
    /// All backends and mirrors.
    pub fn backends(&self) -> impl Iterator<Item = &BackendRef> {
        self.rules.iter().flat_map(|rule| backends(&rule.backend_refs, &rule.filters))
    }
}

impl RouteSpec<GrpcRouteRule> {
    /// All backends and mirrors.
    pub fn backends(&self) -> impl Iterator<Item = &BackendRef> {
        self.rules.iter().flat_map(|rule| backends(&rule.backend_refs, &rule.filters))
    }
}

impl RouteSpec<BytesRouteRule> {
    /// All backends.
    pub fn backends(&self) -> impl Iterator<Item = &BackendRef> {
        self.rules.iter().flat_map(|rule| &rule.backend_refs)
    }
}

fn backends<'a>(
    written: &'a [BackendRef],
    filters: &'a [RouteFilter],
) -> impl Iterator<Item = &'a BackendRef> {
    let mirrors = filters.iter().filter_map(|filter| filter.request_mirror.as_ref());
    written.iter().chain(mirrors.map(|mirror| &mirror.backend_ref))
}

/// What a route attaches to, and its rules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteSpec<R: Default> {
    /// The services and Gateways whose requests it routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parent_refs: Vec<ParentRef>,
    /// Of a TLSRoute the names that a handshake must have one of; otherwise hosts at a Gateway,
    /// without effect at a service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hostnames: Vec<String>,
    /// Whether default Gateways are parents too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) use_default_gateways: Option<String>,
    /// The rules; none is one that matches everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rules: Vec<R>,
}

/// What a route attaches to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    /// The API group; that of Gateways when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// The kind; Gateway when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// The namespace; the route's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The name of a listener, or of a service's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) section_name: Option<String>,
    /// The port; every one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i64>,
}

/// One rule of an HTTPRoute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteRule {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Alternatives; none matches everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) matches: Vec<HttpRouteMatch>,
    /// What changes of requests and responses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<RouteFilter>,
    /// Where requests go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) backend_refs: Vec<BackendRef>,
    /// How long requests may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeouts: Option<RouteTimeouts>,
    /// When a failed attempt is made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RouteRetry>,
    /// What keeps the requests of one client with one endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_persistence: Option<SessionPersistence>,
}

/// One rule of a GRPCRoute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteRule {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Alternatives; none matches everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) matches: Vec<GrpcRouteMatch>,
    /// What changes of calls and responses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<RouteFilter>,
    /// Where calls go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) backend_refs: Vec<BackendRef>,
    /// What keeps the calls of one client with one endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_persistence: Option<SessionPersistence>,
}

/// One rule of a TLSRoute, TCPRoute or UDPRoute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BytesRouteRule {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Where connections go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) backend_refs: Vec<BackendRef>,
}

/// What a request must be; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HttpRouteMatch {
    /// The path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathMatch>,
    /// Fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<NamedMatch>,
    /// Parameters of the query.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) query_params: Vec<NamedMatch>,
    /// The method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
}

/// How a path is compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PathMatch {
    /// `Exact`, `PathPrefix` (when absent) or `RegularExpression`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// The path; `/` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
}

/// A value that is found by a name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NamedMatch {
    /// `Exact` (when absent) or `RegularExpression`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// The name.
    pub(crate) name: String,
    /// The value.
    pub(crate) value: String,
}

/// What a call must be; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GrpcRouteMatch {
    /// The method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<GrpcMethodMatch>,
    /// Fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<NamedMatch>,
}

/// Which methods of gRPC are meant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GrpcMethodMatch {
    /// `Exact` (when absent) or `RegularExpression`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// The service; every one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<String>,
    /// The method; every one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
}

/// A change of requests or responses. Exactly the field that `kind` names is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RouteFilter {
    /// Which filter it is.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Changes of the request's fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_header_modifier: Option<HeaderModifier>,
    /// Changes of the response's fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_header_modifier: Option<HeaderModifier>,
    /// Who else gets a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_mirror: Option<RequestMirror>,
    /// Where the client is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_redirect: Option<RequestRedirect>,
    /// What changes of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url_rewrite: Option<UrlRewrite>,
    /// Pages of which origins may ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cors: Option<CorsFilter>,
    /// Who is asked whether a request may pass; not honoured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) external_auth: Option<Value>,
    /// A filter of another API; not honoured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extension_ref: Option<Value>,
}

/// Changes of fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HeaderModifier {
    /// Replaced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<HeaderValue>,
    /// Added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) add: Vec<HeaderValue>,
    /// Removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) remove: Vec<String>,
}

/// A field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HeaderValue {
    /// Its name.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: String,
}

/// Who else gets a copy of requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RequestMirror {
    /// Who it is.
    pub(crate) backend_ref: BackendRef,
    /// The part of requests, in percent; all when neither this nor `fraction` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percent: Option<i64>,
    /// The part of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fraction: Option<MirrorFraction>,
}

/// A part of all requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MirrorFraction {
    /// So many ...
    pub(crate) numerator: i64,
    /// ... of so many; 100 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denominator: Option<i64>,
}

/// Where a client is sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RequestRedirect {
    /// `http` or `https`; the request's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheme: Option<String>,
    /// The host; the request's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    /// What changes of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathModifier>,
    /// The port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i64>,
    /// The status; 302 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status_code: Option<i64>,
}

/// A change of the target of requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct UrlRewrite {
    /// The new host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    /// What changes of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathModifier>,
}

/// A change of a path. Exactly the field that `kind` names is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// In place of all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replace_full_path: Option<String>,
    /// In place of the prefix that matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replace_prefix_match: Option<String>,
}

/// Pages of which origins may ask, and what they may read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CorsFilter {
    /// The origins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_origins: Vec<String>,
    /// Whether pages may send credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_credentials: Option<bool>,
    /// Methods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_methods: Vec<String>,
    /// Fields of requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_headers: Vec<String>,
    /// Fields of responses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) expose_headers: Vec<String>,
    /// How long a browser may remember the answer, in seconds; 5 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_age: Option<i64>,
}

/// A backend; a mirror has neither weight nor filters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendRef {
    /// The API group; core when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// The kind; Service when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name.
    pub name: String,
    /// The namespace; the route's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i64>,
    /// Its share of the sum of weights; 1 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<i64>,
    /// Changes of what goes there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<RouteFilter>,
}

/// How long requests may take, as durations of the Gateway API; `0s` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RouteTimeouts {
    /// All attempts together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<String>,
    /// One attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backend_request: Option<String>,
}

/// When a failed attempt is made again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RouteRetry {
    /// Statuses that count as failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) codes: Vec<i64>,
    /// Further attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempts: Option<i64>,
    /// The shortest pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backoff: Option<String>,
}

/// What keeps the requests of one client with one endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SessionPersistence {
    /// The name of the cookie or field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_name: Option<String>,
    /// How long it lasts from its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) absolute_timeout: Option<String>,
    /// How long it lasts without a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_timeout: Option<String>,
    /// `Cookie` (when absent) or `Header`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// How the cookie is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cookie_config: Option<CookieConfig>,
}

/// How a session's cookie is made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CookieConfig {
    /// `Session` (when absent) or `Permanent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lifetime_type: Option<String>,
}

/// Who may refer to objects of this namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReferenceGrantSpec {
    /// Objects that may; any of them.
    pub(crate) from: Vec<GrantFrom>,
    /// To which; any of them.
    pub(crate) to: Vec<GrantTo>,
}

/// Objects that may refer to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrantFrom {
    /// Their API group; empty for core.
    pub(crate) group: String,
    /// Their kind.
    pub(crate) kind: String,
    /// Their namespace.
    pub(crate) namespace: String,
}

impl GrantFrom {
    /// The Gateways of a namespace.
    pub fn of_gateways(namespace: &str) -> Self {
        Self::of("Gateway", namespace)
    }

    /// The ListenerSets of a namespace.
    pub(crate) fn of_listener_sets(namespace: &str) -> Self {
        Self::of("ListenerSet", namespace)
    }

    fn of(kind: &str, namespace: &str) -> Self {
        let (group, kind) = (GROUP.to_owned(), kind.to_owned());
        Self { group, kind, namespace: namespace.to_owned() }
    }

    /// Their kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Their namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Objects that may be referred to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GrantTo {
    /// Their API group; empty for core.
    pub(crate) group: String,
    /// Their kind.
    pub(crate) kind: String,
    /// The name of the only one that is meant; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_and_grants_nothing() {
        let parents = json!([{"group": "", "kind": "Service", "name": "web"}]);
        for (rules, expected) in [
            (json!([{"backendRefs": [{"name": "web", "port": 80}], "matches": []}]), None),
            (json!([{"newer": 1}]), Some("unknown fields: spec.rules.0.newer")),
            (json!([{"matches": "all"}]), Some("spec: invalid type: string \"all\"")),
        ] {
            let spec = json!({"parentRefs": parents, "rules": rules});
            let (read, problem) = read_route::<HttpRouteRule>(spec);
            assert_eq!(read.parent_refs[0].name, "web", "{rules}");
            let problem = problem.as_deref();
            let is_expected =
                expected.is_none_or(|it| problem.is_some_and(|is| is.starts_with(it)));
            assert_eq!((is_expected, problem.is_some()), (true, expected.is_some()), "{problem:?}");
        }
        let grant = json!({"from": [{"group": "a", "kind": "B", "namespace": "c"}], "to": []});
        assert_eq!(read_grant(grant.clone()).0.from.len(), 1);
        let mut newer = grant;
        newer["from"][0]["onlyIf"] = json!("x");
        let (read, problem) = read_grant(newer);
        assert_eq!((read, problem.is_some()), (ReferenceGrantSpec::default(), true));
    }
}
