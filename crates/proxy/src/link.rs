//! The worker's line to its supervisor.
//!
//! What the worker learns (views, certificates, revocations) goes to the supervisor, which hands
//! it to the next worker. A supervisor that is gone is no reason to stop: what is said to nobody
//! is dropped, and the worker serves on.

use ambit_net::memfd::Sealed;
use ambit_tls::WorkloadCertificate;
use ambit_wire::proto::ambit::snapshot::Delta;
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

    /// The view changed, or is confirmed by an empty change.
    pub(crate) async fn view(&self, delta: Delta, complete: bool) {
        self.file(FromWorker::View { complete }, "view", &delta.encode_to_vec()).await;
    }

    /// A revocation list is in force.
    pub(crate) async fn revocations(&self, crl_pem: &str) {
        self.file(FromWorker::Revocations, "revocations", crl_pem.as_bytes()).await;
    }

    /// A certificate was obtained.
    pub(crate) async fn certificate(&self, certificate: &WorkloadCertificate) {
        let identity = certificate.identity().to_string();
        let content = certificate.to_bytes();
        self.file(FromWorker::Certificate { identity }, "certificate", &content).await;
    }

    /// A pod cannot be served.
    pub(crate) async fn refuse(&self, uid: String, reason: String) {
        self.say(FromWorker::PodRefused { uid, reason: cut_reason(reason) }).await;
    }

    async fn file(&self, header: FromWorker, name: &str, content: &[u8]) {
        match Sealed::create(name, content) {
            Ok(file) => self.send(Message::with_file(header, file)).await,
            Err(error) => warn!(%error, name, "no memory for a file to the supervisor"),
        }
    }

    async fn send(&self, message: Message<FromWorker>) {
        // Without a supervisor there is nobody to keep it for.
        drop(self.0.send(message).await);
    }
}
