//! Who may ask: who has the token.
//!
//! The token is in the kubeconfig alone, which is the machine's user's. A browser cannot be made to
//! ask: it has no token, and what comes with another host's name or from a page of another site is
//! refused before it is read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_kubeapi::Status;
use ambit_model::http::gateway::ClientValidation;
use ambit_tls::authority::{Authority, AuthorityBundle};
use ambit_tls::edge::{EdgeAcceptor, EdgeCertificate};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue};

use crate::objects::random_bytes;

/// Random bytes of a token.
const TOKEN_SIZE_BYTES: usize = 32;
/// The name of the cluster, the user and the context in the kubeconfig, and of who signs.
const NAME: &str = "ambit";
/// The certificate lives as long as what signs it, and both no longer than the machine.
const CERTIFICATE_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// What a client needs, and what is asked of it.
pub(super) struct Access {
    address: SocketAddr,
    root_pem: String,
    token: String,
}

/// Makes the token and the certificate of a server at this address.
pub(super) fn create(address: SocketAddr) -> anyhow::Result<(Access, EdgeAcceptor)> {
    let now = SystemTime::now();
    let authority = Authority::generate(NAME, now).context("make an authority")?;
    let authority = AuthorityBundle::new(authority);
    let ip = address.ip().to_string();
    let names = [ip.as_str(), "localhost"];
    let issued = authority.issue_server(&names, CERTIFICATE_TTL, now);
    let certificate = EdgeCertificate::new(NAME.into(), &issued.context("make a certificate")?);
    let certificates = [Arc::new(certificate.context("use the certificate")?)];
    let acceptor = EdgeAcceptor::new(&certificates, &ClientValidation::None, &["http/1.1"]);
    let token = random_bytes::<TOKEN_SIZE_BYTES>().iter().map(|it| format!("{it:02x}")).collect();
    let access = Access { address, root_pem: authority.roots_pem(), token };
    Ok((access, acceptor.context("prepare TLS")?))
}

impl Access {
    /// The file for kubectl.
    pub(super) fn kubeconfig(&self) -> String {
        let Self { address, root_pem, token } = self;
        let root = STANDARD.encode(root_pem);
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: {NAME}\n  \
               cluster:\n    \
                 server: https://{address}\n    \
                 certificate-authority-data: {root}\n\
             users:\n\
             - name: {NAME}\n  \
               user:\n    \
                 token: {token}\n\
             contexts:\n\
             - name: {NAME}\n  \
               context:\n    \
                 cluster: {NAME}\n    \
                 user: {NAME}\n\
             current-context: {NAME}\n"
        )
    }

    /// Refuses who may not ask.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|it| it.to_str().ok()).unwrap_or_default();
        let port = self.address.port();
        let own = [self.address.to_string(), format!("localhost:{port}")];
        if hosts.next().is_some() || !own.iter().any(|it| it.eq_ignore_ascii_case(host)) {
            return Err(Status::forbidden("the header Host names another server"));
        }
        // Some libraries say that they come from the server itself, as no page of another can.
        let is_own =
            |it: &HeaderValue| it.as_bytes().strip_prefix(b"https://") == Some(host.as_bytes());
        if !headers.get_all(ORIGIN).iter().all(is_own) {
            return Err(Status::forbidden("pages of a browser are not answered"));
        }
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let token = given.next().and_then(|it| it.as_bytes().strip_prefix(b"Bearer "));
        let is_known = token.is_some_and(|it| is_same(it, self.token.as_bytes()));
        if is_known && given.next().is_none() { Ok(()) } else { Err(Status::unauthorized()) }
    }
}

/// Compares in a time that depends on the lengths alone.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = |sum: u8, (one, other): (&u8, &u8)| std::hint::black_box(sum | (one ^ other));
    one.len() == other.len() && one.iter().zip(other).fold(0, differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        let address = "127.0.0.1:6443".parse().expect("an address");
        Access { address, root_pem: "root".to_owned(), token: "secret".to_owned() }
    }

    #[test]
    fn who_has_the_token_may_ask() {
        let check = |headers: &[(&'static str, &'static str)], expected: Result<(), u16>| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_static(value));
            }
            let found = access().check(&map).map_err(|it| it.code().as_u16());
            assert_eq!(found, expected, "{headers:?}");
        };
        let (host, token) = (("host", "127.0.0.1:6443"), ("authorization", "Bearer secret"));
        check(&[host, token], Ok(()));
        check(&[("host", "LOCALHOST:6443"), token], Ok(()));
        check(&[host], Err(401));
        check(&[host, ("authorization", "Bearer secres")], Err(401));
        check(&[host, ("authorization", "Bearer ")], Err(401));
        check(&[host, ("authorization", "Bearer secret ")], Err(401));
        check(&[host, ("authorization", "Basic secret")], Err(401));
        check(&[host, token, token], Err(401));
        check(&[token], Err(403));
        check(&[host, host, token], Err(403));
        check(&[("host", "evil.example:6443"), token], Err(403));
        check(&[("host", "127.0.0.1"), token], Err(403));
        let own = ("origin", "https://127.0.0.1:6443");
        check(&[host, token, own], Ok(()));
        check(&[host, own], Err(401));
        check(&[host, token, own, ("origin", "https://evil.example")], Err(403));
        check(&[host, token, ("origin", "http://127.0.0.1:6443")], Err(403));
        check(&[host, token, ("origin", "null")], Err(403));
    }

    #[test]
    fn the_kubeconfig_says_where_and_how() {
        let text = access().kubeconfig();
        let expected =
            "    server: https://127.0.0.1:6443\n    certificate-authority-data: cm9vdA==\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("users:\n- name: ambit\n  user:\n    token: secret\n"), "{text}");
        assert!(text.ends_with("    user: ambit\ncurrent-context: ambit\n"), "{text}");
    }

    #[test]
    fn each_server_has_its_own_secrets() {
        let address = "[::1]:6443".parse().expect("an address");
        let [one, other] = [(); 2].map(|()| create(address).expect("created").0);
        assert_eq!(one.token.len(), 2 * TOKEN_SIZE_BYTES);
        assert_ne!(one.token, other.token);
        assert_ne!(one.root_pem, other.root_pem);
    }
}
