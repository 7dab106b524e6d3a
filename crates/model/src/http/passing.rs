//! Whether a connection that is no HTTP may pass a waypoint.
//!
//! What a policy asks of requests cannot be known of bytes, so it is read strictly
//! ([`RequestPolicy::for_bytes`](crate::http::policy::RequestPolicy::for_bytes)). What holds where
//! a route leads to another namespace is asked too.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::Text;
use crate::authorize::{Decision, Denial, RuleName, Source};
use crate::http::authorize::{Asked, RequestDecision, authorize};
use crate::http::elsewhere;
use crate::http::head::{Client, RequestHead};
use crate::http::service::ServiceHttp;
use crate::names::ServiceName;
use crate::view::View;

/// A connection, as policies read it.
#[derive(Clone, Copy)]
pub struct Passing<'a> {
    /// Who connects, as far as it is proven.
    pub source: &'a Source,
    /// The client's namespace, if it has proven its identity.
    pub client_namespace: Option<&'a Text>,
    /// What the client connected to.
    pub destination: SocketAddr,
    /// The name in its TLS handshake.
    pub server_name: Option<&'a str>,
    /// Whether that name was read, or found missing.
    pub is_name_known: bool,
}

/// Why a connection may not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPassing {
    /// It would pass by what holds for requests.
    #[error(
        "what holds at this port is about requests, and this connection carries none; if the port \
         speaks no HTTP, declare it in the Service (appProtocol: tcp)"
    )]
    AboutRequests,
    /// A policy denies it.
    #[error("{0}")]
    Denied(Denial),
    /// A CUSTOM policy holds for it.
    #[error("an authorization provider is asked about requests alone")]
    Custom(RuleName),
    /// A route leads to a service of which nothing is known.
    #[error("what holds for {0} has not been received")]
    Unknown(ServiceName),
}

impl Passing<'_> {
    /// Whether it may pass by what holds at its own destination: the rule that allows it, or none
    /// where no ALLOW policy is.
    pub fn judge(&self, view: &View, http: &ServiceHttp) -> Result<Option<RuleName>, NotPassing> {
        let client = self.client_namespace.map(|it| &**it);
        if http.is_about_requests(self.destination.port(), client) {
            return Err(NotPassing::AboutRequests);
        }
        self.judge_at(view, http, self.destination)
    }

    /// Whether it may go on to where a route of `from` leads, by what holds there unless it is for
    /// the same people to say. `is_own`: those who made the route speak for `from`.
    pub fn judge_elsewhere(
        &self,
        view: &View,
        (from, is_own): (&ServiceHttp, bool),
        (name, port): (&ServiceName, u16),
    ) -> Result<(), NotPassing> {
        if is_own && !from.is_elsewhere(name) {
            return Ok(());
        }
        let there = view.http_service(name).ok_or_else(|| NotPassing::Unknown(name.clone()))?;
        let destination = elsewhere::address(view, name, port, self.destination);
        self.judge_at(view, there, destination).map(drop)
    }

    fn judge_at(
        &self,
        view: &View,
        http: &ServiceHttp,
        destination: SocketAddr,
    ) -> Result<Option<RuleName>, NotPassing> {
        let policies: Vec<_> = view
            .request_policies_of(http)
            .map(|policy| policy.map(|policy| Arc::new(policy.for_bytes(self.is_name_known))))
            .collect();
        let head = RequestHead {
            method: "",
            scheme: "",
            host: "",
            port: None,
            path: "",
            query: "",
            fields: &(),
            client: Client { namespace: self.client_namespace, claims: None },
        };
        let asked = Asked {
            head: &head,
            source: self.source,
            remote_ip: self.source.ip(),
            destination,
            service: Some(&http.service),
            server_name: self.server_name,
            token: None,
        };
        let policies = policies.iter().map(|policy| match policy {
            Ok(policy) => Ok(policy),
            Err(name) => Err(*name),
        });
        match authorize(policies, &asked).decision {
            RequestDecision::Allowed(rule) => Ok(rule),
            RequestDecision::Denied(denial)
            | RequestDecision::Ask { then: Decision::Deny(denial), .. } => {
                Err(NotPassing::Denied(denial))
            }
            RequestDecision::Ask { mut providers, .. } => {
                Err(NotPassing::Custom(providers.swap_remove(0).rule))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::http::policy::{Action, OperationMatch, RequestPolicy, RequestRule, Values};
    use crate::http::service::Protocol;
    use crate::identity::Identity;
    use crate::names::PolicyName;
    use crate::policy::TextMatch;
    use crate::view::Change;

    /// What becomes of a connection of bytes to `app/db:5432` with this policy, and of one that a
    /// route of `shop/web` sends on there.
    fn judged(action: Action, to: OperationMatch) -> (Result<(), NotPassing>, bool) {
        let mut view = View::default();
        let key = PolicyName::new("app", "p");
        let rule = RequestRule { to: vec![to], ..RequestRule::default() };
        let policy = RequestPolicy {
            key: key.clone(),
            action,
            is_dry_run: false,
            rules: vec![rule],
            condition: None,
        };
        view.apply(Change::RequestPolicy(Arc::new(policy)));
        let name = ServiceName::new("app", "db");
        let mut db = ServiceHttp::named(name.clone());
        db.protocols = BTreeMap::from([(5432, Protocol::Tcp)]);
        db.policies = vec![key];
        view.apply(Change::HttpService(Arc::new(db.clone())));
        let identity = Identity::new("cluster.local", "shop", "client");
        let source = Source::new(Some(identity), "10.0.0.1".parse().expect("an address"));
        let passing = Passing {
            source: &source,
            client_namespace: None,
            destination: "10.96.0.1:5432".parse().expect("an address"),
            server_name: None,
            is_name_known: true,
        };
        let web = ServiceHttp::named(ServiceName::new("shop", "web"));
        let elsewhere = passing.judge_elsewhere(&view, (&web, true), (&name, 5432));
        let of_clients = passing.judge_elsewhere(&view, (&db, false), (&name, 5432));
        assert_eq!(of_clients.is_ok(), elsewhere.is_ok());
        let unknown = ServiceName::new("bank", "gone");
        let nowhere = passing.judge_elsewhere(&view, (&web, true), (&unknown, 80));
        assert_eq!(nowhere, Err(NotPassing::Unknown(unknown)));
        (passing.judge(&view, &db).map(drop), elsewhere.is_ok())
    }

    #[test]
    fn what_asks_for_requests_lets_no_bytes_pass() {
        let port = |port| {
            let ports = Values { any_of: vec![port], none_of: vec![] };
            OperationMatch { ports, ..OperationMatch::default() }
        };
        let get = Values { any_of: vec![TextMatch::Exact("GET".into())], none_of: vec![] };
        let method = || OperationMatch { methods: get.clone(), ..OperationMatch::default() };
        assert_eq!(judged(Action::Allow, port(5432)), (Ok(()), true));
        for (action, to) in [
            (Action::Allow, port(80)),
            (Action::Allow, method()),
            (Action::Deny, method()),
            (Action::Deny, port(5432)),
        ] {
            let told = format!("{action:?} {to:?}");
            let (own, elsewhere) = judged(action, to);
            assert!(matches!(own, Err(NotPassing::Denied(_))) && !elsewhere, "{told}");
        }
        let (asked, _) = judged(Action::Custom("p".into()), port(5432));
        assert!(matches!(asked, Err(NotPassing::Custom(_))), "{asked:?}");
    }

    #[test]
    fn a_port_of_requests_takes_no_bytes() {
        let (view, source) = (View::default(), Source::new(None, [10, 0, 0, 1].into()));
        let mut http = ServiceHttp::named(ServiceName::new("app", "web"));
        http.protocols = BTreeMap::from([(80, Protocol::Http)]);
        let passing = |port: u16| Passing {
            source: &source,
            client_namespace: None,
            destination: ([10, 96, 0, 1], port).into(),
            server_name: None,
            is_name_known: false,
        };
        assert_eq!(passing(80).judge(&view, &http), Err(NotPassing::AboutRequests));
        assert_eq!(passing(90).judge(&view, &http), Ok(None));
    }
}
