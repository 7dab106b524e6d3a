//! What connections need that the view does not hold yet.
//!
//! Where the view is fetched on demand, a connection asks here and waits; the client of the control
//! plane fetches what is asked for. A connection never waits for ever.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Demands that may wait to be sent.
pub(crate) const DEMANDS: usize = 1024;
/// How long a connection waits for its demand.
pub(crate) const DEMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// One name that a connection needs.
pub(crate) struct Demanded {
    /// Which.
    pub name: String,
    /// Completed when the view has the answer.
    pub answered: oneshot::Sender<()>,
}

/// Asks for workloads and services when they are needed; does nothing when all are known anyway.
#[derive(Clone)]
pub struct Demand(Option<mpsc::Sender<Demanded>>);

impl Demand {
    /// For a proxy that knows everything.
    pub fn nothing() -> Self {
        Self(None)
    }

    /// Whether names have to be asked for at all.
    pub fn is_needed(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until the view has the answer about an address (`network/ip`) or a service
    /// (`namespace/hostname`). The wait is bounded: afterwards the view is used as it is.
    pub async fn address(&self, name: String) {
        let Some(demands) = &self.0 else { return };
        let asking = async {
            let (answered, waiting) = oneshot::channel();
            // Without a control plane nobody takes demands, and their queue may be full.
            if demands.send(Demanded { name, answered }).await.is_ok() {
                // The one who answers may have given up.
                drop(waiting.await);
            }
        };
        drop(tokio::time::timeout(DEMAND_TIMEOUT, asking).await);
    }
}

/// The receiving end of [`Demand`].
pub struct Demands(Option<mpsc::Receiver<Demanded>>);

/// Both ends, for one worker, which asks for names or knows everything.
pub fn demand(is_needed: bool) -> (Demand, Demands) {
    if !is_needed {
        return (Demand::nothing(), Demands(None));
    }
    let (sender, receiver) = mpsc::channel(DEMANDS);
    (Demand(Some(sender)), Demands(Some(receiver)))
}

impl Demands {
    /// The next name, if any ever comes.
    pub(crate) async fn next(&mut self) -> Demanded {
        let next = match &mut self.0 {
            Some(demands) => demands.recv().await,
            None => None,
        };
        match next {
            Some(demanded) => demanded,
            None => std::future::pending().await,
        }
    }
}
