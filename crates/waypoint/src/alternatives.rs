//! How many endpoints a request could go to.

use ambit_model::names::ServiceName;
use ambit_model::view::View;

/// How many endpoints there are to choose from: those of a service, or of a subset of it.
pub(crate) fn alternatives(view: &View, service: &ServiceName, subset: Option<&str>) -> usize {
    let all = view.endpoints(service).map_or(0, |it| it.len());
    let Some(name) = subset else { return all };
    let part = view.http_service(service).and_then(|http| http.subsets.get(name));
    part.map_or(0, |it| it.members().len().min(all))
}
