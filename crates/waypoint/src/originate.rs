//! TLS that is spoken with endpoints, where a DestinationRule asks for it.
//!
//! Files are read when a connection needs them, and again after a minute: certificates rotate. A
//! file that cannot be read, or is of no use, refuses the connection; its contents are never
//! logged.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use ambit_http::engine::halves::BoxStream;
use ambit_model::Text;
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
}

/// Why TLS is not spoken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginationError {
    /// A file cannot be read.
    #[error("cannot read {0}, which the DestinationRule names")]
    File(Text, #[source] io::Error),
    /// What is in a file, or a name, is of no use.
    #[error("cannot speak TLS as the DestinationRule asks")]
    Setting(#[from] CertificateError),
    /// The server refuses, or is refused.
    #[error("TLS with the endpoint failed")]
    Handshake(#[from] HandshakeError),
}

/// Prepared connections of one thread.
#[derive(Default)]
pub(crate) struct Originators(RefCell<FxHashMap<Spoken, (Originator, Instant)>>);

impl Spoken {
    /// What is spoken with a port of a service of this protocol.
    pub(crate) fn new(origination: &Origination, host: &Text, protocol: Protocol) -> Self {
        let name = origination.server_name.as_ref().unwrap_or(host).clone();
        let inside = match protocol {
            Protocol::Http => Inside::Http1,
            Protocol::Http2 => Inside::Http2,
            Protocol::Detect | Protocol::Tcp | Protocol::Tls => Inside::Bytes,
        };
        Self { origination: origination.clone(), name, inside }
    }
}

impl Originators {
    /// Speaks TLS over a connection to an endpoint.
    pub(crate) async fn connect(
        &self,
        spoken: &Spoken,
        io: BoxStream,
    ) -> Result<BoxStream, OriginationError> {
        let originator = self.originator(spoken).await?;
        Ok(Box::new(originator.connect(io).await?))
    }

    async fn originator(&self, spoken: &Spoken) -> Result<Originator, OriginationError> {
        let now = Instant::now();
        if let Some((known, since)) = self.0.borrow().get(spoken)
            && now < *since + FILES_AGE_MAX
        {
            return Ok(known.clone());
        }
        let originator = prepared(spoken).await?;
        let mut known = self.0.borrow_mut();
        if known.len() >= SERVERS_MAX {
            known.clear();
        }
        known.insert(spoken.clone(), (originator.clone(), now));
        Ok(originator)
    }
}

async fn prepared(spoken: &Spoken) -> Result<Originator, OriginationError> {
    let Origination { alternatives, trust, client, .. } = &spoken.origination;
    let roots = match trust {
        TrustSetting::File(path) => Some(read(path).await?),
        TrustSetting::Public | TrustSetting::Nobody => None,
    };
    let client = match client {
        None => None,
        Some(files) => Some(ServerCertificate {
            chain_pem: read(&files.chain).await?.to_string(),
            key_pem: read(&files.key).await?,
        }),
    };
    let alternatives: Vec<&str> = alternatives.iter().map(|it| &**it).collect();
    let trust = match (trust, &roots) {
        (TrustSetting::Nobody, _) => Trust::Nobody,
        (_, Some(pem)) => Trust::Roots(pem),
        (_, None) => Trust::Public,
    };
    let asked = Asked {
        server_name: &spoken.name,
        alternatives: &alternatives,
        trust,
        client: client.as_ref(),
        inside: spoken.inside,
    };
    Ok(Originator::new(&asked)?)
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
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_read_or_used_refuses() {
        let of = |trust| Spoken {
            origination: Origination {
                server_name: None,
                alternatives: Vec::new(),
                trust,
                client: None,
            },
            name: "web.example".into(),
            inside: Inside::Http1,
        };
        let file = |path: &str| TrustSetting::File(path.into());
        for (trust, expected) in [
            (TrustSetting::Public, None),
            (TrustSetting::Nobody, None),
            (file("/nowhere/at/all"), Some("cannot read /nowhere/at/all")),
            (file("/dev/null"), Some("cannot read /dev/null")),
            (file("/proc/self/stat"), Some("cannot speak TLS")),
        ] {
            let told = prepared(&of(trust.clone())).await.err().map(|it| it.to_string());
            let is_so = match (&told, expected) {
                (None, None) => true,
                (Some(told), Some(expected)) => told.starts_with(expected),
                _ => false,
            };
            assert!(is_so, "{trust:?}: {told:?}");
        }
        let unnamed = Spoken { name: "*.example".into(), ..of(TrustSetting::Public) };
        let told = prepared(&unnamed).await.err().map(|it| it.to_string());
        assert!(told.is_some_and(|told| told.starts_with("cannot speak TLS")));
    }
}
