//! What a proxy learns while it runs, and how it passes that to its successor.
//!
//! The parts that learn something (views, certificates, revocations) report it here and do not know
//! who listens. If nobody listens, the report is dropped: no proxy stops for lack of a successor.

use std::sync::Arc;

use ambit_model::identity::Identity;
use ambit_tls::WorkloadCertificate;
use ambit_wire::proto::ambit::snapshot::Delta;
use tokio::sync::mpsc;

/// The bound on items that wait to be taken. A listener takes each at once and keeps it elsewhere.
const LEARNED: usize = 64;

/// What a proxy has learned.
#[derive(Debug)]
pub enum Learned {
    /// The view changed, or is confirmed by an empty change.
    View {
        /// What changed.
        delta: Delta,
        /// Whether all of the view has been received, so that another may start from it.
        complete: bool,
    },
    /// A revocation list is in force, PEM.
    Revocations(String),
    /// A certificate was obtained.
    Certificate(Arc<WorkloadCertificate>),
    /// Nobody uses this identity any more.
    Forgotten(Identity),
}

/// The receiver of what a proxy learns. Clones share one receiver.
#[derive(Clone, Debug)]
pub struct Successor(mpsc::Sender<Learned>);

impl Successor {
    /// A successor, and the receiver of what it gets.
    pub fn new() -> (Self, mpsc::Receiver<Learned>) {
        let (sender, receiver) = mpsc::channel(LEARNED);
        (Self(sender), receiver)
    }

    /// Sends what was learned to the successor.
    pub async fn tell(&self, learned: Learned) {
        // Where nobody listens there is nobody to keep it for.
        drop(self.0.send(learned).await);
    }
}
