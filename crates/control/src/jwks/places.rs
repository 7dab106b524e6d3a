//! Where a host of an issuer is.
//!
//! In a cluster names are resolved as control resolves any other, cluster DNS included. On one
//! machine control's DNS does not know the cluster's names: a Service of the mesh is asked at its
//! endpoints, which are taken from the view. Others are reached if the machine has a way out.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ambit_model::identity::Identity;
use ambit_model::names::ServiceName;
use ambit_model::workload::Tunnel;

use super::error::FetchError;
use crate::view_builder::Builder;
use crate::world::World;

/// How hosts are found.
pub(super) struct Places {
    pub(super) world: Arc<World>,
    /// Whether Services are asked at their endpoints; otherwise their names are resolved.
    pub(super) asks_endpoints: bool,
}

/// Where a host is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) ways: Vec<Way>,
    /// Whether it is a Service of the mesh.
    pub(super) is_of_mesh: bool,
}

/// One way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    /// The address and port that are asked.
    pub(super) address: SocketAddr,
    /// The identity of the captured pod there, which is reached by HBONE.
    pub(super) through: Option<Identity>,
}

impl Way {
    fn direct(address: SocketAddr) -> Self {
        Self { address, through: None }
    }
}

impl Places {
    /// Where `host`, in lower case, is.
    pub(super) async fn find(&self, host: &str, port: u16) -> Result<Found, FetchError> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            let ways = vec![Way::direct((ip, port).into())];
            return Ok(Found { ways, is_of_mesh: false });
        }
        let service = {
            let builder = self.world.read();
            service(&builder, host).map(|name| endpoints(&builder, &name, port))
        };
        match service {
            Some(ways) if self.asks_endpoints => match ways.is_empty() {
                true => Err(FetchError::NoEndpoint(host.to_owned())),
                false => Ok(Found { ways, is_of_mesh: true }),
            },
            service => {
                let resolved = tokio::net::lookup_host((host, port)).await;
                let failed = |source| FetchError::Name { host: host.to_owned(), source };
                let ways = resolved.map_err(failed)?.map(Way::direct).collect();
                Ok(Found { ways, is_of_mesh: service.is_some() })
            }
        }
    }
}

/// The Service that a host means, as cluster DNS understands it: `name.namespace`, also with
/// `.svc`, and with the domain behind that.
fn service(builder: &Builder, host: &str) -> Option<ServiceName> {
    let domain = &builder.mesh().domain;
    let mut labels = host.split('.');
    let namespace = labels.nth(1)?;
    let host = match labels.next() {
        None => format!("{host}.svc.{domain}"),
        Some("svc") if labels.next().is_none() => format!("{host}.{domain}"),
        Some(_) => host.to_owned(),
    };
    let known = builder.view().service_by_hostname(&host, namespace)?;
    // A ServiceEntry may take any name; whoever writes one must not so become part of the mesh.
    known.key.hostname.ends_with(&format!(".svc.{domain}")).then(|| known.key.clone())
}

/// The ways to a Service's endpoints that are ready.
fn endpoints(builder: &Builder, name: &ServiceName, port: u16) -> Vec<Way> {
    let view = builder.view();
    let Some(service) = view.service(name) else { return Vec::new() };
    let Some(mapping) = service.port(port) else { return Vec::new() };
    let Some(endpoints) = view.endpoints(name) else { return Vec::new() };
    let ready = endpoints.iter().filter(|it| it.healthy);
    let ways = ready.filter_map(|workload| {
        let own = workload.services.get(name)?.iter();
        let own = own.filter(|it| it.service_port == port).map(|it| it.target_port);
        let target = own.chain([mapping.target_port, port]).find(|it| *it > 0)?;
        let address = SocketAddr::new(*workload.addresses.first()?, target);
        let through = (workload.tunnel == Tunnel::Hbone).then(|| workload.identity());
        Some(Way { address, through })
    });
    ways.collect()
}
