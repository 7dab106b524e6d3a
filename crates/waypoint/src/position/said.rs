//! What is said of traffic to a service.

use std::sync::LazyLock;

use ambit_model::http::service::ServiceHttp;
use ambit_model::http::traffic::TrafficPolicy;
use ambit_model::names::ServiceName;
use ambit_model::view::View;

/// What holds for a destination of which nothing is said.
pub(super) static NO_TRAFFIC: LazyLock<TrafficPolicy> = LazyLock::new(TrafficPolicy::default);

/// Whether no policy is missing, of the service or of those to which its routes lead.
pub(super) fn is_whole(view: &View, http: &ServiceHttp) -> bool {
    let is_whole = |http| view.request_policies_of(http).all(|policy| policy.is_ok());
    // One of which nothing is known refuses its own share, and holds up nothing else.
    let mut routed = http.routed().filter_map(|name| view.http_service(name));
    is_whole(http) && routed.all(|http| is_whole(http))
}

pub(crate) fn traffic<'v>(
    view: &'v View,
    name: &ServiceName,
    port: u16,
    subset: Option<&str>,
) -> &'v TrafficPolicy {
    view.http_service(name).map_or(&*NO_TRAFFIC, |http| http.traffic(port, subset))
}
