//! Which objects a pod cannot start without: the ConfigMaps and Secrets that it names.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::volumes;

/// Plurals and names of the ConfigMaps and Secrets that a pod takes files or variables from.
pub(crate) fn references(pod: &Pod) -> BTreeSet<(&'static str, &str)> {
    let mut found: BTreeSet<_> = volumes::objects(pod).into_iter().collect();
    let spec = pod.spec.as_ref();
    let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let all = init.chain(spec.into_iter().flat_map(|spec| &spec.containers));
    for container in all {
        for source in container.env_from.iter().flatten() {
            found.extend(source.config_map_ref.as_ref().map(|it| ("configmaps", &*it.name)));
            found.extend(source.secret_ref.as_ref().map(|it| ("secrets", &*it.name)));
        }
        for source in container.env.iter().flatten().filter_map(|it| it.value_from.as_ref()) {
            found.extend(source.config_map_key_ref.as_ref().map(|it| ("configmaps", &*it.name)));
            found.extend(source.secret_key_ref.as_ref().map(|it| ("secrets", &*it.name)));
        }
    }
    found
}
