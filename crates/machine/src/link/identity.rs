//! What the two ends of a link prove themselves with, as files of the user's alone.
//!
//! Home has an authority for this purpose alone, which is forgotten once it has signed: what is
//! kept is one certificate with its key. A joined machine keeps where home is, home's root and the
//! two secrets that prove it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use ambit_tls::authority::{Authority, AuthorityBundle, AuthorityError};
use ambit_tls::service::{ServerCertificate, ServiceAcceptor, ServiceConnector};
use serde::{Deserialize, Serialize};

use super::entry;
use super::frame::{Hello, VERSION};
use crate::join::{JoinToken, new_secret};
use crate::layout::Layout;

/// Home's name in its certificate.
const HOME_NAME: &str = "home.ambit.io";
/// The certificate lives as long as what signs it, and both no longer than the machine.
const CERTIFICATE_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// The files.
const CHAIN: &str = "cert-chain.pem";
const KEY: &str = "key.pem";
const ACCESS: &str = "home.json";

/// What the ends prove themselves with cannot be made, kept or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    /// No authority, or no certificate.
    #[error("cannot make the certificate that other machines know this one by")]
    Authority(#[from] AuthorityError),
    /// A file.
    #[error("cannot {operation} {path}")]
    File {
        /// What was tried.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A file that is not as written.
    #[error("{path} is not as written; take the machine down and let it join again")]
    Damaged {
        /// Which.
        path: PathBuf,
    },
    /// Certificates that cannot be used.
    #[error("the certificate of the link cannot be used")]
    Certificate(#[from] ambit_tls::certificate::CertificateError),
}

/// What home proves itself with.
pub(crate) struct Identity {
    certificate: ServerCertificate,
}

impl Identity {
    /// Makes it, and returns the root that vouches for it, in PEM.
    pub(crate) fn create(layout: &Layout) -> Result<String, AccessError> {
        let now = SystemTime::now();
        let authority = AuthorityBundle::new(Authority::generate("ambit-join", now)?);
        let issued = authority.issue_server(&[HOME_NAME], CERTIFICATE_TTL, now)?;
        write(layout, CHAIN, issued.chain_pem.as_bytes())?;
        write(layout, KEY, issued.key_pem.as_bytes())?;
        Ok(authority.roots_pem())
    }

    /// Reads it.
    pub(super) fn read(layout: &Layout) -> Result<Self, AccessError> {
        let certificate = ServerCertificate {
            chain_pem: read(layout, CHAIN)?,
            key_pem: read(layout, KEY)?.into(),
        };
        Ok(Self { certificate })
    }

    /// What accepts joined machines.
    pub(super) fn acceptor(&self) -> Result<ServiceAcceptor, AccessError> {
        Ok(ServiceAcceptor::new(&self.certificate, None)?)
    }
}

/// How a joined machine reaches home, and proves itself there.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Access {
    /// Where home listens.
    pub(super) address: SocketAddr,
    root: String,
    secret: String,
    key: String,
    /// Home has taken it once: from then on it tries for ever.
    pub(super) is_known: bool,
}

impl Access {
    /// That of a token, with a key of its own; kept.
    pub(crate) fn create(layout: &Layout, token: &JoinToken) -> Result<(), AccessError> {
        let JoinToken { address, root, secret, .. } = token.clone();
        Self { address, root, secret, key: new_secret(), is_known: false }.keep(layout)
    }

    /// Reads it.
    pub(super) fn read(layout: &Layout) -> Result<Self, AccessError> {
        let text = read(layout, ACCESS)?;
        let path = layout.join().join(ACCESS);
        serde_json::from_str(&text).map_err(|_| AccessError::Damaged { path })
    }

    /// Keeps it.
    pub(super) fn keep(&self, layout: &Layout) -> Result<(), AccessError> {
        let text = serde_json::to_vec(self).expect("it can be written as JSON");
        write(layout, ACCESS, &text)
    }

    /// What connects to home and to nobody else.
    pub(super) fn connector(&self) -> Result<ServiceConnector, AccessError> {
        Ok(ServiceConnector::new(&self.root, HOME_NAME, None)?)
    }

    /// The first message.
    pub(super) fn hello(&self) -> Hello {
        Hello { version: VERSION, secret: self.secret.clone(), key: self.key.clone() }
    }
}

fn read(layout: &Layout, name: &str) -> Result<String, AccessError> {
    let path = layout.join().join(name);
    let read = std::fs::read_to_string(&path);
    read.map_err(|source| AccessError::File { operation: "read", path, source })
}

fn write(layout: &Layout, name: &str, content: &[u8]) -> Result<(), AccessError> {
    let path = layout.join().join(name);
    let written = entry::write(&path, content);
    written.map_err(|source| AccessError::File { operation: "write", path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::NodeNetwork;

    /// Home and a machine that believes the root of `believed`.
    async fn met(home: &Layout, root: String) -> bool {
        let joined = tempfile::tempdir().expect("a directory");
        let joined = Layout::new(joined.path());
        let address = "192.0.2.1:7443".parse().expect("an address");
        let token = JoinToken::new(NodeNetwork::new(3), true, address, root, "secret".to_owned());
        Access::create(&joined, &token).expect("kept");
        let access = Access::read(&joined).expect("read");
        let acceptor = Identity::read(home).and_then(|it| it.acceptor()).expect("an acceptor");
        let (near, far) = tokio::io::duplex(64 << 10);
        let connector = access.connector().expect("a connector");
        let (_, connected) = tokio::join!(acceptor.accept(far), connector.connect(near));
        connected.is_ok()
    }

    #[tokio::test]
    async fn home_is_known_by_the_root_of_the_token() {
        let (one, two) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        let (one, two) = (Layout::new(one.path()), Layout::new(two.path()));
        let [root, other] = [&one, &two].map(|it| Identity::create(it).expect("made"));
        assert!(met(&one, root).await);
        assert!(!met(&one, other).await, "somebody else");
    }

    #[test]
    fn each_machine_has_a_key_of_its_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(directory.path());
        let address = "192.0.2.1:7443".parse().expect("an address");
        let token =
            JoinToken::new(NodeNetwork::new(3), true, address, String::new(), "s".to_owned());
        let hello = || {
            Access::create(&layout, &token).expect("kept");
            Access::read(&layout).expect("read").hello()
        };
        let (one, other) = (hello(), hello());
        assert_eq!((one.secret.as_str(), other.secret.as_str()), ("s", "s"));
        assert!(one.key.len() == 64 && one.key != other.key);
        entry::write(&layout.join().join(ACCESS), b"{}").expect("written");
        assert!(matches!(Access::read(&layout), Err(AccessError::Damaged { .. })));
    }
}
