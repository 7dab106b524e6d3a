//! TLS with backends of a gateway: what is asked for is spoken, or nothing is sent.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::http::bytes::{BytesBackend, BytesRule};
use ambit_model::http::gateway::{ClientValidation, HostMatch, Listener, ListenerSpeaks, Proof};
use ambit_model::http::origination::{Origination, Trust};
use ambit_model::http::rule::RouteKind;
use ambit_model::identity::Identity;
use ambit_tls::edge::{EdgeAcceptor, EdgeCertificate};
use ambit_tls::origination::{Asked, Inside, Originator, Trust as ClientTrust};
use ambit_tls::service::ServerCertificate;
use ambit_tls::{Authority, AuthorityBundle, WorkloadKey};

use super::edge::{FINE, PORT, get, http, leads_to, origin, web};
use super::world::{Served, UNDECLARED, World, answer, run_gateway, until};

const HOUR: Duration = Duration::from_secs(3600);

fn authority(name: &str) -> AuthorityBundle {
    AuthorityBundle::new(Authority::generate(name, SystemTime::now()).unwrap())
}

/// A certificate that a client may prove itself by.
fn client_pair(authority: &AuthorityBundle) -> ServerCertificate {
    let identity = Identity::new("cluster.local", "app", "way");
    let key = WorkloadKey::generate().unwrap();
    let csr = key.csr_pem(&identity).unwrap();
    let chain = authority.sign(&csr, &identity, HOUR, SystemTime::now()).unwrap();
    ServerCertificate { chain_pem: chain.concat(), key_pem: key.to_pkcs8_pem() }
}

/// Serves the undeclared port as `web.example`. Answers with the name that each connection has
/// asked for, and whether its client has proven itself.
fn secured(world: &World, authority: &AuthorityBundle) -> Rc<RefCell<Vec<String>>> {
    let pair = authority.issue_server(&["web.example"], HOUR, SystemTime::now()).unwrap();
    let certificate = Arc::new(EdgeCertificate::new("web".into(), &pair).unwrap());
    let clients = ClientValidation::Optional { roots_pem: authority.roots_pem().into() };
    let acceptor = EdgeAcceptor::new(&[certificate], &clients, &[]).unwrap();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let kept = seen.clone();
    world.serve(UNDECLARED, move |stream| {
        let (kept, acceptor) = (kept.clone(), acceptor.clone());
        async move {
            let Ok((stream, peer)) = acceptor.accept(stream).await else { return };
            let proof = if peer.client.is_some() { "proven" } else { "unknown" };
            let name = peer.server_name.as_deref().unwrap_or("-");
            kept.borrow_mut().push(format!("{name} {proof}"));
            answer(stream, FINE).await;
        }
    });
    seen
}

#[test]
fn tls_is_spoken_with_backends_as_is_asked_or_nothing_is_sent() {
    let (ca, other) = (authority("a"), authority("b"));
    let pair = client_pair(&ca);
    let of = |authority: &AuthorityBundle, name: &str, uris: &[&str]| Origination {
        server_name: Some(name.into()),
        alternatives: Vec::new(),
        uris: uris.iter().map(|it| (*it).into()).collect(),
        trust: Trust::Roots(authority.roots_pem().into()),
        client: None,
    };
    let right = || of(&ca, "web.example", &[]);
    let own = || Proof::Certificate("app/own".into());
    let missing = || Proof::Certificate("app/other".into());
    let impossible = || Proof::Impossible { problem: "no grant".into() };
    let refused = ("503", "");
    let listeners = || vec![http("web", PORT, None, leads_to(UNDECLARED))];
    run_gateway(&[], listeners(), async |world| {
        let seen = secured(world, &ca);
        for (asked, refusal, proof, (status, expected)) in [
            (right(), None, Proof::None, ("200", "web.example unknown")),
            (right(), None, own(), ("200", "web.example proven")),
            (right(), None, impossible(), refused),
            (right(), None, missing(), refused),
            (right(), Some("BackendTLSPolicy app/p: no roots"), own(), refused),
            (of(&other, "web.example", &[]), None, own(), refused),
            (of(&ca, "other.example", &[]), None, own(), refused),
            (of(&ca, "web.example", &["spiffe://a/b"]), None, own(), refused),
        ] {
            let told = format!("{asked:?} {refusal:?} {proof:?}");
            world.prove(listeners(), proof, &pair);
            world.change_http(|http| {
                http.traffic.all.origination = Some(asked);
                http.traffic.all.refusal = refusal.map(Into::into);
            });
            let answer = world.ask_gateway(PORT, &get("web", "")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{told}: {answer}");
            assert_eq!(
                seen.borrow_mut().drain(..).collect::<Vec<_>>().join(","),
                expected,
                "{told}"
            );
        }
    });
}

#[test]
fn what_passes_through_as_tls_gets_no_other_tls_around_it() {
    let ca = authority("a");
    let rule = BytesRule {
        origin: origin(RouteKind::TlsRoute, "tls"),
        matches: Vec::new(),
        backends: vec![BytesBackend { weight: 1, destination: web(UNDECLARED) }],
    };
    let host = Some(HostMatch::new("web.example"));
    let listener = Listener::new("tls".into(), PORT, host, ListenerSpeaks::TlsPassthrough);
    let listeners = vec![Served::bare(listener).with_bytes(Arc::new(rule))];
    run_gateway(&[], listeners, async |world| {
        let seen = secured(world, &ca);
        let roots = ca.roots_pem();
        let origination = Origination {
            server_name: Some("inner.example".into()),
            alternatives: Vec::new(),
            uris: Vec::new(),
            trust: Trust::Roots(roots.as_str().into()),
            client: None,
        };
        world.change_http(|http| http.traffic.all.origination = Some(origination));
        let asked = Asked {
            server_name: "web.example",
            alternatives: &[],
            uris: &[],
            trust: ClientTrust::Roots(&roots),
            client: None,
            inside: Inside::Http1,
        };
        let client = Originator::new(&asked).unwrap();
        let connected = client.connect(world.enter(PORT).await).await;
        let _open = connected.expect("the backend's own TLS");
        until("the backend has met the client", || !seen.borrow().is_empty()).await;
        assert_eq!(*seen.borrow(), ["web.example unknown"]);
    });
}
