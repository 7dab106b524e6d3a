//! Amounts of containers' resources, as variables and files get them (`resourceFieldRef`).
//!
//! Processors and memory that a container does not limit are all that its node has, as in
//! Kubernetes.

use std::collections::BTreeMap;

use ambit_manifest::quantity;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::sources::Place;

/// Processors are counted in thousandths.
const MILLI: i32 = -3;

/// The amount that a selector names, of the container that it names or else of its `own`. `None`
/// if there is no such container or resource.
pub(super) fn amount(
    selector: &ResourceFieldSelector,
    own: Option<&Container>,
    pod: &Pod,
    place: &Place<'_>,
) -> Option<String> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let container = match named {
        Some(name) => containers(pod).find(|container| container.name == name)?,
        None => own?,
    };
    let (list, resource) = selector.resource.split_once('.')?;
    let unit = if resource == "cpu" { MILLI } else { 0 };
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|it| it.limits.as_ref());
    let requests = resources.and_then(|it| it.requests.as_ref());
    let written = |amounts: Option<&BTreeMap<String, Quantity>>| {
        quantity(&amounts?.get(resource)?.0, unit).filter(|amount| *amount > 0)
    };
    let of_node = match resource {
        "cpu" => place.processor_count.saturating_mul(1000),
        "memory" => place.memory_bytes,
        _ => 0,
    };
    let amount = match list {
        "limits" => written(limits).unwrap_or(of_node),
        // What is limited and not requested is requested.
        "requests" => written(requests).or_else(|| written(limits)).unwrap_or(0),
        _ => return None,
    };
    let divisor = selector.divisor.as_ref().and_then(|divisor| quantity(&divisor.0, unit));
    let one = if resource == "cpu" { 1000 } else { 1 };
    Some(amount.div_ceil(divisor.filter(|it| *it > 0).unwrap_or(one)).to_string())
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    let main = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    init.into_iter().flatten().chain(main)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cgroups::Cgroups;
    use crate::image::ImageMap;
    use crate::layout::Layout;

    #[test]
    fn amounts_are_those_of_kubernetes() {
        let pod = json!({"spec": {
            "containers": [
                {"name": "c", "resources": {
                    "limits": {"cpu": "1500m", "memory": "64Mi"},
                    "requests": {"memory": "1M"},
                }},
                {"name": "free", "resources": {"limits": {"cpu": "0"}}},
            ],
            "initContainers": [{"name": "first", "resources": {"requests": {"cpu": "20m"}}}],
        }});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let place = Place {
            layout: &Layout::new("/state"),
            node: "node-1",
            host_ips: ["10.0.0.1".parse().expect("v4"), "fd00::1".parse().expect("v6")],
            pod_ips: &[],
            images: &ImageMap::default(),
            is_rootless: false,
            host_paths: &[],
            is_confined: false,
            cgroups: &Cgroups::default(),
            memory_bytes: 16 << 30,
            processor_count: 4,
        };
        let own = pod.spec.as_ref().and_then(|spec| spec.containers.first());
        let check = |container: &str, resource: &str, divisor: &str, expected: Option<&str>| {
            let selector = json!({
                "containerName": container, "resource": resource, "divisor": divisor,
            });
            let selector = serde_json::from_value(selector).expect("a selector");
            let found = amount(&selector, own, &pod, &place);
            assert_eq!(found.as_deref(), expected, "{container} {resource} {divisor}");
        };
        check("", "limits.cpu", "", Some("2"));
        check("", "limits.cpu", "1m", Some("1500"));
        check("c", "limits.memory", "0", Some("67108864"));
        check("c", "limits.memory", "1Mi", Some("64"));
        check("c", "requests.memory", "1Ki", Some("977"));
        check("c", "requests.cpu", "1m", Some("1500"));
        check("first", "requests.cpu", "1m", Some("20"));
        check("first", "requests.memory", "1", Some("0"));
        // What is not limited has all of the node.
        check("free", "limits.cpu", "1", Some("4"));
        check("free", "limits.memory", "1Gi", Some("16"));
        check("none", "limits.cpu", "1", None);
        check("c", "usage.cpu", "1", None);
    }
}
