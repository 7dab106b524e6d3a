//! What a waypoint does with a connection to a port that carries no HTTP, and what would have to
//! change.
//!
//! Routes and policies are asked as the waypoint asks them. Nothing here opens a connection.

use ambit_model::authorize::Denial;
use ambit_model::http::bytes::{BytesRule, Connection};
use ambit_model::http::passing::{NotPassing, Passing};
use ambit_model::http::rule::Destination;
use ambit_model::http::service::{Protocol, ServiceHttp};
use ambit_wire::admin;

use super::bounds::{self, Backend};
use super::ends::WhyError;
use super::fronted::{Fronted, who};
use super::reached;
use crate::admin::routes;
use crate::view_builder::Builder;

/// Explains a connection of pod `source` to `destination`, with this name in its TLS handshake.
pub(in crate::admin) fn explain(
    builder: &Builder,
    source: &str,
    destination: &str,
    server_name: Option<&str>,
) -> Result<admin::Explanation, WhyError> {
    let mut explanation = super::explain_named(builder, source, destination, server_name)?;
    if explanation.plan != "waypoint" {
        return Ok(explanation);
    }
    let Some(mut fronted) = Fronted::of(builder, source, destination)? else {
        return Ok(explanation);
    };
    fronted.asked = server_name.map(str::to_owned);
    let Some(http) = fronted.http() else {
        fronted.unknown(&mut explanation);
        return Ok(explanation);
    };
    let one = One::new(&fronted, http, server_name);
    match one.carried() {
        Some(carried) => one.answer(carried, &mut explanation),
        None => {
            explanation.notes.push(
                "the port carries requests, or nothing is declared of it: ask about a request \
                 with --method, --path, --host or --header"
                    .to_owned(),
            );
            reached::note(&fronted, &mut explanation);
        }
    }
    Ok(explanation)
}

/// One connection to one destination.
pub(super) struct One<'a> {
    fronted: &'a Fronted<'a>,
    http: &'a ServiceHttp,
    server_name: Option<String>,
}

impl<'a> One<'a> {
    pub(super) fn new(
        fronted: &'a Fronted<'a>,
        http: &'a ServiceHttp,
        server_name: Option<&str>,
    ) -> Self {
        let server_name = server_name.map(str::to_ascii_lowercase);
        Self { fronted, http, server_name }
    }

    fn port(&self) -> u16 {
        self.fronted.target.address.port()
    }

    /// What the port carries, unless that is HTTP or may be.
    pub(super) fn carried(&self) -> Option<&'static str> {
        let source = self.fronted.source();
        let client = source.identity().map(|it| &*it.namespace);
        match self.http.served_as(self.port(), client) {
            Protocol::Tcp => Some("TCP"),
            Protocol::Tls => Some("TLS"),
            Protocol::Detect | Protocol::Http | Protocol::Http2 => None,
        }
    }

    pub(super) fn answer(&self, carried: &'static str, into: &mut admin::Explanation) {
        let Self { fronted, http, .. } = self;
        let source = fronted.source();
        let client = source.identity().map(|it| &it.namespace);
        let server_name = self.server_name.as_deref();
        let connection = Connection {
            server_name,
            destination: fronted.target.address.ip(),
            client_namespace: client.map(|it| &**it),
        };
        let table = http.bytes_routes(self.port(), client.map(|it| &**it));
        let found = table.map(|table| table.find(&connection));
        let rule = found.as_ref().and_then(|it| it.as_ref().ok());
        let action = match &found {
            None => "to the service itself: no route is attached".to_owned(),
            Some(Ok((_, rule))) => routes::connection_action(rule),
            Some(Err(none)) => format!("refuse: {none}"),
        };
        let backends = match &found {
            Some(Err(_)) => Vec::new(),
            _ => Backend::all(fronted, rule.map(|(_, rule)| of_rule(rule))),
        };
        into.connection = Some(admin::ConnectionAnswer {
            waypoint: fronted.waypoint.clone(),
            protocol: carried.into(),
            server_name: self.server_name.clone(),
            rule: rule.map(|(_, rule)| routes::rule(&rule.origin)),
            matches: rule.map(|(wanted, _)| routes::connections(wanted)),
            action,
            bounds: bounds::of_backends(fronted, &backends, false),
            health_checks: bounds::checks(fronted, &backends),
        });
        into.decided_by = Some(format!("the waypoint {}", fronted.waypoint));
        let passing = Passing {
            source: &source,
            client_namespace: client,
            destination: fronted.target.address,
            server_name,
            is_name_known: http.asks_for_names(self.port(), client.map(|it| &**it)),
        };
        if !self.judge(&passing, into) {
            return;
        }
        match found {
            Some(Err(none)) => {
                let remedy = "add a route that takes the connection, or say the name in its TLS \
                              handshake with --sni; `ambit routes` shows the table";
                let reason = format!("{none}; {}", into.reason);
                refuse(into, reason, remedy);
            }
            Some(Ok((_, rule))) => self.judge_elsewhere(&passing, rule, into),
            None => {}
        }
        if into.decision == admin::Decision::Allow {
            reached::judge(fronted, &backends, into);
        }
    }

    /// Asks the policies; returns whether they let it pass.
    fn judge(&self, passing: &Passing<'_>, into: &mut admin::Explanation) -> bool {
        let what = format!("connections of {}", who(passing.source));
        match passing.judge(self.fronted.builder.view(), self.http) {
            Ok(rule) => {
                into.decision = admin::Decision::Allow;
                into.reason = match &rule {
                    Some(rule) => format!("allowed by policy {rule}"),
                    None => "no ALLOW policy holds for the connections and no DENY policy matches"
                        .to_owned(),
                };
                into.policy = rule.map(|rule| self.fronted.deciding(&rule));
                true
            }
            Err(why) => {
                let remedy = match &why {
                    NotPassing::Denied(Denial::Denied(rule)) => {
                        into.policy = Some(self.fronted.deciding(rule));
                        format!(
                            "rule {} of DENY policy {} must not match {what}; what a rule asks of \
                             requests is taken as true",
                            rule.rule, rule.policy
                        )
                    }
                    NotPassing::Denied(Denial::NotAllowed { policy, .. }) => format!(
                        "a rule of {policy} or of another ALLOW policy for {} must match {what}; \
                         one that asks anything of requests never does",
                        self.fronted.name
                    ),
                    NotPassing::Custom(rule) => {
                        format!("CUSTOM policy {} must not hold for this port", rule.policy)
                    }
                    NotPassing::Denied(_) | NotPassing::AboutRequests | NotPassing::Unknown(_) => {
                        "wait until control has sent all that holds here".to_owned()
                    }
                };
                refuse(into, why.to_string(), &remedy);
                false
            }
        }
    }

    /// Asks what holds where the rule leads, if that is another namespace.
    fn judge_elsewhere(
        &self,
        passing: &Passing<'_>,
        rule: &BytesRule,
        into: &mut admin::Explanation,
    ) {
        let backends = Backend::all(self.fronted, Some(of_rule(rule)));
        if backends.is_empty() {
            let remedy = "correct the rule; `ambit routes` shows the table";
            let reason = format!("the route leads nowhere; {}", into.reason);
            return refuse(into, reason, remedy);
        }
        for backend in &backends {
            let to = (backend.name, backend.port);
            let is_own = self.fronted.speaks_for(&rule.origin);
            let (view, from) = (self.fronted.builder.view(), (self.http, is_own));
            let judged = passing.judge_elsewhere(view, from, to);
            let Err(why) = judged else { continue };
            let why = format!("{} refuses what this route sends there: {why}", backend.name);
            if backends.len() > 1 {
                into.notes.push(why);
            } else {
                refuse(into, why, "a policy there must allow it, or the route must lead elsewhere");
            }
        }
    }
}

fn of_rule(rule: &BytesRule) -> impl Iterator<Item = (u32, &Destination)> {
    rule.backends.iter().map(|it| (it.weight, &it.destination))
}

fn refuse(into: &mut admin::Explanation, reason: String, remedy: &str) {
    into.decision = admin::Decision::Deny;
    into.reason = reason;
    into.remedy = Some(remedy.to_owned());
}
