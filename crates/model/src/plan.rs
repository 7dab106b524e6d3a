//! Outbound: where a connection goes.
//!
//! [`View::plan`] turns the original destination of a captured connection into a [`Plan`]. It is a
//! pure function: the caller passes in what it needs from its surroundings (which pods this proxy
//! serves, how busy endpoints are, randomness). It never sends traffic around a waypoint that a
//! service or workload names: if the waypoint cannot be found, the connection is refused.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ambit_words::ports;

use crate::Text;
use crate::address::{Reach, is_allocated, not_for_entries};
use crate::authorize::gateway_name;
use crate::choice::Surroundings;
use crate::fence::{Fenced, Undeclared, covers};
use crate::identity::Identity;
use crate::names::ServiceName;
use crate::service::{Mode, Service};
use crate::view::View;
use crate::workload::{GatewayAddress, GatewayDestination, Tunnel, Workload};

/// A captured connection: who opened it, and where it wanted to go.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// The workload that opened it.
    pub source: &'a Workload,
    /// The address it came from.
    pub source_ip: IpAddr,
    /// Where it wanted to go.
    pub destination: SocketAddr,
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// To a pod that this very proxy serves: joined in the kernel, after its own judgement.
    Local(Target),
    /// Through an HBONE tunnel to the destination's own port 15008.
    Tunnel(Target),
    /// Through an HBONE tunnel to a waypoint, which takes it from there.
    Waypoint {
        /// The waypoint's workload and address.
        waypoint: Target,
        /// The client's original destination, for the waypoint.
        destination: SocketAddr,
    },
    /// As plain TCP: the destination is not in the mesh.
    Direct(Direct),
    /// The same, where only its name is known: it is looked up first.
    Lookup(Lookup),
    /// Nowhere, unless something that is declared allows it: see [`Fenced`].
    Fenced(Fenced),
    /// Nowhere.
    Refuse(Refusal),
}

/// The way to one endpoint, whatever waypoint it names: the end of a plan, and how a waypoint sends
/// a request on.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// To a pod that this very proxy serves: joined in the kernel, after its own judgement.
    Local(Target),
    /// Through an HBONE tunnel to the destination's own port 15008.
    Tunnel(Target),
    /// As plain TCP: the destination is not in the mesh.
    Direct(Direct),
    /// The same, where only its name is known: it is looked up first.
    Lookup(Lookup),
}

impl From<Delivery> for Plan {
    fn from(delivery: Delivery) -> Self {
        match delivery {
            Delivery::Local(target) => Self::Local(target),
            Delivery::Tunnel(target) => Self::Tunnel(target),
            Delivery::Direct(direct) => Self::Direct(direct),
            Delivery::Lookup(lookup) => Self::Lookup(lookup),
        }
    }
}

/// A workload of the mesh as a destination.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The service through which it was chosen.
    pub service: Option<Arc<Service>>,
    /// The application's address and port.
    pub address: SocketAddr,
    /// The address of the tunnel.
    pub hbone: SocketAddr,
    /// The destination must prove one of these identities.
    pub identities: Vec<Identity>,
}

/// A destination that is not in the mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Direct {
    /// Where it is.
    pub address: SocketAddr,
    /// What the view knows of it.
    pub workload: Option<Arc<Workload>>,
    /// The service through which it was chosen.
    pub service: Option<Arc<Service>>,
}

/// A destination that is not in the mesh and that has a name but no address. Whoever looks the name
/// up asks [`Lookup::admitted`] which of the addresses may be connected to.
#[derive(Clone, Debug, PartialEq)]
pub struct Lookup {
    /// The name.
    pub host: Text,
    /// The port there.
    pub port: u16,
    /// What the view knows of it.
    pub workload: Arc<Workload>,
    /// The service through which it was chosen.
    pub service: Arc<Service>,
}

impl Lookup {
    /// Which of the addresses that a resolver has found may be connected to, those of the family of
    /// `like` first. Whoever answers for a name outside of the mesh must not lead into it, around
    /// its policies, nor to the proxy itself.
    pub fn admitted(
        &self,
        view: &View,
        network: &Text,
        found: &[IpAddr],
        like: IpAddr,
    ) -> Result<Vec<SocketAddr>, Refusal> {
        let mut inside = None;
        let mut admitted = Vec::with_capacity(found.len());
        for ip in found.iter().map(IpAddr::to_canonical) {
            match view.why_not_outside(network, ip) {
                None => admitted.push(SocketAddr::new(ip, self.port)),
                Some(why) => inside = inside.or(Some((ip, why))),
            }
        }
        admitted.sort_by_key(|it| it.is_ipv4() != like.is_ipv4());
        match inside {
            Some((ip, why)) if admitted.is_empty() => {
                Err(Refusal::NameLeadsInside { host: self.host.clone(), ip, why })
            }
            _ => Ok(admitted),
        }
    }
}

impl Fenced {
    /// The plan of a connection whose condition is looked at: `found` are the addresses to which
    /// the name leads that `service` is declared for.
    pub fn plan(
        &self,
        view: &View,
        network: &Text,
        (name, service): (&Text, &Arc<Service>),
        found: &[IpAddr],
    ) -> Result<Direct, Refusal> {
        let (address, ip) = (self.destination, self.destination.ip());
        if !found.iter().any(|it| it.to_canonical() == ip) {
            return Err(Undeclared::Elsewhere(name.clone(), address).into());
        }
        if service.has_waypoint() {
            return Err(Undeclared::AroundWaypoint(service.key.clone(), address).into());
        }
        if let Some(why) = view.why_not_outside(network, ip) {
            return Err(Refusal::NameLeadsInside { host: name.clone(), ip, why });
        }
        Ok(Direct { address, workload: None, service: Some(service.clone()) })
    }
}

impl From<Undeclared> for Refusal {
    fn from(undeclared: Undeclared) -> Self {
        Self::Undeclared(undeclared)
    }
}

/// Why a connection goes nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The service has no such port.
    NoPort(ServiceName, u16),
    /// The service has no endpoint that is ready and allowed.
    NoEndpoint(ServiceName),
    /// A route names a part of the service's endpoints that no DestinationRule describes.
    NoSubset(ServiceName, Text),
    /// The waypoint that the destination names cannot be found or has no ready endpoint.
    WaypointMissing {
        /// The waypoint as it is named.
        waypoint: String,
        /// What names it.
        named_by: String,
    },
    /// The destination names a waypoint that is none, or none for those who named it.
    WaypointRefused {
        /// The waypoint as it is named.
        waypoint: String,
        /// What names it.
        named_by: String,
    },
    /// The destination is on another network, which only a gateway reaches.
    OtherNetwork(Text),
    /// The chosen workload has no address that this client can reach.
    NoAddress(Text),
    /// The destination is the proxy's own port.
    ProxyPort(SocketAddr),
    /// The endpoint's address is no workload's, such as loopback: it would be the client itself.
    NoWorkloadAddress(SocketAddr),
    /// A name of an endpoint outside of the mesh leads to an address that is not outside.
    NameLeadsInside {
        /// The name.
        host: Text,
        /// The address.
        ip: IpAddr,
        /// What the address is.
        why: &'static str,
    },
    /// The service is a wildcard, and the client asks for no host below it.
    NoHost(ServiceName, Option<Text>),
    /// Only what is declared may be reached, and this is not.
    Undeclared(Undeclared),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPort(service, port) => write!(f, "service {service} has no port {port}"),
            Self::NoEndpoint(service) => {
                write!(f, "service {service} has no endpoint that is ready")
            }
            Self::NoSubset(service, subset) => {
                write!(f, "service {service} has no subset {subset}")
            }
            Self::WaypointMissing { waypoint, named_by } => write!(
                f,
                "{named_by} names waypoint {waypoint}, which has no ready endpoint; traffic is \
                 refused, not sent around it"
            ),
            Self::WaypointRefused { waypoint, named_by } => write!(
                f,
                "{named_by} names {waypoint} as its waypoint, which is no waypoint that it may \
                 use; traffic is refused, not sent around it"
            ),
            Self::OtherNetwork(network) => {
                write!(f, "the destination is on network {network:?}, to which no route is known")
            }
            Self::NoAddress(workload) => {
                write!(f, "workload {workload} has no address of this connection's family")
            }
            Self::ProxyPort(address) => write!(f, "{address} is the proxy's own port"),
            Self::NoWorkloadAddress(address) => {
                write!(f, "the endpoint's address {address} cannot be that of a workload")
            }
            Self::NameLeadsInside { host, ip, why } => {
                write!(f, "{host} leads to {ip}, which {why}: it is not outside of the mesh")
            }
            Self::NoHost(service, Some(host)) => {
                write!(f, "the client asks for {host}, which is no host of {service}")
            }
            Self::NoHost(service, None) => {
                write!(f, "the client asks for no host, and {service} has many")
            }
            Self::Undeclared(undeclared) => undeclared.fmt(f),
        }
    }
}

impl View {
    /// Decides where a captured connection goes.
    pub fn plan(&self, flow: &Flow<'_>, around: &mut impl Surroundings) -> Plan {
        let Flow { source, destination, .. } = *flow;
        let (network, ip) = (&source.network, destination.ip());
        // What is the client's own, no entry of anybody's takes over.
        if Reach::of(ip) == Reach::Host {
            return Plan::Direct(Direct { address: destination, workload: None, service: None });
        }
        if let Some(service) = self.service_meant(network, ip, &source.namespace) {
            return self.plan_service(flow, service, around).unwrap_or_else(Plan::Refuse);
        }
        if source.registry_only
            && let Some(plan) = self.plan_fenced(source, destination)
        {
            return plan;
        }
        let Some(workload) = self.workload_at(network, ip) else {
            return Plan::Direct(Direct { address: destination, workload: None, service: None });
        };
        let workload = workload.clone();
        if let Some(gateway) = &workload.waypoint {
            let named_by = format!("workload {}/{}", workload.namespace, workload.name);
            return self
                .plan_waypoint(flow, gateway, named_by, None, around)
                .unwrap_or_else(Plan::Refuse);
        }
        match self.deliver(workload, None, destination, around) {
            Ok(delivery) => delivery.into(),
            Err(refusal) => Plan::Refuse(refusal),
        }
    }

    fn plan_service(
        &self,
        flow: &Flow<'_>,
        service: &Arc<Service>,
        around: &mut impl Surroundings,
    ) -> Result<Plan, Refusal> {
        let passes = service.load_balancing.mode == Mode::Passthrough;
        let port = flow.destination.port();
        // Before its waypoint is asked, which takes every port of what makes no choice.
        if passes && flow.source.registry_only && service.port(port).is_none() {
            return Err(Refusal::NoPort(service.key.clone(), port));
        }
        if let Some(gateway) = chosen_waypoint(service, around) {
            return self.plan_through(flow, service, gateway, around);
        }
        if passes {
            return self
                .pass_through(flow.source, service, flow.destination, around)
                .map(Plan::from);
        }
        let (workload, target_port) = self.choose(flow, service, port, around)?;
        let like = flow.destination.ip();
        self.deliver_to(workload, target_port, service, (like, None), around).map(Plan::from)
    }

    /// The way through the waypoint that was drawn, or through another that has a share too if that
    /// one has no endpoint. One without a share gets nothing: then it would judge in place of the
    /// one that has all.
    fn plan_through(
        &self,
        flow: &Flow<'_>,
        service: &Arc<Service>,
        drawn: &GatewayAddress,
        around: &mut impl Surroundings,
    ) -> Result<Plan, Refusal> {
        let named_by = || format!("service {}", service.key);
        let planned = self.plan_waypoint(flow, drawn, named_by(), Some(service), around);
        if !matches!(planned, Err(Refusal::WaypointMissing { .. })) {
            return planned;
        }
        let others = service.weighted_waypoints.iter();
        let mut others = others.filter(|(gateway, weight)| *weight > 0 && gateway != drawn);
        let other = others.find_map(|(gateway, _)| {
            self.plan_waypoint(flow, gateway, named_by(), Some(service), around).ok()
        });
        other.map_or(planned, Ok)
    }

    /// The way to a port of a service through the waypoint that it names, for a position that does
    /// not stand before it and whose own service is `own`; `None` where it names none.
    pub fn deliver_through(
        &self,
        flow: &Flow<'_>,
        (service, port): (&Arc<Service>, u16),
        own: &ServiceName,
        around: &mut impl Surroundings,
    ) -> Option<Result<Delivery, Refusal>> {
        if self.is_fronted_by(service, own) {
            return None;
        }
        let gateway = chosen_waypoint(service, around)?;
        let addresses = || service.addresses.iter().map(|it| it.address.ip);
        let like = |ip: &IpAddr| ip.is_ipv4() == flow.destination.is_ipv4();
        let Some(ip) = addresses().find(like).or_else(|| addresses().next()) else {
            return Some(Err(Refusal::NoAddress(service.key.to_string().into())));
        };
        let flow = Flow { destination: SocketAddr::new(ip, port), ..*flow };
        Some(self.plan_through(&flow, service, gateway, around).and_then(|plan| match plan {
            Plan::Waypoint { waypoint, destination } => {
                Ok(Delivery::Tunnel(Target { address: destination, ..waypoint }))
            }
            Plan::Refuse(refusal) => Err(refusal),
            _ => Err(Refusal::NoEndpoint(service.key.clone())),
        }))
    }

    /// The way to the original destination, for a service that makes no choice.
    pub(crate) fn pass_through(
        &self,
        source: &Workload,
        service: &Arc<Service>,
        address: SocketAddr,
        around: &impl Surroundings,
    ) -> Result<Delivery, Refusal> {
        let service = Some(service.clone());
        match self.workload_at(&source.network, address.ip()) {
            Some(workload) => self.deliver(workload.clone(), service, address, around),
            None => Ok(Delivery::Direct(Direct { address, workload: None, service })),
        }
    }

    /// The way to the workload at an address, for the waypoint of that workload.
    pub fn deliver_at(
        &self,
        network: &Text,
        address: SocketAddr,
        around: &impl Surroundings,
    ) -> Result<Delivery, Refusal> {
        let workload = self.workload_at(network, address.ip());
        let workload = workload.ok_or(Refusal::NoWorkloadAddress(address))?;
        self.deliver(workload.clone(), None, address, around)
    }

    /// The way to an endpoint that was chosen, at its address in the family of `like` if it has
    /// one; behind a wildcard to the host that the client asks for.
    pub(crate) fn deliver_to(
        &self,
        workload: Arc<Workload>,
        target_port: u16,
        service: &Arc<Service>,
        (like, asked): (IpAddr, Option<&str>),
        around: &impl Surroundings,
    ) -> Result<Delivery, Refusal> {
        match address_for(&workload, like) {
            Some(ip) => {
                let address = SocketAddr::new(ip, target_port);
                self.deliver(workload, Some(service.clone()), address, around)
            }
            // Nothing says that whoever is behind a name is a workload of the mesh.
            None if !workload.hostname.is_empty() && workload.tunnel == Tunnel::None => {
                let host = host_meant(&workload.hostname, asked)
                    .ok_or_else(|| Refusal::NoHost(service.key.clone(), asked.map(Text::from)))?;
                let service = service.clone();
                Ok(Delivery::Lookup(Lookup { host, port: target_port, workload, service }))
            }
            None => Err(Refusal::NoAddress(workload.uid.clone())),
        }
    }

    /// The way to one workload, once its waypoint is out of the question.
    fn deliver(
        &self,
        workload: Arc<Workload>,
        service: Option<Arc<Service>>,
        address: SocketAddr,
        around: &impl Surroundings,
    ) -> Result<Delivery, Refusal> {
        if not_for_entries(address.ip()).is_some() {
            return Err(Refusal::NoWorkloadAddress(address));
        }
        let workload = self.enrolled_at(workload, address.ip());
        let identity = workload.identity();
        let enrolled = around.enrolled_identity(address.ip());
        // A pod that is enrolled here is in the mesh whatever the view says yet: in plain text its
        // policies would be asked without the client's identity.
        let is_in_mesh = workload.tunnel == Tunnel::Hbone || enrolled.is_some();
        if !is_in_mesh || workload.native_tunnel {
            return Ok(Delivery::Direct(Direct { address, workload: Some(workload), service }));
        }
        if ports::OF_PROXY.contains(&address.port()) {
            return Err(Refusal::ProxyPort(address));
        }
        let is_local = around.may_join() && enrolled == Some(&identity);
        let mut identities = vec![identity];
        let further = service.iter().flat_map(|service| service.subject_alt_names.iter());
        identities.extend(further.filter_map(|san| san.parse().ok()));
        let hbone = SocketAddr::new(address.ip(), ports::HBONE);
        let target = Target { workload, service, address, hbone, identities };
        Ok(if is_local { Delivery::Local(target) } else { Delivery::Tunnel(target) })
    }

    /// The pod at an address that another workload only borrows, such as an endpoint that a
    /// ServiceEntry lists: whichever object leads there, a pod of the mesh is reached through its
    /// tunnel.
    fn enrolled_at(&self, workload: Arc<Workload>, ip: IpAddr) -> Arc<Workload> {
        if workload.tunnel == Tunnel::Hbone {
            return workload;
        }
        let owner = self.workload_at(&workload.network, ip);
        owner.filter(|owner| owner.tunnel == Tunnel::Hbone).cloned().unwrap_or(workload)
    }

    /// The plan for an address that is of no service, for a client that may reach only what is
    /// declared; `None` where a workload that it may reach has the address.
    fn plan_fenced(&self, source: &Workload, destination: SocketAddr) -> Option<Plan> {
        let may_see = |service: &Service| {
            !service.namespace_only || service.key.namespace == source.namespace
        };
        let mut around = None;
        for workload in self.workloads_at(&source.network, destination.ip()) {
            if is_of_mesh(workload) {
                return None;
            }
            for (name, ports) in &*workload.services {
                let is_meant = ports.iter().any(|it| it.target_port == destination.port());
                let service = self.service(name).filter(|it| is_meant && may_see(it));
                match service {
                    Some(service) if service.has_waypoint() => around = Some(name),
                    Some(_) => return None,
                    None => {}
                }
            }
        }
        if let Some(service) = around {
            let refusal = Undeclared::AroundWaypoint(service.clone(), destination);
            return Some(Plan::Refuse(refusal.into()));
        }
        let declared = self.declared_at(destination.port()).filter(|it| may_see(it));
        let mut declared: Vec<_> = declared.cloned().collect();
        // What the client's own namespace declares decides before what others do.
        declared.sort_by_key(|it| it.key.namespace != source.namespace);
        let fenced = Fenced::new(destination, &source.namespace, declared);
        let unknown = || Plan::Refuse(Undeclared::Address(destination).into());
        Some(fenced.map_or_else(unknown, Plan::Fenced))
    }

    /// Why an address cannot be that of something outside of the mesh; `None` when it can. What
    /// somebody else declares of an address does not make it the mesh's.
    fn why_not_outside(&self, network: &Text, ip: IpAddr) -> Option<&'static str> {
        match Reach::of(ip) {
            Reach::Host => return Some("means the client itself"),
            Reach::Group => return Some("is not the address of one server"),
            Reach::Link => return Some("is on the node's own link"),
            Reach::Far => {}
        }
        if is_allocated(ip) || self.is_canonical_at(network, ip) {
            return Some("is a service's");
        }
        let is_inside = |it: &Arc<Workload>| {
            !it.host_network && (it.is_pod() || it.tunnel != Tunnel::None || it.waypoint.is_some())
        };
        self.workloads_at(network, ip).any(is_inside).then_some("is a workload's")
    }

    fn plan_waypoint(
        &self,
        flow: &Flow<'_>,
        gateway: &GatewayAddress,
        named_by: String,
        service: Option<&Arc<Service>>,
        around: &mut impl Surroundings,
    ) -> Result<Plan, Refusal> {
        let waypoint = gateway_name(gateway);
        if let GatewayDestination::Refused(_) = gateway.destination {
            return Err(Refusal::WaypointRefused { waypoint, named_by });
        }
        let missing = || Refusal::WaypointMissing { waypoint, named_by };
        let Some(workload) = self.gateway_workload(flow, gateway, around) else {
            return Err(missing());
        };
        let Some(ip) = address_for(&workload, flow.destination.ip()) else {
            return Err(missing());
        };
        let hbone = SocketAddr::new(ip, gateway.hbone_mtls_port);
        let identities = vec![workload.identity()];
        let service = service.cloned();
        let waypoint = Target { workload, service, address: hbone, hbone, identities };
        Ok(Plan::Waypoint { waypoint, destination: flow.destination })
    }

    fn gateway_workload(
        &self,
        flow: &Flow<'_>,
        gateway: &GatewayAddress,
        around: &mut impl Surroundings,
    ) -> Option<Arc<Workload>> {
        let service = match &gateway.destination {
            GatewayDestination::Hostname(name) => self.service(name)?,
            GatewayDestination::Refused(_) => return None,
            GatewayDestination::Address(address) => {
                let at = self.service_at(&address.network, address.ip, &flow.source.namespace);
                match at {
                    Some(service) => service,
                    None => return self.workload_at(&address.network, address.ip).cloned(),
                }
            }
        };
        let port = gateway.hbone_mtls_port;
        self.choose(flow, service, port, around).ok().map(|(workload, _)| workload)
    }
}

/// Whether a workload is the mesh's own, or an entry that stands for itself, so that no service has
/// to lead there.
fn is_of_mesh(workload: &Workload) -> bool {
    let is_alone = workload.services.is_empty() && !workload.is_pod();
    workload.is_pod() && !workload.host_network
        || workload.tunnel != Tunnel::None
        || workload.waypoint.is_some()
        || is_alone
}

/// The host that is looked up for an endpoint that is a name: behind a wildcard the one that the
/// client asks for, if the wildcard covers it.
fn host_meant(hostname: &Text, asked: Option<&str>) -> Option<Text> {
    if !hostname.starts_with('*') {
        return Some(hostname.clone());
    }
    asked.filter(|asked| covers(hostname, asked)).map(|asked| asked.to_ascii_lowercase().into())
}

/// The waypoint of a service, one of several by weight.
fn chosen_waypoint<'a>(
    service: &'a Service,
    around: &mut impl Surroundings,
) -> Option<&'a GatewayAddress> {
    let total: u64 = service.weighted_waypoints.iter().map(|(_, w)| u64::from(*w)).sum();
    if total == 0 {
        return service.waypoint.as_ref();
    }
    let mut at = around.random_below(total);
    for (gateway, weight) in &service.weighted_waypoints {
        match at.checked_sub(u64::from(*weight)) {
            Some(rest) => at = rest,
            None => return Some(gateway),
        }
    }
    service.waypoint.as_ref()
}

/// The address of a workload in the family of the original destination, or any it has.
fn address_for(workload: &Workload, like: IpAddr) -> Option<IpAddr> {
    let same = workload.addresses.iter().find(|ip| ip.is_ipv4() == like.is_ipv4());
    same.or(workload.addresses.first()).copied()
}
