//! Istio's VirtualService as written.
//!
//! The structs follow the definition field by field, also where Ambit cannot honour a field.
//! [`crate::routing`] says what its routes mean. Nothing here may change a value while reading it.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::istio::IstioObject;
use crate::routes;

/// networking.istio.io VirtualService.
pub type VirtualService = IstioObject<VirtualServiceSpec>;

/// Reads the specification of a VirtualService of a cluster, whose definition may be newer than
/// this program; also returns why it cannot be read at all. A route that cannot be read is lost by
/// itself. Of one that cannot be read at all the hosts are known, if they can be read, so that
/// their requests are answered with 500 where it was meant to hold.
pub fn read(mut spec: Value) -> (VirtualServiceSpec, Option<String>) {
    let hosts = spec.get("hosts").cloned().map(serde_json::from_value);
    let hosts = || hosts.and_then(Result::ok).unwrap_or_default();
    read_parts(&mut spec).map_or_else(
        |problem| (VirtualServiceSpec { hosts: hosts(), ..Default::default() }, Some(problem)),
        |spec| (spec, None),
    )
}

fn read_parts(spec: &mut Value) -> Result<VirtualServiceSpec, String> {
    let mut take = |name: &str| spec.as_object_mut().and_then(|fields| fields.remove(name));
    let of_http = |route, why| HttpRoute { unread: Some(why), ..route };
    let of_bytes = |route, why| BytesRoute { unread: Some(why), ..route };
    let http = each(take("http"), of_http).map_err(|why| format!("spec.http: {why}"))?;
    let tls = each(take("tls"), of_bytes).map_err(|why| format!("spec.tls: {why}"))?;
    let tcp = each(take("tcp"), of_bytes).map_err(|why| format!("spec.tcp: {why}"))?;
    let (read, unknown) =
        routes::read_known(spec.take()).map_err(|problem| format!("spec: {problem}"))?;
    Ok(VirtualServiceSpec { http, tls, tcp, unknown, ..read })
}

/// Reads each of some routes by itself. Of one that cannot be read it is still known what it is
/// for: what it matches is what can be read of its `match`, else everything.
fn each<R>(written: Option<Value>, unread: impl Fn(R, String) -> R) -> Result<Vec<R>, String>
where
    R: Default + DeserializeOwned,
{
    let written = match written {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(written)) => written,
        Some(_) => return Err("it is no list".to_owned()),
    };
    let read = written.into_iter().map(|route| {
        let matches = json!({"match": route.get("match").cloned().unwrap_or_else(|| json!([]))});
        match routes::read_known(route) {
            Ok((route, unknown)) if unknown.is_empty() => route,
            Ok((route, unknown)) => {
                unread(route, format!("this version does not know {}", unknown.join(", ")))
            }
            Err(problem) => {
                let known = routes::read_known(matches);
                unread(known.map(|(route, _)| route).unwrap_or_default(), problem)
            }
        }
    });
    Ok(read.collect())
}

/// The gateway that stands for the mesh's own clients.
const MESH: &str = "mesh";

/// Where requests to hosts go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualServiceSpec {
    /// The hosts; none for one that others delegate to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Where it is in force; the mesh when there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) gateways: Vec<String>,
    /// Routes of requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) http: Vec<HttpRoute>,
    /// Routes of TLS connections.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tls: Vec<BytesRoute>,
    /// Routes of other connections.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tcp: Vec<BytesRoute>,
    /// Namespaces whose clients it holds for; all when there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub export_to: Vec<String>,
    /// Fields beside these that a cluster has and this version does not know.
    #[serde(skip)]
    pub(crate) unknown: Vec<String>,
}

impl VirtualServiceSpec {
    /// Whether it holds for the mesh's own clients.
    pub fn is_of_mesh(&self) -> bool {
        self.gateways.is_empty() || self.gateways.iter().any(|it| it == MESH)
    }

    /// How many rules it has.
    pub fn rule_count(&self) -> usize {
        self.http.len() + self.tls.len() + self.tcp.len()
    }

    /// The hosts that its routes and mirrors send to, as written.
    pub fn destinations(&self) -> impl Iterator<Item = &str> {
        let of_http = self.http.iter().flat_map(|route| {
            let mirrors = route.mirrors.iter().filter_map(|it| it.destination.as_ref());
            let routes = route.route.iter().filter_map(|it| it.destination.as_ref());
            routes.chain(mirrors).chain(&route.mirror)
        });
        let of_bytes = self.tls.iter().chain(&self.tcp).flat_map(|route| &route.route);
        let of_bytes = of_bytes.filter_map(|it| it.destination.as_ref());
        of_http.chain(of_bytes).map(|it| it.host.as_str())
    }

    /// The VirtualServices that it delegates to.
    pub fn delegates(&self) -> impl Iterator<Item = &Delegate> {
        self.http.iter().filter_map(|route| route.delegate.as_ref())
    }
}

/// One route of requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRoute {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub(crate) matches: Vec<HttpMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) route: Vec<Weighted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redirect: Option<Redirect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) direct_response: Option<DirectResponse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delegate: Option<Delegate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rewrite: Option<Rewrite>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retries: Option<Retries>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<Fault>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mirror: Option<Destination>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) mirrors: Vec<MirrorPolicy>,
    #[serde(alias = "mirror_percent", skip_serializing_if = "Option::is_none")]
    pub(crate) mirror_percent: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mirror_percentage: Option<Percent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cors_policy: Option<CorsPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<Headers>,
    /// Why it cannot be read.
    #[serde(skip)]
    pub(crate) unread: Option<String>,
}

/// A VirtualService whose routes take the place of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Delegate {
    /// Its name.
    pub name: String,
    /// Its namespace; that of the one that delegates when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// How a text is compared; without anything it only has to be there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StringMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exact: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) regex: Option<String>,
}

/// What a request must be; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HttpMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uri: Option<StringMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheme: Option<StringMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<StringMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) authority: Option<StringMatch>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, StringMatch>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) without_headers: BTreeMap<String, StringMatch>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) query_params: BTreeMap<String, StringMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) source_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_namespace: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) gateways: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ignore_uri_case: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stat_prefix: Option<String>,
}

impl HttpMatch {
    /// Whether it is for the mesh's own clients.
    pub(crate) fn is_of_mesh(&self) -> bool {
        self.gateways.is_empty() || self.gateways.iter().any(|it| it == MESH)
    }
}

impl BytesMatch {
    /// Whether it is for the mesh's own clients.
    pub(crate) fn is_of_mesh(&self) -> bool {
        self.gateways.is_empty() || self.gateways.iter().any(|it| it == MESH)
    }
}

/// A place that requests go to, and its share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Weighted {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination: Option<Destination>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<Headers>,
}

/// A place that requests go to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Destination {
    pub(crate) host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<PortSelector>,
}

/// A port of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PortSelector {
    pub(crate) number: i64,
}

/// Where a client is sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Redirect {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_rewrite: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) authority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) derive_port: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheme: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redirect_code: Option<i64>,
}

/// An answer of the proxy's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DirectResponse {
    pub(crate) status: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<Body>,
}

/// The body of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) string: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<String>,
}

/// What changes of a request's target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rewrite {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) authority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uri_regex_rewrite: Option<RegexRewrite>,
}

/// What changes of the path, by an expression.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RegexRewrite {
    #[serde(rename = "match")]
    pub(crate) pattern: String,
    pub(crate) rewrite: String,
}

/// When a failed attempt is made again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Retries {
    pub(crate) attempts: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_try_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_on: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_remote_localities: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_ignore_previous_hosts: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backoff: Option<String>,
}

/// Faults that are made on purpose.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Fault {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay: Option<Delay>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) abort: Option<Abort>,
}

/// The request waits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Delay {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percentage: Option<Percent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percent: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixed_delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exponential_delay: Option<String>,
}

/// The request is answered by the proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Abort {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percentage: Option<Percent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_status: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grpc_status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http2_error: Option<String>,
}

/// A part of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Percent {
    pub(crate) value: f64,
}

/// Who else gets a copy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MirrorPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination: Option<Destination>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percentage: Option<Percent>,
}

/// How requests of pages of other origins are answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CorsPolicy {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_origin: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_origins: Vec<StringMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_methods: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_headers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) expose_headers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_age: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_credentials: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unmatched_preflights: Option<String>,
}

/// Changes of fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Headers {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<HeaderOperations>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response: Option<HeaderOperations>,
}

/// Changes of the fields of requests or of responses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HeaderOperations {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) set: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) add: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) remove: Vec<String>,
}

/// One route of connections that are no HTTP.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BytesRoute {
    #[serde(rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub(crate) matches: Vec<BytesMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) route: Vec<Weighted>,
    /// Why it cannot be read.
    #[serde(skip)]
    pub(crate) unread: Option<String>,
}

/// What a connection must be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BytesMatch {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sni_hosts: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) destination_subnets: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_subnet: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) source_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_namespace: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) gateways: Vec<String>,
}
