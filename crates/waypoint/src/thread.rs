//! What the connections of one data-plane thread share, wherever they come in.

use std::rc::Rc;
use std::sync::Arc;

use ambit_dataplane::own::Served;
use ambit_dataplane::plane::Plane;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::Arrival;
use ambit_http::engine::{self, Engine, Speaks};
use ambit_model::http::service::Protocol;
use ambit_net::drain::{Drain, Guard};
use bytes::Bytes;

use crate::passage::{self, Patience};
use crate::position::Here;
use crate::secured::Acceptors;
use crate::shared::Shared;

/// What the connections of a thread use.
pub(crate) struct Thread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plane: Rc<Plane>,
    pub(crate) served: Rc<Served>,
    pub(crate) engine: Rc<Engine<Here>>,
    /// What accepts TLS at a gateway.
    pub(crate) acceptors: Acceptors,
}

impl Thread {
    /// Serves what enters a service at this gateway, as a waypoint serves a tunnel. It ends with
    /// who has the other end of the pipe, and is never asked to leave.
    pub(crate) async fn enter(&self, arrival: Arrival, pipe: BoxStream) {
        let here = self.engine.position();
        let meant = here.meant(arrival.destination, &self.shared.own.identity).await;
        if !meant.is_ours {
            return tracing::debug!(to = %arrival.destination, "it is not entered here any more");
        }
        let lasting = Drain::new();
        self.converse(arrival, meant.protocol, pipe, &lasting.guard()).await;
    }

    /// Serves what comes in for what this position stands before, to its end.
    pub(crate) async fn converse(
        &self,
        arrival: Arrival,
        protocol: Protocol,
        stream: BoxStream,
        guard: &Guard,
    ) {
        let speaks = match protocol {
            Protocol::Http => Some(Speaks::Http),
            Protocol::Http2 => Some(Speaks::Http2),
            Protocol::Detect => Some(Speaks::Unknown),
            Protocol::Tcp | Protocol::Tls => None,
        };
        let (stream, first) = match speaks {
            None => (stream, Bytes::new()),
            Some(speaks) => {
                let client = arrival.clone();
                match engine::serve(&self.engine, client, stream, speaks, guard).await {
                    engine::Served::Http => return,
                    engine::Served::Other(stream, first) => (stream, first),
                }
            }
        };
        passage::serve(&self.engine, arrival, (stream, first), None, self.patience()).await;
    }

    /// How long a client of a connection that is no HTTP may take.
    pub(crate) fn patience(&self) -> Patience {
        let settings = self.engine.settings();
        Patience { detect: settings.detect_timeout, idle: settings.stream_idle_timeout }
    }
}
