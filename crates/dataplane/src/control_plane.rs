//! How this proxy authenticates to the control plane: roots, token, headers.
//!
//! Files are read again for each connection, because Kubernetes and control rotate them. A token is
//! never sent in plain text to another machine, and never logged.

use std::io;
use std::path::{Path, PathBuf};

use ambit_model::Text;
use ambit_net::grpc::{ConnectError, Target};
use ambit_net::outside::Outside;
use ambit_tls::service::ServiceConnector;
use ambit_tls::web::SYSTEM_ROOTS;
use http::Uri;
use serde::Serialize;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use zeroize::Zeroizing;

/// One service of the control plane.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlane {
    /// Where it is; `http` means plain text.
    #[serde(serialize_with = "as_text")]
    pub uri: Uri,
    /// What proves it.
    pub root: RootCertificate,
    /// The name that its certificate must hold.
    pub server_name: String,
    /// Sent with every call; may hold secrets.
    #[serde(skip)]
    pub headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
}

/// Root certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RootCertificate {
    /// In a file, read at each connection.
    File(PathBuf),
    /// Given as text.
    Pem(String),
    /// Those of the operating system.
    System,
}

impl RootCertificate {
    /// A file, PEM text, or `SYSTEM`: the forms as ztunnel tells them apart.
    pub fn parse(text: &str) -> Self {
        if text == "SYSTEM" {
            Self::System
        } else if text.contains("-----BEGIN") {
            Self::Pem(text.to_owned())
        } else {
            Self::File(PathBuf::from(text))
        }
    }
}

/// Where a service of the control plane is: `https://HOST:PORT`, or `http://` for plain text.
pub fn service_uri(text: &str) -> Result<Uri, String> {
    let wrong =
        |why: &str| format!("{text:?} {why}; write https://HOST:PORT, or http:// for plain text");
    if text.is_empty() {
        return Err(wrong("is empty"));
    }
    let with_scheme =
        if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let uri: Uri = with_scheme.parse().map_err(|_| wrong("is no URI"))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err(wrong("has an unknown scheme")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(wrong("names no host"));
    }
    Ok(uri)
}

/// The host of a service, an address of IPv6 without its brackets.
pub fn host_of(uri: &Uri) -> &str {
    let host = uri.host().unwrap_or_default();
    host.trim_start_matches('[').trim_end_matches(']')
}

/// What the control plane is shown.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// Nothing.
    None,
    /// What a file holds at each connection.
    File(PathBuf),
    /// A fixed text.
    Literal(Zeroizing<String>),
}

impl Token {
    /// A file if the text looks like one, the text itself otherwise; without a text, the file at
    /// the default path if there is one.
    pub fn parse(text: Option<&str>, default_path: &str) -> Self {
        let exists = |path: &str| Path::new(path).exists();
        match text {
            None if exists(default_path) => Self::File(PathBuf::from(default_path)),
            None | Some("") => Self::None,
            // A JWT holds no slash, a path in use nearly always does.
            Some(path) if path.contains('/') || exists(path) => Self::File(PathBuf::from(path)),
            Some(literal) => Self::Literal(Zeroizing::new(literal.to_owned())),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Literal(_) => f.write_str("Literal(redacted)"),
        }
    }
}

impl Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{self:?}"))
    }
}

/// One service of the control plane, and what every call to it needs.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where it is and what proves it.
    pub service: ControlPlane,
    /// The token that proves this proxy.
    pub token: Token,
    /// The cluster that this proxy belongs to.
    pub cluster_id: Text,
    /// `SO_MARK` of the connection, by which the capture rules know the proxy, where there are any.
    pub mark: Option<u32>,
    /// Who opens the connection, where that is not this process.
    pub outside: Option<Outside>,
}

impl Access {
    /// Where to connect, and how to verify the server.
    pub fn target(&self) -> Result<Target, ControlPlaneError> {
        Ok(Target { outside: self.outside.clone(), ..target(&self.service, self.mark)? })
    }

    /// Adds what every call carries: configured headers, the cluster, the token.
    pub(crate) fn introduce(&self, metadata: &mut MetadataMap) -> Result<(), ControlPlaneError> {
        introduce(metadata, &self.service, &self.token, &self.cluster_id)
    }
}

fn as_text<S: serde::Serializer>(uri: &Uri, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(uri)
}

/// Why the control plane cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
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

fn target(service: &ControlPlane, mark: Option<u32>) -> Result<Target, ControlPlaneError> {
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
    Ok(Target { uri: service.uri.clone(), tls, mark, outside: None })
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

fn introduce(
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
