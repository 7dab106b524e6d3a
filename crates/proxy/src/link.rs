//! Connects the worker to its supervisor.
//!
//! What the worker learns (views, certificates, revocations) goes to the supervisor, which hands
//! it to the next worker: [`Link::hand_on`]. If the supervisor is gone, messages to it are dropped,
//! and the worker keeps serving.

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
            Err(error) => warn!(%error, name, "no memory for a file to the supervisor"),
        }
    }

    async fn send(&self, message: Message<FromWorker>) {
        // Without a supervisor there is nobody to keep it for.
        drop(self.0.send(message).await);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use ambit_dataplane::learned::Successor;
    use ambit_model::identity::Identity;
    use ambit_tls::{Authority, AuthorityBundle, WorkloadCertificate, WorkloadKey};
    use ambit_wire::proto::ambit::snapshot::Delta;

    use super::*;

    /// What the supervisor gets of something that was learned: the header, and what is in the file.
    async fn handed_on(learned: Learned) -> (FromWorker, Option<Vec<u8>>) {
        let ((link, mut outbox), (successor, waiting)) = (Link::new(), Successor::new());
        successor.tell(learned).await;
        drop(successor);
        link.hand_on(waiting).await;
        let Message { header, fds } = outbox.recv().await.expect("something is said");
        let read = |fd: &std::os::fd::OwnedFd| {
            let file = Sealed::from_fd(fd.try_clone().expect("cloned")).expect("sealed");
            file.read().expect("readable").to_vec()
        };
        (header, fds.first().map(|fd| read(fd)))
    }

    #[tokio::test]
    async fn what_is_learned_reaches_the_supervisor_in_sealed_files() {
        let delta = Delta { type_url: "type".into(), ..Delta::default() };
        let expected = Some(delta.encode_to_vec());
        let handed = handed_on(Learned::View { delta, complete: true }).await;
        assert_eq!(handed, (FromWorker::View { complete: true }, expected));
        let handed = handed_on(Learned::Revocations("list".into())).await;
        assert_eq!(handed, (FromWorker::Revocations, Some(b"list".to_vec())));
        let identity = Identity::new("cluster.local", "shop", "cart");
        let text = identity.to_string();
        let handed = handed_on(Learned::Forgotten(identity)).await;
        assert_eq!(handed, (FromWorker::Forget { identity: text }, None));
    }

    #[tokio::test]
    async fn a_certificate_is_handed_on_with_its_key() {
        let (identity, now) = (Identity::new("cluster.local", "shop", "cart"), SystemTime::now());
        let authority = Authority::generate("cluster.local", now).expect("a root");
        let key = WorkloadKey::generate().expect("a key");
        let csr = key.csr_pem(&identity).expect("a request");
        let hour = Duration::from_secs(3600);
        let chain = AuthorityBundle::new(authority).sign(&csr, &identity, hour, now);
        let chain = chain.expect("signed");
        let certificate = WorkloadCertificate::new(key, &chain, &identity, now).expect("usable");
        let serial = certificate.serial().to_string();
        let (header, file) = handed_on(Learned::Certificate(certificate)).await;
        assert_eq!(header, FromWorker::Certificate { identity: identity.to_string() });
        let taken = WorkloadCertificate::from_bytes(&file.expect("a file")).expect("whole");
        assert_eq!(taken.serial().to_string(), serial);
    }
}
