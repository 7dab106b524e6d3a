//! One thread's place in the mesh: whose it is, what it stands before, and who is told of what
//! passes.

use std::cell::{Cell, OnceCell, RefCell};
use std::hash::RandomState;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use ambit_dataplane::judgement::wait_for_view;
use ambit_dataplane::metrics::Reporter;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::Plane;
use ambit_dataplane::record::{Counted, Record as TcpRecord};
use ambit_http::Scheme;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{Arrival, Goal, Rules as _};
use ambit_model::http::gateway::Gateway;
use ambit_model::http::rule::{Destination, Origin};
use ambit_model::http::service::{Protocol, ServiceHttp};
use ambit_model::http::telemetry::Telemetry;
use ambit_model::identity::Identity;
use ambit_model::names::ServiceName;
use ambit_model::service::Service;
use ambit_model::view::View;
use ambit_model::workload::Workload;

use super::holds::Holds;
use crate::access_log::{Entry, Passage};
use crate::hello::ServerName;
use crate::newcomers::Newcomers;
use crate::originate::Originators;
use crate::refused::Refused;
use crate::reports::Reports;
use crate::shared::Shared;
use crate::telemetry::Remembered;
use crate::wellness::Wellness;

/// Serves one end of a pipe, with what is known of who has the other.
type Pipes = Box<dyn Fn(Arrival, BoxStream)>;

/// The position of one thread.
pub(crate) struct Here {
    pub(super) shared: Arc<Shared>,
    pub(super) plane: Rc<Plane>,
    pub(super) served: Rc<Served>,
    pub(super) own_service: ServiceName,
    pub(super) own_name: String,
    /// What clients say is hashed by it, and nobody may choose what collides.
    pub(super) hasher: RandomState,
    pub(super) random: Cell<u64>,
    pub(super) turns: Cell<u64>,
    pub(super) arrivals: Newcomers,
    pub(super) originators: Originators,
    pub(super) remembered: RefCell<Remembered>,
    /// Who serves what enters a service here, over a pipe.
    pub(super) pipes: OnceCell<Pipes>,
}

/// What a CONNECT asks for.
pub(crate) struct Meant {
    /// Whether this waypoint stands before it.
    pub(crate) is_ours: bool,
    /// The service that is there, of another namespace than the client's and for that one alone.
    pub(crate) private: Option<ServiceName>,
    /// What is spoken there.
    pub(crate) protocol: Protocol,
}

/// Where a connection comes in, as far as it says what holds for it.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    /// The address.
    destination: SocketAddr,
    /// The client's namespace, if it has proven one.
    client: Option<&'a str>,
    /// It is a listener of this gateway's, and not what this position stands before.
    is_outside: bool,
}

impl<'a> At<'a> {
    pub(super) fn of(arrival: &'a Arrival) -> Self {
        let is_outside = arrival.outside.is_some();
        Self { destination: arrival.destination, client: namespace_of(arrival), is_outside }
    }
}

/// The namespace of a client that has proven one.
pub(super) fn namespace_of(arrival: &Arrival) -> Option<&str> {
    arrival.source.identity().map(|it| &*it.namespace)
}

impl Here {
    pub(crate) fn new(shared: Arc<Shared>, plane: Rc<Plane>, served: Rc<Served>) -> Self {
        let own_service = shared.config.own_service();
        let own_name = shared.own.identity.to_string();
        let random = Cell::new(rand::random::<u64>() | 1);
        let turns = Cell::new(0);
        let (arrivals, originators) = (Newcomers::default(), Originators::default());
        let remembered = RefCell::default();
        Self {
            shared,
            plane,
            served,
            own_service,
            own_name,
            hasher: RandomState::new(),
            random,
            turns,
            arrivals,
            originators,
            remembered,
            pipes: OnceCell::new(),
        }
    }

    /// What holds now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.plane.mesh.view.load_full()
    }

    /// Which endpoints get no requests.
    pub(crate) fn wellness(&self) -> &Wellness {
        &self.shared.wellness
    }

    /// The address of this pod.
    pub(crate) fn instance(&self) -> IpAddr {
        self.shared.config.instance
    }

    /// This waypoint as a view describes it.
    pub(crate) fn own<'v>(&self, view: &'v View) -> Option<&'v Arc<Workload>> {
        self.shared.own.described_in(view)
    }

    /// What is behind an address: what holds for it is said of its service, and for a workload of
    /// this waypoint's own service. At a gateway it is what holds at the listeners of a port.
    /// A service that is for one namespace alone is there for clients of that one only, which the
    /// client's own proxy is not trusted to know.
    pub(super) fn name_of(&self, view: &View, at: At<'_>) -> Option<ServiceName> {
        let At { destination, client, is_outside } = at;
        let network = &self.shared.config.network;
        let own = || self.own_service.clone();
        if is_outside {
            let listens = |it: &Arc<Gateway>| it.listens_at(destination.port());
            return self.gateway(view).is_some_and(listens).then(own);
        }
        if let Some(service) = self.service_at(view, destination, client) {
            return view.is_served_by(service, &self.own_service).then(|| service.key.clone());
        }
        let workload = view.workload_at(network, destination.ip())?;
        view.is_workload_fronted_by(workload, &self.own_service).then(own)
    }

    /// The service at an address, as the client sees it.
    pub(super) fn service_at<'v>(
        &self,
        view: &'v View,
        destination: SocketAddr,
        client: Option<&str>,
    ) -> Option<&'v Arc<Service>> {
        let config = &self.shared.config;
        let from = client.unwrap_or(&config.namespace);
        view.service_meant(&config.network, destination.ip(), from)
    }

    /// What this gateway serves.
    pub(crate) fn gateway<'v>(&self, view: &'v View) -> Option<&'v Arc<Gateway>> {
        view.gateway(&self.own_service)
    }

    /// Whether this waypoint does not stand before an address, or does so no more.
    pub(crate) fn is_withdrawn(&self, arrival: &Arrival) -> bool {
        self.name_of(&self.view(), At::of(arrival)).is_none()
    }

    /// The view in which this waypoint stood before an address until a moment ago, if the present
    /// one does not say so: clients whose proxies have not heard of it still come.
    pub(super) fn left(&self, at: At<'_>) -> Option<Arc<View>> {
        let stood = |view: &Arc<View>| self.http_of(view, at).map(|_| view.clone());
        if stood(&self.view()).is_some() { None } else { self.plane.mesh.lately.find(stood) }
    }

    pub(super) fn http_of<'v>(&self, view: &'v View, at: At<'_>) -> Option<&'v Arc<ServiceHttp>> {
        view.http_service(&self.name_of(view, at)?)
    }

    /// Waits until the view says whose an address is.
    pub(crate) async fn meant(&self, destination: SocketAddr, client: &Identity) -> Meant {
        let namespace = Some(&*client.namespace);
        let at = At { destination, client: namespace, is_outside: false };
        let look = |view: &View| {
            let Some(name) = self.name_of(view, at) else {
                let network = &self.shared.config.network;
                let service = view.private_at(network, destination.ip(), &client.namespace)?;
                let is_ours = view.is_served_by(service, &self.own_service);
                return is_ours.then(|| Err(service.key.clone()));
            };
            let http = view.http_service(&name);
            Some(Ok(http.map(|http| http.served_as(destination.port(), namespace))))
        };
        // What is for others now is so at once, whatever was before.
        let found = match (look(&self.view()), self.left(at)) {
            (Some(Err(private)), _) => Some(Err(private)),
            (_, Some(before)) => look(&before),
            (_, None) => wait_for_view(&self.plane.mesh, look).await,
        };
        let not_ours = Meant { is_ours: false, private: None, protocol: Protocol::Detect };
        match found {
            None => not_ours,
            Some(Err(private)) => Meant { private: Some(private), ..not_ours },
            Some(Ok(protocol)) => {
                Meant { is_ours: true, private: None, protocol: protocol.unwrap_or_default() }
            }
        }
    }

    /// The workload of a client, if what it has proven is what the view says of its address.
    pub(crate) fn client(&self, identity: &Identity, ip: IpAddr) -> Option<Arc<Workload>> {
        let view = self.view();
        let workload = view.workload_at(&self.shared.config.network, ip)?;
        (workload.identity() == *identity).then(|| workload.clone())
    }

    /// Counts up when a judgement may come out otherwise.
    pub(crate) fn policies_version(&self) -> u64 {
        self.view().authorization_version()
    }

    /// Why a connection that is no HTTP may not pass, if it may not.
    pub(crate) fn judge_bytes(
        &self,
        holds: &Holds,
        arrival: &Arrival,
        name: &ServerName,
    ) -> Option<String> {
        let judged = holds.passing(arrival, name).judge(&holds.view, &holds.http);
        judged.err().map(|why| why.to_string())
    }

    /// The same of where a route sends it on to, in another namespace.
    pub(crate) fn judge_bytes_elsewhere(
        &self,
        holds: &Holds,
        arrival: &Arrival,
        name: &ServerName,
        (to, by): (&Goal<'_>, Option<&Origin>),
    ) -> Option<String> {
        if holds.gateway.is_some() {
            return None;
        }
        let Goal::Backend(Destination::Service { name: service, port, .. }) = to else {
            return None;
        };
        let passing = holds.passing(arrival, name);
        let is_own = by.is_none_or(|by| holds.is_own(by));
        let from = (&*holds.http, is_own);
        let judged = passing.judge_elsewhere(&holds.view, from, (service, *port));
        judged.err().map(|why| why.to_string())
    }

    /// A connection that is no HTTP has ended; `error` says why, if not by itself.
    pub(crate) fn record_bytes(&self, passage: &Passage<'_>, error: Option<&str>) {
        let view = self.view();
        let (service, reports) = (self.asked(&view, passage.arrival), &self.shared.reports);
        let service = service.map(|it| &**it);
        let entry = Entry::of_connection(&reports.names, passage, service, error);
        reports.log(self.telemetry(&view, passage.arrival), &entry);
    }

    /// A connection that is no HTTP came to nothing: counts it and logs it.
    pub(crate) fn refuse_bytes(&self, passage: &Passage<'_>, refused: &Refused) {
        let record = self.tcp_record(passage);
        record.count_refused(&self.plane.tally, refused.flags, refused.reason);
        self.record_bytes(passage, Some(&refused.text));
    }

    /// Datagrams of a client came to nothing: counts it and logs it. They are no connection, so
    /// metrics of connections do not have them.
    pub(crate) fn refuse_datagrams(&self, passage: &Passage<'_>, refused: &Refused) {
        self.plane.tally.metrics().refused(Reporter::Waypoint, refused.reason);
        self.record_bytes(passage, Some(&refused.text));
    }

    /// Counts a connection that is no HTTP, for as long as what is returned lives.
    pub(crate) fn count_bytes(&self, passage: &Passage<'_>) -> Counted {
        self.tcp_record(passage).count_opened(&self.plane.tally)
    }

    /// A connection that is no HTTP, as metrics of connections have it.
    fn tcp_record(&self, passage: &Passage<'_>) -> TcpRecord {
        let (view, arrival) = (self.view(), passage.arrival);
        let named = passage.service.and_then(|name| view.service(name));
        let service = named.or_else(|| self.asked(&view, arrival)).cloned();
        let to = passage.endpoint.unwrap_or(arrival.destination);
        let mut record = TcpRecord::new(Reporter::Waypoint, arrival.client, to);
        record.source.workload = arrival.workload.clone();
        record.source.identity = arrival.source.identity().cloned();
        record.destination.identity = passage.workload.as_ref().map(|it| it.identity());
        record.destination.workload = passage.workload.clone();
        record.service = service;
        record
    }

    /// The service that a client has asked for.
    pub(super) fn asked<'v>(&self, view: &'v View, arrival: &Arrival) -> Option<&'v Arc<Service>> {
        self.service_at(view, arrival.destination, namespace_of(arrival))
    }

    /// What the control plane says of reports about requests to a destination.
    pub(super) fn telemetry<'v>(&self, view: &'v View, arrival: &Arrival) -> Option<&'v Telemetry> {
        let name = self.name_of(view, At::of(arrival))?;
        view.http_service(&name).map(|http| &http.telemetry)
    }

    /// Who is told of requests.
    pub(crate) fn reports(&self) -> &Reports {
        &self.shared.reports
    }

    /// A connection of this waypoint's own to a port of the mesh.
    pub(crate) fn own_arrival(&self, port: u16) -> Arrival {
        let ip = self.shared.config.instance;
        Arrival {
            source: self.shared.own_source(),
            workload: None,
            client: SocketAddr::new(ip, 0),
            destination: SocketAddr::new(ip, port),
            scheme: Scheme::Http,
            outside: None,
        }
    }

    /// Where the waypoint's own page of metrics or readiness is served, if a client that connects
    /// to this address means it.
    pub(crate) fn own_page(&self, destination: SocketAddr) -> Option<SocketAddr> {
        let config = &self.shared.config;
        let pages = [config.metrics, config.readiness];
        let page = pages.into_iter().find(|page| page.port() == destination.port())?;
        let own = if page.ip().is_unspecified() { config.instance } else { page.ip() };
        (destination.ip() == config.instance).then_some(SocketAddr::new(own, page.port()))
    }
}
