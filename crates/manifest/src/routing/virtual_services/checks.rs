//! What of a VirtualService is said to its author.

use std::collections::BTreeSet;

use super::super::backends::Whatever;
use super::{Around, VirtualRouting, virtual_service};
use crate::remarks::{self, Remark};
use crate::virtual_service::VirtualService;
use crate::{FieldPath, ObjectIssues};

/// Checks a VirtualService by itself, whatever it refers to.
pub(crate) fn check_virtual_service(service: &VirtualService, issues: &mut ObjectIssues) {
    let delegates = |_: &str, _: &str| None;
    let around = Around { backends: &Whatever, delegates: &delegates };
    remarks::report(&virtual_service(service, &around, None).remarks, issues);
    let at = FieldPath::at("spec");
    if !service.spec.is_of_mesh() {
        let what = "it is for Istio's gateways alone, and Ambit's are those of the Gateway API: \
                    nothing of it is in force";
        let remedy = "use a Gateway of gateway.networking.k8s.io with an HTTPRoute; for requests \
                      within the mesh add `mesh`";
        issues.warn(&at.field("gateways"), what, remedy);
    }
}

/// What of a VirtualService is wrong by itself or is not honoured, and what it refers to and is not
/// there, at any of the ports of the services that it names. A destination without a port has the
/// one at which requests come.
pub fn remarks_at_ports(
    service: &VirtualService,
    around: &Around<'_>,
) -> (Vec<Remark>, Vec<Remark>) {
    let namespace = service.metadata.namespace.as_deref().unwrap_or("default");
    let VirtualRouting { remarks, mut missing, .. } = virtual_service(service, around, None);
    let named = service.spec.hosts.iter().filter_map(|host| match host.contains('.') {
        true => around.backends.host(namespace, host),
        false => around.backends.service(namespace, host),
    });
    let ports: BTreeSet<u16> = named.flat_map(|it| it.ports).map(|it| it.number).collect();
    for port in ports {
        let more = virtual_service(service, around, Some(port)).missing;
        let more: Vec<Remark> = more.into_iter().filter(|it| !missing.contains(it)).collect();
        missing.extend(more);
    }
    (remarks, missing)
}
