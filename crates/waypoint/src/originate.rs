//! TLS that is spoken with endpoints, where a DestinationRule or a BackendTLSPolicy asks for it.
//!
//! Files are read when a connection needs them, and again after a minute: certificates rotate. A
//! file that cannot be read, or is of no use, refuses the connection; its contents are never
//! logged.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::halves::BoxStream;
use ambit_model::Text;
use ambit_model::http::certificate::Certificate;
use ambit_model::http::gateway::Proof;
use ambit_model::http::origination::{Origination, Trust as TrustSetting};
use ambit_model::http::service::Protocol;
use ambit_tls::certificate::CertificateError;
use ambit_tls::error::HandshakeError;
use ambit_tls::origination::{Asked, Inside, Originator, Trust};
use ambit_tls::service::ServerCertificate;
use rustc_hash::FxHashMap;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// How long what was read of files is used.
const FILES_AGE_MAX: Duration = Duration::from_secs(60);
/// Most bytes of one file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Servers that are remembered. Beyond it all are forgotten, and read again.
const SERVERS_MAX: usize = 1024;

/// What is spoken with one server, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spoken {
    /// What the rule asks for.
    pub(crate) origination: Origination,
    /// The server's name.
    pub(crate) name: Text,
    /// What is inside.
    pub(crate) inside: Inside,
    /// What proves a gateway, where the rule names no files.
    pub(crate) proof: Proof,
}

/// Why TLS is not spoken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginationError {
    /// A file cannot be read.
    #[error("cannot read {0}, which the DestinationRule names")]
    File(Text, #[source] io::Error),
    /// What is in a file, or a name, is of no use.
    #[error("cannot speak TLS as the DestinationRule or the BackendTLSPolicy asks")]
    Setting(#[from] CertificateError),
    /// What proves this gateway cannot be used.
    #[error("no TLS is spoken: tls.backend.clientCertificateRef of the Gateway: {0}")]
    Proof(Text),
    /// The server refuses, or is refused.
    #[error("TLS with the endpoint failed")]
    Handshake(#[from] HandshakeError),
}

/// Prepared connections of one thread.
#[derive(Default)]
pub(crate) struct Originators(RefCell<FxHashMap<Spoken, Prepared>>);

/// Prepared connections to one server.
struct Prepared {
    originator: Originator,
    since: Instant,
    /// The certificate of a gateway that it was made with.
    shown: Option<Arc<Certificate>>,
}

impl Spoken {
    /// What is spoken with a port of a service of this protocol; `proof` is a gateway's own.
    pub(crate) fn new(
        origination: &Origination,
        host: &Text,
        protocol: Protocol,
        proof: &Proof,
    ) -> Self {
        let name = origination.server_name.as_ref().unwrap_or(host).clone();
        let inside = match protocol {
            Protocol::Http => Inside::Http1,
            Protocol::Http2 => Inside::Http2,
            Protocol::Detect | Protocol::Tcp | Protocol::Tls => Inside::Bytes,
        };
        // The rule's own files come first.
        let proof = if origination.client.is_some() { &Proof::None } else { proof };
        Self { origination: origination.clone(), name, inside, proof: proof.clone() }
    }
}

impl Originators {
    /// Speaks TLS over a connection to an endpoint. `shown` is the certificate that proves this
    /// gateway, as far as it is known.
    pub(crate) async fn connect(
        &self,
        spoken: &Spoken,
        shown: Option<Arc<Certificate>>,
        io: BoxStream,
    ) -> Result<BoxStream, OriginationError> {
        let originator = self.originator(spoken, shown).await?;
        Ok(Box::new(originator.connect(io).await?))
    }

    async fn originator(
        &self,
        spoken: &Spoken,
        shown: Option<Arc<Certificate>>,
    ) -> Result<Originator, OriginationError> {
        let now = Instant::now();
        let is_of = |it: &Prepared| it.shown.as_ref().map(Arc::as_ptr);
        if let Some(known) = self.0.borrow().get(spoken)
            && now < known.since + FILES_AGE_MAX
            && is_of(known) == shown.as_ref().map(Arc::as_ptr)
        {
            return Ok(known.originator.clone());
        }
        let originator = prepared(spoken, shown.as_deref()).await?;
        let mut known = self.0.borrow_mut();
        if known.len() >= SERVERS_MAX {
            known.clear();
        }
        let prepared = Prepared { originator: originator.clone(), since: now, shown };
        known.insert(spoken.clone(), prepared);
        Ok(originator)
    }
}

async fn prepared(
    spoken: &Spoken,
    shown: Option<&Certificate>,
) -> Result<Originator, OriginationError> {
    let Origination { alternatives, uris, trust, .. } = &spoken.origination;
    let roots = match trust {
        TrustSetting::File(path) => Some(read(path).await?),
        TrustSetting::Public | TrustSetting::Roots(_) | TrustSetting::Nobody => None,
    };
    let client = client(spoken, shown).await?;
    let alternatives: Vec<&str> = alternatives.iter().map(|it| &**it).collect();
    let uris: Vec<&str> = uris.iter().map(|it| &**it).collect();
    let trust = match (trust, &roots) {
        (TrustSetting::Nobody, _) => Trust::Nobody,
        (TrustSetting::Roots(pem), _) => Trust::Roots(pem),
        (_, Some(pem)) => Trust::Roots(pem),
        (_, None) => Trust::Public,
    };
    let asked = Asked {
        server_name: &spoken.name,
        alternatives: &alternatives,
        uris: &uris,
        trust,
        client: client.as_ref(),
        inside: spoken.inside,
    };
    Ok(Originator::new(&asked)?)
}

/// What proves this proxy, if the endpoint is to be shown anything.
async fn client(
    spoken: &Spoken,
    shown: Option<&Certificate>,
) -> Result<Option<ServerCertificate>, OriginationError> {
    let pair = match (&spoken.origination.client, &spoken.proof) {
        (Some(files), _) => (read(&files.chain).await?.to_string(), read(&files.key).await?),
        (None, Proof::None) => return Ok(None),
        (None, Proof::Impossible { problem }) => {
            return Err(OriginationError::Proof(problem.clone()));
        }
        (None, Proof::Certificate(secret)) => {
            let missing = || format!("the control plane has not sent Secret {secret}").into();
            let shown = shown.ok_or_else(|| OriginationError::Proof(missing()))?;
            (shown.chain_pem.clone(), shown.key_pem.clone())
        }
    };
    let (chain_pem, key_pem) = pair;
    Ok(Some(ServerCertificate { chain_pem, key_pem }))
}

/// Reads a file of text, which may be a key.
async fn read(path: &Text) -> Result<Zeroizing<String>, OriginationError> {
    let failed = |error| OriginationError::File(path.clone(), error);
    let metadata = tokio::fs::metadata(&**path).await.map_err(failed)?;
    // To open a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(failed(io::Error::other("it is larger than 1 MiB")));
    }
    let file = tokio::fs::File::open(&**path).await.map_err(failed)?;
    // Room for all of it from the start: what grows leaves copies of a key behind.
    let room = usize::try_from(FILE_BYTES_MAX.min(metadata.len() + 1)).unwrap_or_default();
    let mut text = Zeroizing::new(String::with_capacity(room));
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).await.map_err(failed)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ambit_tls::{Authority, AuthorityBundle};

    use super::*;

    #[tokio::test]
    async fn what_cannot_be_read_or_used_refuses() {
        let of = |trust| Spoken {
            origination: Origination {
                server_name: None,
                alternatives: Vec::new(),
                uris: Vec::new(),
                trust,
                client: None,
            },
            name: "web.example".into(),
            inside: Inside::Http1,
            proof: Proof::None,
        };
        let file = |path: &str| TrustSetting::File(path.into());
        for (trust, expected) in [
            (TrustSetting::Public, None),
            (TrustSetting::Nobody, None),
            (file("/nowhere/at/all"), Some("cannot read /nowhere/at/all")),
            (file("/dev/null"), Some("cannot read /dev/null")),
            (file("/proc/self/stat"), Some("cannot speak TLS")),
            (TrustSetting::Roots("no PEM".into()), Some("cannot speak TLS")),
        ] {
            let told = prepared(&of(trust.clone()), None).await.err().map(|it| it.to_string());
            let is_so = match (&told, expected) {
                (None, None) => true,
                (Some(told), Some(expected)) => told.starts_with(expected),
                _ => false,
            };
            assert!(is_so, "{trust:?}: {told:?}");
        }
        let unnamed = Spoken { name: "*.example".into(), ..of(TrustSetting::Public) };
        let told = prepared(&unnamed, None).await.err().map(|it| it.to_string());
        assert!(told.is_some_and(|told| told.starts_with("cannot speak TLS")));
    }

    #[tokio::test]
    async fn a_gateway_proves_itself_as_its_gateway_says_or_says_nothing() {
        let bundle = AuthorityBundle::new(Authority::generate("edge", SystemTime::now()).unwrap());
        let hour = Duration::from_secs(3600);
        let issued = || bundle.issue_server(&["gw.example"], hour, SystemTime::now()).unwrap();
        let certificate = |key_pem| Certificate {
            key: "edge/ingress/shop/tls".parse().unwrap(),
            chain_pem: issued().chain_pem,
            key_pem,
        };
        let pair = issued();
        let whole = Certificate { chain_pem: pair.chain_pem, ..certificate(pair.key_pem) };
        let other = certificate(issued().key_pem);
        let named = || Proof::Certificate("shop/tls".into());
        let impossible = Proof::Impossible { problem: "no grant".into() };
        for (proof, shown, expected) in [
            (Proof::None, None, None),
            (named(), Some(&whole), None),
            (named(), None, Some("no TLS is spoken")),
            (named(), Some(&other), Some("cannot speak TLS")),
            (impossible, Some(&whole), Some("no TLS is spoken")),
        ] {
            let origination = Origination {
                server_name: None,
                alternatives: Vec::new(),
                uris: Vec::new(),
                trust: TrustSetting::Roots(bundle.roots_pem().into()),
                client: None,
            };
            let spoken = Spoken::new(&origination, &"web.example".into(), Protocol::Detect, &proof);
            let told = prepared(&spoken, shown).await.err().map(|it| it.to_string());
            let is_so = match (&told, expected) {
                (None, None) => true,
                (Some(told), Some(expected)) => told.starts_with(expected),
                _ => false,
            };
            assert!(is_so, "{proof:?}: {told:?}");
        }
    }
}
