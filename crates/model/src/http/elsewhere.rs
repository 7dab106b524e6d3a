//! Requests that a route sends on to a service for which its makers do not speak.
//!
//! Whoever makes a route for a service of his does not speak for one of another namespace, and a
//! client that makes a route for its own requests speaks for no service: what holds there is asked
//! too, about the request as it is sent on. The endpoints cannot ask it, because to them the client
//! is the waypoint. A token was verified by what its own service says of issuers, and proves
//! nothing where other issuers hold.

use std::net::SocketAddr;

use crate::authorize::Denial;
use crate::http::authorize::{Asked, RequestDecision, RequestJudgement, authorize};
use crate::http::service::ServiceHttp;
use crate::names::{PolicyName, ServiceName};
use crate::view::View;

/// Whether a request to the service `from` may go on to a service and its port; `None` if what
/// holds there is for the same people to say. `is_own`: those who made the route speak for `from`.
pub fn judge(
    view: &View,
    (from, is_own): (&ServiceHttp, bool),
    (name, port): (&ServiceName, u16),
    asked: &Asked<'_>,
) -> Option<RequestJudgement> {
    if is_own && !from.is_elsewhere(name) {
        return None;
    }
    let Some(there) = view.http_service(name) else {
        let missing = PolicyName::new(name.namespace.clone(), name.hostname.clone());
        let decision = RequestDecision::Denied(Denial::PolicyMissing(missing));
        return Some(RequestJudgement {
            decision,
            audits: Vec::new(),
            dry_run_denials: Vec::new(),
            dry_run_providers: Vec::new(),
        });
    };
    let is_proven = there.authentication == from.authentication;
    let asked = Asked {
        destination: address(view, name, port, asked.destination),
        service: Some(&there.service),
        token: asked.token.filter(|_| is_proven),
        ..*asked
    };
    Some(authorize(view.request_policies_of(there), &asked))
}

/// What policies of a service that a route leads to take for the destination: its own address, or
/// what was asked for if it has none, and its port.
pub fn address(view: &View, name: &ServiceName, port: u16, asked: SocketAddr) -> SocketAddr {
    let own = view.service(name).and_then(|service| service.addresses.first());
    SocketAddr::new(own.map_or(asked.ip(), |address| address.address.ip), port)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::authorize::Source;
    use crate::expression::{Lookup, Value};
    use crate::http::authentication::Authentication;
    use crate::http::head::{Claims, Client, RequestHead};
    use crate::http::policy::{
        Action, ClientMatch, OperationMatch, RequestPolicy, RequestRule, Values,
    };
    use crate::identity::Identity;
    use crate::policy::TextMatch;
    use crate::view::Change;

    use super::*;

    struct Alice;

    impl crate::http::authorize::Token for Alice {
        fn principal(&self) -> Option<&str> {
            Some("https://issuer/alice")
        }

        fn any_audience(&self, _holds: &mut dyn FnMut(&str) -> bool) -> bool {
            false
        }

        fn presenter(&self) -> Option<&str> {
            None
        }

        fn claims(&self) -> &dyn Lookup {
            &NoClaims
        }
    }

    impl Claims for Alice {
        fn any_claim(&self, _keys: &[crate::Text], _holds: &mut dyn FnMut(&str) -> bool) -> bool {
            false
        }
    }

    struct NoClaims;

    impl Lookup for NoClaims {
        fn get(&self, _name: &str) -> Option<Value<'_>> {
            None
        }
    }

    /// A service of the namespace `bank` with this rule of an ALLOW policy, and one of `shop`.
    fn mesh(rule: RequestRule) -> (View, [ServiceHttp; 2]) {
        let mut view = View::default();
        let key = PolicyName::new("bank", "p");
        let policy = RequestPolicy {
            key: key.clone(),
            action: Action::Allow,
            is_dry_run: false,
            rules: vec![rule],
            condition: None,
        };
        view.apply(Change::RequestPolicy(Arc::new(policy)));
        let mut pay = ServiceHttp::named(ServiceName::new("bank", "pay"));
        pay.policies = vec![key];
        view.apply(Change::HttpService(Arc::new(pay.clone())));
        (view, [ServiceHttp::named(ServiceName::new("shop", "web")), pay])
    }

    fn judged(view: &View, from: &ServiceHttp, to: &str, port: u16) -> Option<bool> {
        judged_by(view, (from, true), to, port)
    }

    fn judged_by(view: &View, from: (&ServiceHttp, bool), to: &str, port: u16) -> Option<bool> {
        let head = RequestHead {
            method: "GET",
            scheme: "http",
            host: "web",
            port: None,
            path: "/",
            query: "",
            fields: &(),
            client: Client::default(),
        };
        let identity = Identity::new("cluster.local", "shop", "client");
        let source = Source::new(Some(identity), "10.0.0.1".parse().expect("an address"));
        let asked = Asked {
            head: &head,
            source: &source,
            remote_ip: source.ip(),
            destination: "10.96.0.1:80".parse().expect("an address"),
            service: None,
            server_name: None,
            token: Some(&Alice),
        };
        let judged = judge(view, from, (&to.parse().expect("a name"), port), &asked)?;
        Some(matches!(judged.decision, RequestDecision::Allowed(_)))
    }

    #[test]
    fn what_holds_in_another_namespace_is_asked_too() {
        let port = |port| {
            let ports = Values { any_of: vec![port], none_of: vec![] };
            OperationMatch { ports, ..OperationMatch::default() }
        };
        let rule = RequestRule { to: vec![port(8443)], ..RequestRule::default() };
        let (view, [web, pay]) = mesh(rule);
        assert_eq!(judged(&view, &web, "bank/pay", 8443), Some(true), "the port there counts");
        assert_eq!(judged(&view, &web, "bank/pay", 80), Some(false));
        assert_eq!(judged(&view, &web, "bank/unknown", 80), Some(false), "nothing is known of it");
        assert_eq!(judged(&view, &pay, "bank/other", 80), None, "its own namespace's");
    }

    #[test]
    fn a_route_of_clients_speaks_for_no_service() {
        let methods = Values { any_of: vec![TextMatch::Exact("HEAD".into())], none_of: vec![] };
        let to = vec![OperationMatch { methods, ..OperationMatch::default() }];
        let (view, [_, pay]) = mesh(RequestRule { to, ..RequestRule::default() });
        // It is judged as it is sent on.
        assert_eq!(judged_by(&view, (&pay, false), "bank/pay", 80), Some(false));
        assert_eq!(judged_by(&view, (&pay, true), "bank/pay", 80), None);
        assert_eq!(judged_by(&view, (&pay, false), "bank/unknown", 80), Some(false));
    }

    #[test]
    fn a_token_proves_nothing_where_other_issuers_hold() {
        let principal = TextMatch::Exact("https://issuer/alice".into());
        let request_principals = Values { any_of: vec![principal], none_of: vec![] };
        let from = vec![ClientMatch { request_principals, ..ClientMatch::default() }];
        let (view, [mut web, _]) = mesh(RequestRule { from, ..RequestRule::default() });
        assert_eq!(judged(&view, &web, "bank/pay", 80), Some(true));
        web.authentication = Authentication { problem: Some("other".into()), ..Default::default() };
        assert_eq!(judged(&view, &web, "bank/pay", 80), Some(false));
    }
}
