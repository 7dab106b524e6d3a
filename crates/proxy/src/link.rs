//! The worker's line to its supervisor.
//!
//! What the worker learns (views, certificates, revocations) goes to the supervisor, which hands
//! it to the next worker: [`Link::hand_on`]. A supervisor that is gone is no reason to stop:
//! what is said to nobody is dropped, and the worker serves on.

use ambit_dataplane::learned::Learned;
use ambit_net::memfd::Sealed;
use prost::Message as _;
use tokio::sync::mpsc;
use tracing::warn;

use crate::handover::{FromWorker, Message, cut_reason};

/// Messages on their way to the supervisor.
const OUTBOX: usize = 4096;

/// The worker's line to its supervisor. Clones share it.
#[derive(Clone)]
pub(crate) struct Link(mpsc::Sender<Message<FromWorker>>);

impl Link {
    /// A line, and what comes out of it.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Message<FromWorker>>) {
        let (sender, receiver) = mpsc::channel(OUTBOX);
        (Self(sender), receiver)
    }

    /// Says something without further content.
    pub(crate) async fn say(&self, header: FromWorker) {
        self.send(Message::bare(header)).await;
    }

    /// Hands on what the worker learns, for as long as it learns anything.
    pub(crate) async fn hand_on(self, mut learned: mpsc::Receiver<Learned>) {
        while let Some(learned) = learned.recv().await {
            match learned {
                Learned::View { delta, complete } => {
                    let header = FromWorker::View { complete };
                    self.file(header, "view", &delta.encode_to_vec()).await;
                }
                Learned::Revocations(pem) => {
                    self.file(FromWorker::Revocations, "revocations", pem.as_bytes()).await;
                }
                Learned::Certificate(certificate) => {
                    let identity = certificate.identity().to_string();
                    let content = certificate.to_bytes();
                    self.file(FromWorker::Certificate { identity }, "certificate", &content).await;
                }
                Learned::Forgotten(identity) => {
                    self.say(FromWorker::Forget { identity: identity.to_string() }).await;
                }
            }
        }
    }

    /// A pod cannot be served.
    pub(crate) async fn refuse(&self, uid: String, reason: String) {
        self.say(FromWorker::PodRefused { uid, reason: cut_reason(reason) }).await;
    }

    async fn file(&self, header: FromWorker, name: &str, content: &[u8]) {
        match Sealed::create(name, content) {
            Ok(file) => self.send(Message::with_file(header, file)).await,
            Err(error) => warn!(%error, name, "no memory to tell the supervisor"),
        }
    }

    async fn send(&self, message: Message<FromWorker>) {
        // Without a supervisor there is nobody to keep it for.
        drop(self.0.send(message).await);
    }
}
