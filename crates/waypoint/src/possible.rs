//! Whether requests to a service can be sent at all, before an endpoint is chosen.

use ambit_http::engine::position::Unreachable;
use ambit_model::http::traffic::TrafficPolicy;
use ambit_model::names::ServiceName;
use ambit_model::view::View;

/// Refuses where requests would have to be sent in a way that is not possible.
pub(crate) fn refuse(
    view: &View,
    name: &ServiceName,
    subset: Option<&str>,
    traffic: &TrafficPolicy,
) -> Result<(), Unreachable> {
    if let Some(why) = &traffic.refusal {
        return Err(Unreachable { reason: "traffic_policy", text: why.to_string() });
    }
    let http = view.http_service(name);
    let is_missing = |it: &&str| http.is_some_and(|http| !http.subsets.contains_key(*it));
    if let Some(subset) = subset.filter(is_missing) {
        let text = format!("no DestinationRule of {name} has the subset {subset}");
        return Err(Unreachable { reason: "no_subset", text });
    }
    let check = http.and_then(|http| http.health_check.as_ref());
    if let Some(problem) = check.and_then(|check| check.problem.as_ref()) {
        let text = format!("the health checks of {name}: {problem}");
        return Err(Unreachable { reason: "health_check", text });
    }
    Ok(())
}
