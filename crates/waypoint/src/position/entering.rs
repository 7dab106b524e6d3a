//! What enters a service at a gateway that does what the service's waypoint does.
//!
//! It is served as the waypoint would serve it, by the same engine: it comes in once more, over a
//! pipe within the thread, with the gateway as the client. So nothing that holds for the service
//! has a second form here.

use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::sync::Arc;

use ambit_http::Scheme;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{Arrival, Endpoint, EndpointAsk, Unreachable};
use ambit_model::Text;
use ambit_model::service::Service;
use ambit_model::view::View;
use ambit_words::labels::INGRESS_USE_WAYPOINT;

use super::here::{Here, namespace_of};
use super::reach::Way;
use crate::config::Place;

/// How many bytes wait in a pipe for who reads them.
const PIPE_BYTES: usize = 64 * 1024;

impl Here {
    /// Says who serves what comes in over pipes.
    pub(crate) fn serve_pipes(&self, serve: impl Fn(Arrival, BoxStream) + 'static) {
        let is_first = self.pipes.set(Box::new(serve)).is_ok();
        debug_assert!(is_first, "a position is of one thread");
    }

    fn is_gateway(&self) -> bool {
        self.shared.config.place == Place::Gateway
    }

    /// The service that a connection has entered here, where this gateway does what its waypoint
    /// does.
    pub(super) fn entered<'v>(
        &self,
        view: &'v View,
        arrival: &Arrival,
    ) -> Option<&'v Arc<Service>> {
        // A waypoint stands in for nobody, and is not to look.
        let is_inside = arrival.outside.is_none() && self.is_gateway();
        let inside = is_inside.then_some(arrival)?;
        let service = self.service_at(view, inside.destination, namespace_of(inside))?;
        service.enters_at(&self.own_service).then_some(service)
    }

    /// The namespace whose owners speak for all that this position stands before: that of the
    /// waypoint, in whose place it may be.
    pub(super) fn makers(&self, view: &View, arrival: &Arrival) -> Text {
        let waypoint = self.entered(view, arrival).and_then(|it| it.waypoint_service());
        waypoint.map_or_else(|| self.own_service.namespace.clone(), |it| it.namespace.clone())
    }

    /// The way into a service that what comes from outside enters here; `None` where it does not.
    pub(super) fn entering(
        &self,
        view: &View,
        ask: &EndpointAsk<'_>,
        (service, port): (&Arc<Service>, u16),
    ) -> Option<Result<Endpoint<Way>, Unreachable>> {
        if ask.arrival.outside.is_none() || !service.enters_at(&self.own_service) {
            return None;
        }
        let own = Some(&*self.own_service.namespace);
        if let Some(subset) = ask.goal.subset() {
            let key = &service.key;
            let text = format!("{key} is entered by its own routes, which know subset {subset}");
            return Some(Err(Unreachable { reason: "no_subset", text }));
        }
        let like = service.like(ask.arrival.destination.ip());
        let ip = service.addresses.iter().map(|it| it.address.ip);
        let ip = ip.clone().find(|ip| ip.is_ipv4() == like.is_ipv4()).or_else(|| ip.clone().next());
        let is_it = |ip: &_| {
            let address = SocketAddr::new(*ip, port);
            self.service_at(view, address, own).is_some_and(|it| it.key == service.key)
        };
        let Some(ip) = ip.filter(is_it) else {
            let text = format!("{} has no address at which this gateway may enter it", service.key);
            return Some(Err(Unreachable { reason: "no_address", text }));
        };
        let address = SocketAddr::new(ip, port);
        // Connections to the address itself, which have its name too, are never taken for pipes.
        let kind = self.hasher.hash_one("a pipe into this gateway");
        let (uid, workload, alternatives) = (address.to_string().into(), None, 1);
        let way = Way { delivery: None, spoken: None };
        Some(Ok(Endpoint { uid, address, workload, kind, alternatives, way }))
    }

    /// Refuses an endpoint that would take what comes from here for what was judged on entering a
    /// service that it did not enter.
    pub(crate) fn refuse_around(
        &self,
        view: &View,
        arrival: &Arrival,
        endpoint: &Endpoint<Way>,
    ) -> Result<(), Unreachable> {
        let workload = endpoint.workload.as_ref().filter(|_| self.is_gateway());
        let Some(workload) = workload else { return Ok(()) };
        let entered = || {
            let services = workload.services.keys().filter_map(|name| view.service(name));
            services.filter(|it| it.enters_at(&self.own_service))
        };
        let Some(service) = entered().next() else { return Ok(()) };
        let here = self.entered(view, arrival);
        if here.is_some_and(|here| entered().any(|it| it.waypoint == here.waypoint)) {
            return Ok(());
        }
        Err(Unreachable {
            reason: Unreachable::DENIED,
            text: format!(
                "{} is of service {} too, which has a waypoint: give the service that is asked for \
                 the same one, and the label {INGRESS_USE_WAYPOINT}: false",
                endpoint.address, service.key
            ),
        })
    }

    /// Opens a pipe into this very position, which serves it as it would serve a tunnel.
    pub(super) fn enter(&self, endpoint: &Endpoint<Way>) -> Result<BoxStream, Unreachable> {
        let Some(serve) = self.pipes.get() else {
            let text = "this gateway has just begun".to_owned();
            return Err(Unreachable { reason: "connect", text });
        };
        let (inner, outer) = tokio::io::duplex(PIPE_BYTES);
        let arrival = Arrival {
            source: self.shared.own_source(),
            workload: self.own(&self.view()).cloned(),
            client: SocketAddr::new(self.instance(), 0),
            destination: endpoint.address,
            scheme: Scheme::Http,
            outside: None,
        };
        serve(arrival, Box::new(inner));
        Ok(Box::new(outer))
    }
}
