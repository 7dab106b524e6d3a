//! What the connections of one data-plane thread share, wherever they come in.

use std::rc::Rc;
use std::sync::Arc;

use ambit_dataplane::own::Served;
use ambit_dataplane::plane::Plane;
use ambit_http::engine::Engine;

use crate::passage::Patience;
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
    /// How long a client of a connection that is no HTTP may take.
    pub(crate) fn patience(&self) -> Patience {
        let settings = self.engine.settings();
        Patience { detect: settings.detect_timeout, idle: settings.stream_idle_timeout }
    }
}
