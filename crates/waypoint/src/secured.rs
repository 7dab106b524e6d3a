//! TLS that ends at a gateway: what accepts it for a listener.
//!
//! To read a key costs more than a handshake, so an acceptor is made when a listener is first
//! connected to, and again when its Gateway or a certificate changes. Connections that were
//! accepted before go on. Nothing here may log what a certificate's Secret holds.

use std::cell::RefCell;
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::certificate::Certificate;
use ambit_model::http::gateway::{Listener, ListenerSpeaks, Termination};
use ambit_model::names::ServiceName;
use ambit_model::view::View;
use ambit_tls::edge::{ALPN_HTTPS, ClientCertificate, EdgeAcceptor, EdgeCertificate};
use ambit_tls::service::ServerCertificate;
use ambit_words::error_chain;
use rustc_hash::FxHashMap;

/// Secrets and listeners that are remembered. Beyond it all are forgotten, and made again.
const REMEMBERED_MAX: usize = 4096;
/// What separates parts of X-Forwarded-Client-Cert, so that a value with it is quoted.
const SEPARATORS: [char; 5] = [',', ';', '=', '"', '\\'];

/// What accepts TLS, of one thread.
#[derive(Default)]
pub(crate) struct Acceptors {
    pairs: RefCell<FxHashMap<Text, Pair>>,
    listeners: RefCell<FxHashMap<(u16, Text), Ready>>,
}

/// A Secret's certificate, read.
struct Pair {
    of: Arc<Certificate>,
    read: Result<Arc<EdgeCertificate>, String>,
}

/// A listener's acceptor, and what it was made of.
struct Ready {
    speaks: ListenerSpeaks,
    certificates: Vec<Arc<Certificate>>,
    acceptor: Result<EdgeAcceptor, String>,
}

/// Whether the view has a certificate that a listener names.
pub(crate) fn has_certificate(view: &View, gateway: &ServiceName, listener: &Listener) -> bool {
    let termination = listener.speaks.termination();
    let mut names = termination.iter().flat_map(|it| &it.certificates);
    names.any(|name| view.certificate(gateway, name).is_some())
}

impl Acceptors {
    /// What accepts connections to a listener; an error says why none can be accepted.
    pub(crate) fn of(
        &self,
        view: &View,
        gateway: &ServiceName,
        listener: &Listener,
    ) -> Result<EdgeAcceptor, String> {
        let Some(termination) = listener.speaks.termination() else {
            return Err("TLS does not end at this listener".to_owned());
        };
        let found = termination.certificates.iter();
        let found = found.filter_map(|name| view.certificate(gateway, name).cloned());
        let found: Vec<Arc<Certificate>> = found.collect();
        let key = (listener.port, listener.name.clone());
        let mut listeners = self.listeners.borrow_mut();
        if let Some(ready) = listeners.get(&key)
            && ready.speaks == listener.speaks
            && ready.certificates.iter().map(Arc::as_ptr).eq(found.iter().map(Arc::as_ptr))
        {
            return ready.acceptor.clone();
        }
        let acceptor = self.made(&found, termination, &listener.speaks);
        if let Err(reason) = &acceptor {
            let (name, port) = (&listener.name, listener.port);
            tracing::warn!(listener = %name, port, reason, "its connections are refused");
        }
        if listeners.len() >= REMEMBERED_MAX {
            listeners.clear();
        }
        let speaks = listener.speaks.clone();
        let ready = Ready { speaks, certificates: found, acceptor: acceptor.clone() };
        listeners.insert(key, ready);
        acceptor
    }

    fn made(
        &self,
        found: &[Arc<Certificate>],
        termination: &Termination,
        speaks: &ListenerSpeaks,
    ) -> Result<EdgeAcceptor, String> {
        let (mut usable, mut problems) = (Vec::new(), Vec::new());
        for certificate in found {
            match self.pair(certificate) {
                Ok(pair) => usable.push(pair),
                Err(problem) => problems.push(problem),
            }
        }
        if usable.is_empty() {
            let missing = || "none of its certificates is known".to_owned();
            return Err(problems.into_iter().next().unwrap_or_else(missing));
        }
        for reason in problems {
            tracing::warn!(reason, "a certificate of a listener is left out");
        }
        let alpn = if matches!(speaks, ListenerSpeaks::Https(_)) { ALPN_HTTPS } else { &[] };
        let acceptor = EdgeAcceptor::new(&usable, &termination.clients, alpn);
        acceptor.map_err(|error| error_chain(&error))
    }

    /// A certificate, read once for all listeners that name it.
    fn pair(&self, certificate: &Arc<Certificate>) -> Result<Arc<EdgeCertificate>, String> {
        let name = &certificate.key.secret;
        let mut pairs = self.pairs.borrow_mut();
        if let Some(known) = pairs.get(name)
            && Arc::ptr_eq(&known.of, certificate)
        {
            return known.read.clone();
        }
        let pair = ServerCertificate {
            chain_pem: certificate.chain_pem.clone(),
            key_pem: certificate.key_pem.clone(),
        };
        let read = EdgeCertificate::new(name.clone(), &pair).map(Arc::new);
        let read = read.map_err(|error| error_chain(&error));
        if pairs.len() >= REMEMBERED_MAX {
            pairs.clear();
        }
        pairs.insert(name.clone(), Pair { of: certificate.clone(), read: read.clone() });
        read
    }
}

/// What a client's certificate says, as X-Forwarded-Client-Cert writes it (Envoy).
pub(crate) fn written(certificate: &ClientCertificate) -> Text {
    let mut parts = vec![format!("Hash={}", certificate.sha256)];
    parts.push(format!("Subject={}", quoted(&certificate.subject)));
    let value = |it: &str| match it.contains(SEPARATORS) {
        true => quoted(it),
        false => it.to_owned(),
    };
    parts.extend(certificate.uris.iter().map(|it| format!("URI={}", value(it))));
    parts.extend(certificate.dns_names.iter().map(|it| format!("DNS={}", value(it))));
    parts.join(";").into()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_of_a_certificate_passes_for_another_part() {
        let certificate = ClientCertificate {
            sha256: "ab".to_owned(),
            subject: "CN=a \"b\",O=c".to_owned(),
            uris: vec!["spiffe://t/ns/a/sa/b".to_owned(), "x;URI=y".to_owned()],
            dns_names: vec!["a.example.com".to_owned()],
            pem: String::new(),
        };
        assert_eq!(
            &*written(&certificate),
            "Hash=ab;Subject=\"CN=a \\\"b\\\",O=c\";URI=spiffe://t/ns/a/sa/b;URI=\"x;URI=y\";\
             DNS=a.example.com"
        );
    }
}
