//! What all connections of a data-plane thread of a node proxy use.
//!
//! The directions import it; it imports nothing that knows them.

use std::rc::Rc;
use std::sync::Arc;

use ambit_dataplane::plane::Plane;

use crate::shared::Shared;

/// What all connections of a thread use.
pub(crate) struct Thread {
    /// What every thread of the worker reads: its settings and its pods.
    pub(crate) shared: Arc<Shared>,
    /// What a thread of any proxy has for itself.
    pub(crate) plane: Rc<Plane>,
}
