//! What a waypoint does with one request, and what would have to change.
//!
//! Route and policies are asked as the engine asks them: the path is normalised first, no rule that
//! matches is 404, and whoever may not ask is told only that. Nothing here sends a request.

use std::collections::BTreeMap;

use ambit_http::{Normalisation, Path};
use ambit_manifest::traffic_policy::Section;
use ambit_model::authorize::{Decision, Denial};
use ambit_model::http::authorize::{Asked, Custom, RequestDecision, authorize};
use ambit_model::http::authorizer::Call;
use ambit_model::http::elsewhere;
use ambit_model::http::head::{Claims, Client, NamedValues, RequestHead};
use ambit_model::http::policy::{self, RequestPolicy};
use ambit_model::http::rule::{self, Abort, Action, Rule};
use ambit_model::http::service::ServiceHttp;
use ambit_model::http::table::Found;
use ambit_wire::admin;
use ambit_words::durations::write_duration;
use ambit_words::names::MESH_CONFIG_MAP;

use super::bounds::{self, Backend};
use super::ends::WhyError;
use super::fronted::{Fronted, who};
use super::sent_on::SentOn;
use super::token::{self, Given};
use super::{connection, limits, reached, told};
use crate::admin::{effects, routes};
use crate::view_builder::Builder;

/// A request as it is asked about.
#[derive(Debug, PartialEq)]
pub(in crate::admin) struct Request {
    method: String,
    path: String,
    host: Option<String>,
    headers: Vec<(String, String)>,
    /// The client's token.
    token: Option<Given>,
    /// The name in the TLS handshake, where the port carries TLS.
    server_name: Option<String>,
}

/// What of a question is about a request.
const PARTS: [&str; 6] = ["method", "path", "host", "headers", "claims", "jwt"];

impl Request {
    /// Reads what a question says of a request, if it says anything.
    pub(in crate::admin) fn of(query: &BTreeMap<String, String>) -> Result<Option<Self>, WhyError> {
        let of = |name: &str| query.get(name).cloned();
        if !PARTS.iter().any(|name| query.contains_key(*name)) {
            return Ok(None);
        }
        let lines = of("headers").unwrap_or_default();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').ok_or_else(|| {
                WhyError::Request(format!("{line:?} is no field; write NAME: VALUE"))
            })?;
            Ok((name.trim().to_lowercase(), value.trim().to_owned()))
        };
        let headers = lines.lines().map(header).collect::<Result<Vec<_>, WhyError>>()?;
        let method = of("method").unwrap_or_else(|| "GET".to_owned());
        if http::Method::from_bytes(method.as_bytes()).is_err() {
            let why = format!("{method:?} is no method; write a word such as GET");
            return Err(WhyError::Request(why));
        }
        Ok(Some(Self {
            method,
            path: of("path").unwrap_or_else(|| "/".to_owned()),
            host: of("host"),
            headers,
            token: of("jwt").map(Given::Whole).or_else(|| of("claims").map(Given::Claims)),
            server_name: of("sni"),
        }))
    }

    /// The path as routes and policies see it.
    fn normalised(&self) -> Result<Path, WhyError> {
        let refused = |refused| WhyError::Request(format!("path {:?}: {refused}", self.path));
        let mut path = Path::parse(self.path.as_bytes()).map_err(refused)?;
        path.normalise(Normalisation::Base).map_err(refused)?;
        Ok(path)
    }
}

/// Explains a request of pod `source` to `destination`.
pub(in crate::admin) fn explain(
    builder: &Builder,
    source: &str,
    destination: &str,
    request: &Request,
) -> Result<admin::Explanation, WhyError> {
    let mut explanation = super::explain(builder, source, destination)?;
    let path = request.normalised()?;
    if explanation.plan != "waypoint" {
        explanation.notes.push(
            "no waypoint stands before the destination: nobody reads the request, and the \
             connection alone is judged"
                .to_owned(),
        );
        return Ok(explanation);
    }
    let Some(mut fronted) = Fronted::of(builder, source, destination)? else {
        return Ok(explanation);
    };
    fronted.asked = request.host.clone().or_else(|| request.server_name.clone());
    let Some(http) = fronted.http() else {
        fronted.unknown(&mut explanation);
        return Ok(explanation);
    };
    let connection = connection::One::new(&fronted, http, request.server_name.as_deref());
    if let Some(carried) = connection.carried() {
        connection.answer(carried, &mut explanation);
        explanation.notes.push(format!(
            "the port carries {carried}: nobody reads the request, and the connection is judged"
        ));
        return Ok(explanation);
    }
    let one = One { http, fronted: &fronted, request };
    one.answer(&path, &mut explanation);
    explanation.notes.extend(told::notes(&http.telemetry));
    if path.as_str() != request.path || is_read_in_several_ways(path.path()) {
        explanation.notes.push(
            "the path is normalised as by default (BASE); AMBIT_PATH_NORMALIZATION of the \
             waypoint may say otherwise, and is not known here"
                .to_owned(),
        );
    }
    Ok(explanation)
}

/// Whether normalisations differ about a path.
fn is_read_in_several_ways(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    ["//", "%2f", "%5c", "\\", ";", "/."].iter().any(|part| path.contains(part))
}

/// One request to one destination.
struct One<'a> {
    http: &'a ServiceHttp,
    fronted: &'a Fronted<'a>,
    request: &'a Request,
}

impl One<'_> {
    fn answer(&self, path: &Path, explanation: &mut admin::Explanation) {
        let source = self.fronted.source();
        let namespace = source.identity().map(|it| it.namespace.clone());
        let authority = self.request.host.as_deref().unwrap_or(&self.fronted.host).to_lowercase();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, port.parse().ok()),
            _ => (&*authority, None),
        };
        let unanswered = admin::RequestAnswer {
            waypoint: self.fronted.waypoint.clone(),
            method: self.request.method.clone(),
            host: authority.clone(),
            path: path.path().to_owned(),
            ..admin::RequestAnswer::default()
        };
        explanation.decided_by = Some(format!("the waypoint {}", self.fronted.waypoint));
        let given = self.request.token.as_ref();
        let token = match token::taken(&self.http.authentication, given, explanation) {
            Ok(token) => token,
            Err(status) => {
                let (action, status) = (format!("answer {status}"), Some(status));
                let answer = admin::RequestAnswer { action, status, ..unanswered };
                explanation.request = Some(answer);
                return;
            }
        };
        // A head's fields include its host, as the engine serves them.
        let mut fields = self.request.headers.clone();
        fields.extend(["host", ":authority"].map(|name| (name.to_owned(), authority.clone())));
        let fields = NamedValues(&fields);
        let head = RequestHead {
            method: &self.request.method,
            scheme: "http",
            host,
            port,
            path: path.path(),
            query: path.query().unwrap_or_default(),
            fields: &fields,
            client: Client {
                namespace: namespace.as_ref(),
                claims: token.as_deref().map(|it| it as &dyn Claims),
            },
        };
        let asked = Asked {
            head: &head,
            source: &source,
            remote_ip: source.ip(),
            destination: self.fronted.target.address,
            service: Some(&self.http.service),
            server_name: None,
            token: token.as_deref(),
        };
        self.route(&asked, unanswered, explanation);
    }

    /// What routes, policies and limits make of it.
    fn route(
        &self,
        asked: &Asked<'_>,
        unanswered: admin::RequestAnswer,
        explanation: &mut admin::Explanation,
    ) {
        let namespace = asked.head.client.namespace.map(|it| &**it);
        let routes = self.http.routes(self.fronted.target.address.port(), namespace);
        let found = routes.map(|table| table.find(asked.head));
        let (action, status) = match &found {
            None => ("to the service itself: no route is attached".to_owned(), None),
            Some(None) => ("answer 404: no rule of the routes matches".to_owned(), Some(404)),
            Some(Some(found)) => (routes::action(found.rule), own_status(found.rule)),
        };
        let found = found.flatten();
        let rule = found.as_ref().map(|found| &**found.rule);
        let origin = rule.map(|rule| &rule.origin);
        let abort = rule.and_then(effects::abort_of_all);
        // Faults are made of what limits have let pass.
        let is_limited = status.is_none() || abort.is_some();
        let own = &self.fronted.name;
        let limits = self.http.rate_limits.of(origin, own).filter(|_| is_limited);
        let sizes = self.http.limits.of(origin, own).filter(|_| is_limited);
        let backends = match status {
            Some(_) => Vec::new(),
            None => Backend::all(self.fronted, rule.map(destinations)),
        };
        let of_rule = rule.filter(|_| status.is_none()).map(bounds::of_rule);
        let of_request = is_limited.then(|| bounds::of_request(self.fronted, self.http, origin));
        let of_backends = bounds::of_backends(self.fronted, &backends, true);
        let said = of_rule.into_iter().chain(of_request).flatten();
        explanation.request = Some(admin::RequestAnswer {
            rule: rule.map(|rule| routes::rule(&rule.origin)),
            matches: found.map(|it| routes::matches(&it)),
            action,
            status,
            effects: rule.map(effects::of_rule).unwrap_or_default(),
            limits: limits.map(|it| limits::counting(it, asked)).unwrap_or_default(),
            bounds: said.chain(of_backends).collect(),
            health_checks: bounds::checks(self.fronted, &backends),
            ..unanswered
        });
        let failure = match abort {
            Some(abort @ Abort::Grpc(_)) => Some(effects::abort(abort)),
            _ => status.filter(|status| *status >= 400).map(|status| status.to_string()),
        };
        self.judge(asked, failure.as_deref(), explanation);
        if explanation.decision != admin::Decision::Allow {
            return;
        }
        if limits.is_some_and(|it| limits::refuses(it, asked, explanation)) {
            return;
        }
        let of_sizes = sizes.and_then(|it| it.problem.as_ref());
        let of_limits = limits.and_then(|it| it.problem.as_ref());
        let wrong = of_sizes.map(|why| (Section::Limits, why));
        if let Some((section, why)) = wrong.or(of_limits.map(|why| (Section::RateLimits, why))) {
            let policy = self.fronted.policy(section, origin).unwrap_or_default();
            explanation.decision = admin::Decision::Deny;
            explanation.reason = format!("{policy}: {why}");
            explanation.remedy = Some("correct the TrafficPolicy".to_owned());
            return;
        }
        if let Some(found) = found {
            self.judge_sent(asked, &found, &backends, explanation);
        }
        if explanation.decision == admin::Decision::Allow {
            reached::judge(self.fronted, &backends, explanation);
        }
    }

    /// Judges a request as the rule sends it on.
    fn judge_sent(
        &self,
        asked: &Asked<'_>,
        found: &Found<'_>,
        backends: &[Backend<'_>],
        into: &mut admin::Explanation,
    ) {
        let is_own = self.fronted.speaks_for(&found.rule.origin);
        let sent = SentOn::new(asked.head, found.rule, found.prefix_len());
        let head =
            RequestHead { path: &sent.path, host: &sent.host, fields: &sent.fields, ..*asked.head };
        let asked = if is_own { *asked } else { Asked { head: &head, ..*asked } };
        self.judge_elsewhere(&asked, is_own, backends, into);
    }

    /// Asks what holds where the rule leads, if its makers do not speak for it.
    fn judge_elsewhere(
        &self,
        asked: &Asked<'_>,
        is_own: bool,
        backends: &[Backend<'_>],
        into: &mut admin::Explanation,
    ) {
        for backend in backends {
            let (view, to) = (self.fronted.builder.view(), (backend.name, backend.port));
            let Some(judged) = elsewhere::judge(view, (self.http, is_own), to, asked) else {
                continue;
            };
            let denial = match judged.decision {
                RequestDecision::Denied(denial)
                | RequestDecision::Ask { then: Decision::Deny(denial), .. } => denial,
                RequestDecision::Ask { .. } | RequestDecision::Allowed(_) => continue,
            };
            let why = format!("{} refuses what this route sends there: {denial}", backend.name);
            if backends.len() > 1 {
                into.notes.push(why);
                continue;
            }
            (into.decision, into.reason) = (admin::Decision::Deny, why);
            let remedy = "a policy there must allow it, or the route must lead elsewhere";
            into.remedy = Some(remedy.to_owned());
            into.policy = match &denial {
                Denial::Denied(rule) => Some(self.fronted.deciding(rule)),
                _ => None,
            };
        }
    }

    /// Asks the policies. `failure` is what the routes answer, if that is an error.
    fn judge(&self, asked: &Asked<'_>, failure: Option<&str>, into: &mut admin::Explanation) {
        let policies = || self.fronted.builder.view().request_policies_of(self.http);
        let judgement = authorize(policies(), asked);
        into.notes.extend(policies().filter_map(|policy| condition(policy.ok()?, asked)));
        for custom in &judgement.dry_run_providers {
            let Custom { provider, rule } = custom;
            into.notes.push(format!(
                "the CUSTOM policy {rule} on trial (dry-run) asks the provider {provider}, \
                 whatever it answers"
            ));
        }
        for denial in &judgement.dry_run_denials {
            into.notes.push(format!("a policy on trial (dry-run) would have refused: {denial}"));
        }
        for rule in &judgement.audits {
            into.notes.push(format!("the AUDIT policy {rule} matches"));
        }
        let allowed_by = match judgement.decision {
            RequestDecision::Denied(denial) => return self.denied(asked, &denial, into),
            RequestDecision::Ask { providers, then } => {
                for custom in &providers {
                    if !self.asks(custom, into) {
                        return;
                    }
                }
                match then {
                    Decision::Deny(denial) => return self.denied(asked, &denial, into),
                    Decision::Allow(rule) => rule,
                }
            }
            RequestDecision::Allowed(rule) => rule,
        };
        into.decision = admin::Decision::Allow;
        into.reason = match &allowed_by {
            Some(rule) => format!("allowed by policy {rule}"),
            None => "no ALLOW policy holds for the requests and no DENY policy matches".to_owned(),
        };
        into.policy = allowed_by.map(|rule| self.fronted.deciding(&rule));
        if let Some(failure) = failure {
            into.decision = admin::Decision::Deny;
            into.reason = format!("the routes answer {failure}; {}", into.reason);
            into.remedy = Some(
                "add a rule that matches the request, or correct that rule; `ambit routes` shows \
                 the table"
                    .to_owned(),
            );
        }
    }

    /// Says whom a CUSTOM policy asks. Returns whether it can be asked; otherwise it denies.
    fn asks(&self, custom: &Custom, into: &mut admin::Explanation) -> bool {
        let Custom { provider, rule } = custom;
        let known = self.http.authorizers.get(provider);
        let why = match known.map(|it| (&it.destination, &it.check)) {
            Some((rule::Destination::Service { name, port, .. }, check)) => {
                let speaks = match check.call {
                    Call::Grpc => "gRPC",
                    Call::Http(_) => "HTTP",
                };
                let silence = match check.fail_open {
                    true => "passes".to_owned(),
                    false => format!("is answered {}", check.status_on_error),
                };
                let timeout = write_duration(check.timeout);
                into.notes.push(format!(
                    "CUSTOM policy {rule} asks provider {provider} first ({speaks} at \
                     {name}:{port}), which may refuse; without an answer in {timeout} the request \
                     {silence}"
                ));
                return true;
            }
            Some((rule::Destination::Invalid(why), _)) => why.to_string(),
            None => format!("the waypoint knows no provider {provider} yet"),
        };
        into.decision = admin::Decision::Deny;
        into.reason = format!("CUSTOM policy {rule} cannot ask its provider: {why}");
        into.remedy = Some(format!(
            "define {provider} in extensionProviders of the ConfigMap {}/{MESH_CONFIG_MAP}, with a \
             service that exists",
            self.fronted.builder.mesh().root_namespace
        ));
        into.policy = Some(self.fronted.deciding(rule));
        false
    }

    fn denied(&self, asked: &Asked<'_>, denial: &Denial, into: &mut admin::Explanation) {
        let who = who(asked.source);
        let what = format!("{} {} of {who}", asked.head.method, asked.head.path);
        into.decision = admin::Decision::Deny;
        into.reason = denial.to_string();
        into.remedy = Some(match denial {
            Denial::Denied(rule) => {
                format!("rule {} of DENY policy {} must not match {what}", rule.rule, rule.policy)
            }
            Denial::NotAllowed { policy, .. } => format!(
                "a rule of {policy} or of another ALLOW policy for {} must match {what}",
                self.fronted.name
            ),
            Denial::PolicyMissing(policy) => format!("control must send the policy {policy}"),
            Denial::NotThroughWaypoint { waypoint } => format!("connect through {waypoint}"),
        });
        if let Denial::Denied(rule) = denial {
            into.policy = Some(self.fronted.deciding(rule));
        }
    }
}

/// What the condition of a policy comes to.
fn condition(policy: &RequestPolicy, asked: &Asked<'_>) -> Option<String> {
    let condition = policy.condition.as_ref()?;
    let comes_to = match condition.holds(asked) {
        Ok(value) => format!("is {value}"),
        Err(error) if policy.action == policy::Action::Allow => {
            format!("has no value ({error}), so nothing is allowed by it")
        }
        Err(error) => format!("has no value ({error}), and counts as true"),
    };
    Some(format!("the condition of {} {comes_to}: {}", policy.key, condition.source()))
}

/// The status that a waypoint answers by itself.
fn own_status(rule: &Rule) -> Option<u16> {
    match effects::abort_of_all(rule) {
        Some(Abort::Http(status)) => return Some(status),
        Some(Abort::Grpc(_)) => return Some(200),
        None => {}
    }
    match &rule.action {
        Action::Redirect(redirect) => Some(redirect.status),
        Action::Respond { status, .. } => Some(*status),
        Action::Forward { backends, .. } => {
            let leads_somewhere =
                |it: &rule::Backend| it.weight > 0 && it.destination.service().is_some();
            (!backends.iter().any(leads_somewhere)).then_some(500)
        }
    }
}

/// Where a rule sends requests, by weight.
fn destinations(rule: &Rule) -> impl Iterator<Item = (u32, &rule::Destination)> {
    let backends = match &rule.action {
        Action::Forward { backends, .. } => &backends[..],
        Action::Redirect(_) | Action::Respond { .. } => &[],
    };
    backends.iter().map(|it| (it.weight, &it.destination))
}
