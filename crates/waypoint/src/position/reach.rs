//! How endpoints are reached: which one is meant, and the mesh's own connection to it.

use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::sync::Arc;

use ambit_dataplane::choice::Around;
use ambit_dataplane::dial::{DialError, dial, dial_first, in_turn};
use ambit_dataplane::judgement::wait_for_view;
use ambit_dataplane::tunnel::{self, Ask};
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::hash_of;
use ambit_http::engine::position::{Arrival, Endpoint, EndpointAsk, Goal, Unreachable};
use ambit_model::Text;
use ambit_model::address::Reach;
use ambit_model::choice::By;
use ambit_model::http::certificate::Certificate;
use ambit_model::http::gateway::{ListenerSpeaks, Proof};
use ambit_model::http::rule::Destination;
use ambit_model::http::traffic::{Balancing, TrafficPolicy};
use ambit_model::plan::{Delivery, Flow, Lookup, Refusal};
use ambit_model::service::Service;
use ambit_model::view::View;
use ambit_model::workload::Workload;
use ambit_net::socket::unspecified_like;
use ambit_words::error_chain;
use tokio::net::TcpStream;

use super::here::{Here, namespace_of};
use crate::originate::Spoken;
use crate::watched::watch;

/// How an endpoint is reached, and whether TLS is spoken with it.
#[derive(Clone)]
pub(crate) struct Way {
    /// `None`: it is this very gateway, which does what the waypoint of a service does.
    pub(super) delivery: Option<Delivery>,
    pub(super) spoken: Option<Spoken>,
}

impl Here {
    /// The service that a goal means, and its port.
    pub(super) fn service<'v>(
        &self,
        view: &'v View,
        ask: &EndpointAsk<'_>,
    ) -> Result<Option<(&'v Arc<Service>, u16)>, Unreachable> {
        let destination = ask.arrival.destination;
        match ask.goal {
            Goal::Backend(Destination::Service { name, port, .. }) => {
                let service = view.service(name).ok_or_else(|| Unreachable {
                    reason: "no_service",
                    text: format!("service {name} is not known"),
                })?;
                Ok(Some((service, *port)))
            }
            Goal::Backend(Destination::Invalid(reason)) => {
                Err(Unreachable { reason: "no_backend", text: reason.to_string() })
            }
            Goal::Original => {
                let service = self.service_at(view, destination, namespace_of(ask.arrival));
                Ok(service.map(|service| (service, destination.port())))
            }
        }
    }

    /// The way to the workload that a client asks for by its address.
    pub(super) fn at_address(
        &self,
        view: &View,
        own: &Workload,
        arrival: &Arrival,
        around: &Around<'_>,
    ) -> Result<Endpoint<Way>, Unreachable> {
        let delivery = view.deliver_at(&own.network, arrival.destination, around);
        let endpoint = delivery.map(|it| self.endpoint(it, None, 1)).map_err(refused)?;
        self.refuse_around(view, arrival, &endpoint).map(|()| endpoint)
    }

    /// The way into this very gateway in place of the service's waypoint, or the way through
    /// another waypoint, if the service names one.
    pub(super) fn through(
        &self,
        view: &View,
        own: &Workload,
        ask: &EndpointAsk<'_>,
        (service, port): (&Arc<Service>, u16),
        around: &mut Around<'_>,
    ) -> Option<Result<Endpoint<Way>, Unreachable>> {
        if let Some(inside) = self.entering(view, ask, (service, port)) {
            return Some(inside);
        }
        let (source_ip, destination) = (self.shared.config.instance, ask.arrival.destination);
        let flow = Flow { source: own, source_ip, destination };
        let here = match self.entered(view, ask.arrival) {
            Some(entered) if entered.key == service.key => return None,
            // What its waypoint would reach without another one, this gateway does.
            Some(entered) if service.enters_at(&self.own_service) => entered.waypoint_service(),
            _ => None,
        };
        let here = here.unwrap_or(&self.own_service);
        let way = view.deliver_through(&flow, (service, port), here, around)?;
        if let Some(subset) = ask.goal.subset() {
            let key = &service.key;
            let text = format!("{key} has another waypoint, which knows no subset {subset}");
            return Some(Err(Unreachable { reason: "no_subset", text }));
        }
        Some(way.map(|it| self.endpoint(it, None, 1)).map_err(refused))
    }

    /// The TLS that is spoken with the endpoints of a port, if a rule asks for it; `host` is the
    /// name that they prove where the rule names none. There is none around what passes through
    /// this gateway as TLS.
    pub(crate) fn spoken(
        &self,
        view: &View,
        traffic: &TrafficPolicy,
        (service, port, host): (&Service, u16, &Text),
        arrival: &Arrival,
    ) -> Option<Spoken> {
        let origination = traffic.origination.as_ref()?;
        if self.passes_through(view, arrival) {
            return None;
        }
        let protocol = view.http_service(&service.key).map(|it| it.protocol(port));
        let protocol = protocol.unwrap_or_default();
        // The waypoint, in whose place this gateway may be, proves nothing.
        let is_own = self.entered(view, arrival).is_none();
        let gateway = self.gateway(view).filter(|_| is_own);
        let proof = gateway.map_or(&Proof::None, |it| &it.proof);
        Some(Spoken::new(origination, host, protocol, proof))
    }

    /// Whether a connection is TLS that passes through this gateway.
    fn passes_through(&self, view: &View, arrival: &Arrival) -> bool {
        let name = arrival.outside.as_ref().and_then(|it| it.server_name.as_ref());
        let Some((name, gateway)) = name.zip(self.gateway(view)) else { return false };
        let listener = gateway.named(arrival.destination.port(), name.as_deref());
        listener.is_some_and(|it| it.speaks == ListenerSpeaks::TlsPassthrough)
    }

    /// The certificate that proves this gateway; one that was just named may be under way.
    pub(super) async fn shown(&self, proof: &Proof) -> Option<Arc<Certificate>> {
        let Proof::Certificate(secret) = proof else { return None };
        let known = |view: &View| view.certificate(&self.own_service, secret).cloned();
        wait_for_view(&self.plane.mesh, known).await
    }

    /// What decides among endpoints.
    pub(super) fn by(&self, ask: &EndpointAsk<'_>, service: &Service, balancing: &Balancing) -> By {
        let has_affinity = service.load_balancing.client_affinity_seconds.is_some();
        match (ask.hash, balancing) {
            (Some(hash), _) => By::Hash(hash),
            // `sessionAffinity: ClientIP` of a Service, where no DestinationRule says otherwise.
            (None, Balancing::LeastRequest) if has_affinity => {
                By::Hash(hash_of(&ask.arrival.client.ip().to_string()))
            }
            (None, Balancing::Random) => By::Chance,
            (None, Balancing::RoundRobin) => {
                self.turns.set(self.turns.get().wrapping_add(1));
                By::Turn(self.turns.get())
            }
            (None, Balancing::LeastRequest | Balancing::Hash(_)) => By::Load,
        }
    }

    /// An endpoint, and how it is reached.
    pub(crate) fn endpoint(
        &self,
        delivery: Delivery,
        spoken: Option<Spoken>,
        alternatives: usize,
    ) -> Endpoint<Way> {
        let (uid, address, workload, kind) = match &delivery {
            Delivery::Local(target) | Delivery::Tunnel(target) => {
                let workload = &target.workload;
                (workload.uid.clone(), target.address, Some(workload.clone()), 1)
            }
            Delivery::Direct(direct) => {
                let named = direct.workload.as_ref().map(|it| it.uid.clone());
                let uid = named.unwrap_or_else(|| direct.address.to_string().into());
                (uid, direct.address, direct.workload.clone(), 0)
            }
            Delivery::Lookup(lookup) => {
                let workload = Some(lookup.workload.clone());
                // The hosts behind a wildcard have one name, and share no connections.
                let kind = self.hasher.hash_one(&lookup.host);
                (lookup.workload.uid.clone(), self.looked_up(lookup), workload, kind)
            }
        };
        // What is spoken in different ways shares no connection.
        let kind = spoken.as_ref().map_or(kind, |it| self.hasher.hash_one((kind, it)));
        let way = Way { delivery: Some(delivery), spoken };
        Endpoint { uid, address, workload, kind, alternatives, way }
    }

    /// The address of a name whose turn it is, as far as addresses are known.
    fn looked_up(&self, lookup: &Lookup) -> SocketAddr {
        let names = &self.plane.mesh.names;
        let found = names.known(&lookup.host);
        let known = found.and_then(|found| {
            let like = self.shared.config.instance;
            let network = &self.shared.config.network;
            let mut all = lookup.admitted(&self.view(), network, &found, like).ok()?;
            in_turn(&mut all, names.turn());
            all.first().copied()
        });
        known.unwrap_or_else(|| {
            SocketAddr::new(unspecified_like(self.shared.config.instance), lookup.port)
        })
    }

    /// Connects to the address that was chosen of a name, or to another of its addresses.
    async fn deliver_by_name(
        &self,
        lookup: &Lookup,
        chosen: SocketAddr,
    ) -> Result<TcpStream, Unreachable> {
        let lost = |reason, text| Unreachable { reason, text };
        let found = self.plane.mesh.names.addresses(&lookup.host).await;
        let found = found.map_err(|error| lost("lookup", error_chain(&error)))?;
        let (network, like) = (&self.shared.config.network, self.shared.config.instance);
        let admitted = lookup.admitted(&self.view(), network, &found, like);
        let mut all = admitted.map_err(|it| lost("name_leads_inside", it.to_string()))?;
        // In a stable way: the others keep their order.
        all.sort_by_key(|address| *address != chosen);
        let options = self.plane.dial_options(None);
        let dialled = dial_first(&self.served.own, &all, &options, |_| {}).await;
        dialled.map_err(|error| lost("connect", error_chain(&error)))
    }

    /// The policies that select an endpoint know no other client than this waypoint.
    fn denied(&self, endpoint: SocketAddr) -> Unreachable {
        let text = format!(
            "the policies that select {endpoint} do not admit this proxy, {}: attach them to \
             the Service with targetRefs, or let them allow it too",
            self.own_name
        );
        Unreachable { reason: Unreachable::DENIED, text }
    }

    /// Opens the mesh's own connection to an endpoint.
    pub(super) async fn deliver(
        &self,
        endpoint: &Endpoint<Way>,
        delivery: &Delivery,
    ) -> Result<BoxStream, Unreachable> {
        let unreachable = |reason, error: &dyn std::error::Error| {
            self.plane.balance.failed(&endpoint.uid);
            Unreachable { reason, text: error_chain(error) }
        };
        match delivery {
            Delivery::Local(target) | Delivery::Tunnel(target) => {
                let view = self.view();
                let Some(source) = self.shared.own.described_in(&view) else {
                    let text = "the control plane has not described this proxy".to_owned();
                    return Err(Unreachable { reason: "unknown_workload", text });
                };
                let ask = Ask {
                    source,
                    client: SocketAddr::new(self.shared.config.instance, 0),
                    authority: target.address,
                    service: target.service.as_deref(),
                    early: None,
                };
                let opened = tunnel::open(&self.plane, &self.served, target, &ask).await;
                let opened = opened.map_err(|error| match error {
                    DialError::Denied => self.denied(target.address),
                    error => unreachable("connect", &error),
                })?;
                let watched = watch(&self.plane, opened);
                let watched = watched.map_err(|revoked| unreachable("connect", &revoked))?;
                self.plane.balance.succeeded(&endpoint.uid);
                Ok(Box::new(watched))
            }
            Delivery::Direct(direct) => {
                // What answers there answers for this pod, and not for who asks.
                let owner = direct.service.as_ref().map(|it| &it.key.namespace);
                let is_link = Reach::of(direct.address.ip()) == Reach::Link;
                if is_link && owner != Some(&self.own_service.namespace) {
                    let text = format!("{} is on this proxy's own link", direct.address);
                    return Err(Unreachable { reason: "name_leads_inside", text });
                }
                let options = self.plane.dial_options(None);
                let dialled = dial(&self.served.own, direct.address, &options).await;
                Ok(Box::new(dialled.map_err(|error| unreachable("connect", &error))?))
            }
            Delivery::Lookup(lookup) => {
                let stream = Box::pin(self.deliver_by_name(lookup, endpoint.address)).await;
                let stream = stream.inspect_err(|_| self.plane.balance.failed(&endpoint.uid))?;
                self.plane.balance.succeeded(&endpoint.uid);
                Ok(Box::new(stream))
            }
        }
    }
}

/// The host that an endpoint of a service is: behind a wildcard the one that the client asks for.
pub(super) fn host_of<'a>(service: &'a Service, delivery: &'a Delivery) -> &'a Text {
    match delivery {
        Delivery::Lookup(lookup) if service.key.hostname.starts_with('*') => &lookup.host,
        _ => &service.key.hostname,
    }
}

pub(super) fn refused(refusal: Refusal) -> Unreachable {
    Unreachable { reason: "no_endpoint", text: refusal.to_string() }
}
