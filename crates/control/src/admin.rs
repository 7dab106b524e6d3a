//! The administration API: JSON over a private socket.
//!
//! `GET /get/{pods,services,workloads,policies,gateways,routes,telemetries}[?namespace=]`, `GET
//! /get/{nodes,namespaces}`, `GET /get/route-table?service=`, `GET
//! /why?src=&dst=[&method=&path=&host=&headers=&claims=&jwt=&sni=]`, `GET /status`, `POST /mark`,
//! `GET /ca/{rotation,certificates}`, `POST /ca/rotate[?finish=true[&force=true]]`, `POST
//! /ca/revoke`, `GET /metrics`, `GET /debug/syncz`.
//! [`ambit_wire::admin`] defines every answer. Nothing here may show a key or a token.

mod admission;
mod attached;
mod authentications;
mod authority;
mod conflicts;
mod effects;
mod findings;
mod gateways;
mod lists;
mod routes;
mod telemetries;
mod why;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ambit_wire::admin::{
    ApiVersion, Authority, CertificateInForce, Discovery, Explanation, List, Mark, MeshIdentity,
    Objects, Registry, Status, control,
};
use ambit_words::exposition::{self, METRICS_PATH};
use http::{Method, StatusCode};
use serde::Serialize;
use tokio::net::UnixListener;

use crate::ca::CertificateAuthority;
use crate::ca::cluster::ClusterAuthority;
use crate::durable::{self, FileError};
use crate::http_server::{Answer, Question};
use crate::metrics::Metrics;
use crate::world::World;
use crate::xds_server::Clients;

/// Why the administration socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Its directory, or a file in its place.
    #[error("the place of the administration socket")]
    File(#[from] FileError),
    /// The socket.
    #[error("cannot listen on {path}; check --admin-socket and whether another control plane runs")]
    Listen {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Opens the socket at `path` for its owner only; a socket that a dead process left is replaced.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, SocketError> {
    let failed = |source| SocketError::Listen { path: path.to_owned(), source };
    if let Some(directory) = path.parent()
        && !directory.exists()
    {
        durable::private_directory(directory)?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(failed(std::io::ErrorKind::AddrInUse.into()));
    }
    // Bound under another name first: nobody may connect before the mode is set.
    let beside = path.with_extension("opening");
    durable::remove(&beside)?;
    let listener = UnixListener::bind(&beside).map_err(failed)?;
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)?;
    Ok(listener)
}

/// Answers administrators.
pub(crate) struct Admin {
    pub(crate) world: Arc<World>,
    pub(crate) authority: Arc<CertificateAuthority>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) started: SystemTime,
    /// Whether the registry answers marks.
    pub(crate) answers_marks: bool,
    /// What replicas share, where there may be several.
    pub(crate) cluster: Option<Arc<ClusterAuthority>>,
}

impl Admin {
    /// Answers one question.
    pub(crate) fn answer(&self, question: &Question) -> Answer {
        let path = question.path.trim_end_matches('/');
        match (&question.method, path) {
            (&Method::GET, control::WHY) => self.why(question),
            (&Method::GET, control::STATUS) => Answer::json(StatusCode::OK, &self.status()),
            (&Method::POST, control::MARK) => self.mark(),
            (&Method::GET, METRICS_PATH) => {
                let accept = question.accept.as_deref();
                let (content_type, text) = exposition::answer(accept, self.metrics.text());
                Answer::text(StatusCode::OK, content_type, text)
            }
            (&Method::GET, control::SYNC) => {
                let resources = self.world.resources().borrow().clone();
                Answer::json(StatusCode::OK, &self.clients.sync_status(&resources))
            }
            (&Method::GET, _) if path.starts_with("/get/") => self.list(path, question),
            (_, _) if path.starts_with("/ca/") => self.authority(path, question),
            _ => Answer::error(
                StatusCode::NOT_FOUND,
                "nothing at this path; ask for /get/pods, /why, /status, /ca/rotation or /metrics",
            ),
        }
    }

    fn mark(&self) -> Answer {
        if self.answers_marks {
            let mark = Mark { api_version: ApiVersion, mark: self.world.set_mark() };
            return Answer::json(StatusCode::OK, &mark);
        }
        Answer::error(
            StatusCode::NOT_IMPLEMENTED,
            "the API server does not say how far its watches have come, so nobody can wait for a \
             mark; look at the object's status.conditions instead",
        )
    }

    fn list(&self, path: &str, question: &Question) -> Answer {
        let namespace = question.query.get("namespace").map(String::as_str);
        let builder = self.world.read();
        match path {
            control::PODS => list(lists::pods(&builder, namespace)),
            control::SERVICES => list(lists::services(&builder, namespace)),
            control::WORKLOADS => list(lists::workloads(&builder, namespace)),
            control::POLICIES => list(lists::policies(&builder, namespace)),
            control::GATEWAYS => list(gateways::gateways(&builder, namespace)),
            control::ROUTES => list(routes::routes(&builder, namespace)),
            control::ROUTE_TABLE => {
                let service = question.query.get("service").map_or("", String::as_str);
                match routes::table(&builder, service) {
                    Ok(lines) => list(lines),
                    Err(error) => Answer::error(StatusCode::NOT_FOUND, &error.to_string()),
                }
            }
            control::TELEMETRIES => list(telemetries::telemetries(&builder, namespace)),
            control::TRAFFIC_POLICIES => list(lists::traffic_policies(&builder, namespace)),
            control::NODES => list(lists::nodes(&builder, &self.clients.nodes())),
            control::NAMESPACES => list(lists::namespaces(&builder)),
            _ => Answer::error(
                StatusCode::NOT_FOUND,
                "unknown list; ask for pods, services, workloads, policies, gateways, \
                 routes, telemetries, trafficpolicies, nodes or namespaces",
            ),
        }
    }

    fn why(&self, question: &Question) -> Answer {
        let of = |name: &str| question.query.get(name).map(String::as_str);
        let (Some(source), Some(destination)) = (of("src"), of("dst")) else {
            let message = "say who connects and where to: /why?src=NAMESPACE/POD&dst=WHERE";
            return Answer::error(StatusCode::BAD_REQUEST, message);
        };
        let explained = why::Request::of(&question.query).and_then(|request| {
            let builder = self.world.read();
            match &request {
                Some(request) => why::explain_request(&builder, source, destination, request),
                None => why::explain_connection(&builder, source, destination, of("sni")),
            }
        });
        match explained {
            Ok(mut explanation) => {
                self.add_certificate(&mut explanation);
                Answer::json(StatusCode::OK, &explanation)
            }
            Err(error) => Answer::error(StatusCode::NOT_FOUND, &error.to_string()),
        }
    }

    /// Adds what is known of the client's certificate, which the view does not hold.
    fn add_certificate(&self, explanation: &mut Explanation) {
        let client = &explanation.source;
        let (issued, _) = self.authority.certificates();
        let own = issued
            .into_iter()
            .filter(|entry| entry.identity == client.identity && entry.node == client.node);
        let newest = own.max_by_key(|entry| entry.issued_at);
        explanation.certificate = newest.map(|entry| CertificateInForce {
            serial: entry.serial,
            not_after: authority::time(entry.not_after),
        });
    }

    fn status(&self) -> Status {
        let (issued, revoked) = self.authority.certificates();
        let holders = self.world.holders();
        let builder = self.world.read();
        let (store, view) = (builder.store(), builder.view());
        let connected = self.clients.nodes();
        let nodes = store.nodes().map(|(name, _)| name.to_string());
        let without_proxy = nodes.filter(|name| !connected.contains(name)).collect();
        Status {
            api_version: ApiVersion,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().unwrap_or_default().as_secs(),
            replicas: None,
            mesh: MeshIdentity {
                cluster_id: builder.mesh().cluster_id.to_string(),
                trust_domain: builder.mesh().trust_domain.to_string(),
                root_namespace: builder.mesh().root_namespace.to_string(),
                cluster_domain: Some(builder.mesh().domain.to_string()),
            },
            objects: Objects {
                pods: store.pods().count(),
                nodes: store.nodes().count(),
                namespaces: store.namespaces().count(),
                services: view.services().count(),
                workloads: view.workloads().count(),
                policies: view.policies().count(),
            },
            discovery: Discovery {
                clients: connected.len(),
                nodes_without_proxy: without_proxy,
                behind: self.clients.behind(&self.world.resources().borrow()),
            },
            registry: Registry { mark: self.world.reached_mark() },
            pods: lists::aside(&builder),
            policies_not_accepted: lists::not_accepted(&builder),
            findings: findings::findings(&builder),
            authority: Authority {
                issued: issued.len(),
                revoked: revoked.len(),
                problem: self.authority.problem(),
                rotation: self.authority.rotation(&holders),
            },
        }
    }
}

fn list<T: Serialize>(items: Vec<T>) -> Answer {
    Answer::json(StatusCode::OK, &List::from_iter(items))
}
