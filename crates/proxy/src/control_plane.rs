//! How this proxy shows itself to the control plane: roots, token, headers.
//!
//! Files are read again at each connection, because Kubernetes and control rotate them. A token is
//! never sent in plain text to another machine, and never logged.

use std::io;
use std::path::{Path, PathBuf};

use ambit_net::grpc::{ConnectError, Target};
use ambit_tls::service::ServiceConnector;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use zeroize::Zeroizing;

use crate::config::{ControlPlane, RootCertificate, Token};

/// Where distributions keep the roots of the operating system.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// Why the control plane cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlPlaneError {
    /// The root certificate cannot be read.
    #[error("read the root certificate {path} (--xds-root-ca, --ca-root-ca)")]
    Root {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The operating system has no roots where they are looked for.
    #[error(
        "SYSTEM names the operating system's root certificates, and none of the usual files exists"
    )]
    NoSystemRoots,
    /// The root certificate is none.
    #[error("root certificate of {server}")]
    Certificate {
        /// Whose.
        server: String,
        /// What is wrong with it.
        #[source]
        source: Box<ambit_tls::certificate::CertificateError>,
    },
    /// The token cannot be read.
    #[error("read the token {path} (--auth-token)")]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The token cannot be sent in an HTTP header.
    #[error("the token (--auth-token) holds characters that no token has")]
    TokenCharacters,
    /// No connection.
    #[error("connect to the control plane")]
    Connect(#[source] ConnectError),
}

/// Where to connect, and how to prove who answers.
pub(crate) fn target(service: &ControlPlane, mark: u32) -> Result<Target, ControlPlaneError> {
    let tls = match service.uri.scheme_str() {
        Some("https") => {
            let roots = roots_pem(&service.root)?;
            let connector = ServiceConnector::new(&roots, &service.server_name, None);
            Some(connector.map_err(|source| {
                let server = service.server_name.clone();
                ControlPlaneError::Certificate { server, source: Box::new(source) }
            })?)
        }
        _ => None,
    };
    Ok(Target { uri: service.uri.clone(), tls, mark: Some(mark) })
}

/// The roots as PEM.
pub(crate) fn roots_pem(root: &RootCertificate) -> Result<String, ControlPlaneError> {
    let read = |path: &Path| {
        let failed = |source| ControlPlaneError::Root { path: path.to_owned(), source };
        std::fs::read_to_string(path).map_err(failed)
    };
    match root {
        RootCertificate::Pem(text) => Ok(text.clone()),
        RootCertificate::File(path) => read(path),
        RootCertificate::System => {
            let path = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
            read(path.ok_or(ControlPlaneError::NoSystemRoots)?)
        }
    }
}

/// Adds what every call carries: configured headers, the cluster, the token.
pub(crate) fn introduce(
    metadata: &mut MetadataMap,
    service: &ControlPlane,
    token: &Token,
    cluster_id: &str,
) -> Result<(), ControlPlaneError> {
    if let Ok(cluster) = cluster_id.parse() {
        metadata.insert("clusterid", cluster);
    }
    if may_carry_secrets(service)
        && let Some(value) = bearer(token)?
    {
        metadata.insert("authorization", value);
    }
    for (name, value) in &service.headers {
        metadata.insert(name.clone(), value.clone());
    }
    Ok(())
}

/// Whether the connection is encrypted, or does not leave this machine.
fn may_carry_secrets(service: &ControlPlane) -> bool {
    let host = service.uri.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    service.uri.scheme_str() == Some("https") || is_loopback || host == "localhost"
}

fn bearer(token: &Token) -> Result<Option<AsciiMetadataValue>, ControlPlaneError> {
    let text = match token {
        Token::None => return Ok(None),
        Token::Literal(text) => text.clone(),
        Token::File(path) => {
            let failed = |source| ControlPlaneError::Token { path: path.clone(), source };
            Zeroizing::new(std::fs::read_to_string(path).map_err(failed)?)
        }
    };
    let value = Zeroizing::new(format!("Bearer {}", text.trim()));
    let mut value: AsciiMetadataValue =
        value.parse().map_err(|_| ControlPlaneError::TokenCharacters)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(uri: &str) -> ControlPlane {
        ControlPlane {
            uri: uri.parse().expect("a URI"),
            root: RootCertificate::System,
            server_name: "istiod".into(),
            headers: vec![("x-extra".parse().expect("a name"), "1".parse().expect("a value"))],
        }
    }

    #[test]
    fn the_token_travels_encrypted_or_not_at_all() {
        let check = |uri: &str, expected: Option<&str>| {
            let mut metadata = MetadataMap::new();
            let token = Token::Literal(Zeroizing::new("secret\n".into()));
            introduce(&mut metadata, &service(uri), &token, "here").expect("introduced");
            let got = metadata.get("authorization").map(|value| value.to_str().expect("text"));
            assert_eq!(got, expected, "{uri}");
            assert_eq!(metadata.get("clusterid").expect("sent"), "here");
            assert_eq!(metadata.get("x-extra").expect("sent"), "1");
        };
        check("https://istiod:15012", Some("Bearer secret"));
        check("http://127.0.0.1:15010", Some("Bearer secret"));
        check("http://[::1]:15010", Some("Bearer secret"));
        check("http://istiod:15010", None);
        check("http://10.0.0.1:15010", None);
    }

    #[test]
    fn a_missing_token_file_is_an_error_that_names_it() {
        let mut metadata = MetadataMap::new();
        let token = Token::File("/nowhere/token".into());
        let error = introduce(&mut metadata, &service("https://istiod:15012"), &token, "here")
            .expect_err("no such file");
        assert!(error.to_string().contains("/nowhere/token"), "{error}");
    }
}
