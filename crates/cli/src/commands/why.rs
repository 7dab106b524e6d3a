//! `ambit why`: what happens to a connection or a request, what decides it, and what would have to
//! change.

use std::path::Path;
use std::process::ExitCode;

use ambit_wire::admin::{
    BackendCheck, Bound, Decision, Explanation, RequestLimit, RouteRule, control,
};
use anyhow::{Context as _, Result};

use super::mesh;
use super::status::escape;
use crate::args::{Report, WhyArgs};

/// What `ambit why --exit-code` exits with if the connection is not allowed. It is neither that of
/// an error, 1, nor that of wrong usage, 2.
const NOT_ALLOWED: u8 = 3;

/// Prints what happens to a connection.
pub(super) async fn why(args: WhyArgs) -> Result<ExitCode> {
    let mesh = mesh::find(&args.state, &args.kube).await?;
    let (source, destination) = (escape(&args.source), escape(&args.destination));
    let mut target = format!("{}?src={source}&dst={destination}", control::WHY);
    let headers = (!args.headers.is_empty()).then(|| args.headers.join("\n"));
    let parts = [
        ("method", args.method),
        ("path", args.path),
        ("host", args.host),
        ("headers", headers),
        ("claims", args.claims),
        ("jwt", args.jwt.as_deref().map(token).transpose()?),
        ("sni", args.sni),
    ];
    for (name, value) in parts {
        if let Some(value) = value {
            target.push_str(&format!("&{name}={}", escape(&value)));
        }
    }
    let explanation = mesh.why(&target).await?;
    match args.output {
        Report::Json => super::print_json(&explanation)?,
        Report::Text => super::print_text(&text(&explanation))?,
    }
    let is_allowed = explanation.decision == Decision::Allow;
    Ok(match args.exit_code && !is_allowed {
        true => ExitCode::from(NOT_ALLOWED),
        false => ExitCode::SUCCESS,
    })
}

/// The token in a file. It is not a word of the command line, where all users of the machine would
/// read it.
fn token(file: &Path) -> Result<String> {
    let text = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()).context("read the token"),
        false => std::fs::read_to_string(file).with_context(|| {
            // Whoever gives the token itself must not find it in an error. Each begins so.
            if file.as_os_str().as_encoded_bytes().starts_with(b"eyJ") {
                return "--jwt names a file with the token, or `-` for the standard input; a token \
                        itself would be seen by all users of the machine"
                    .to_owned();
            }
            format!("read the token from the file {}", file.display())
        }),
    };
    Ok(text?.trim().to_owned())
}

/// The answer, a fact a line.
fn text(explanation: &Explanation) -> String {
    let facts = ends(explanation)
        .into_iter()
        .chain(request(explanation))
        .chain(connection(explanation))
        .chain(decision(explanation));
    let facts = facts.filter_map(|(name, value)| Some((name, value?)));
    let notes = explanation.notes.iter().map(|note| ("note", note.clone()));
    let all = facts.chain(counted(explanation)).chain(notes);
    all.map(|(name, value)| format!("{name:<15}{value}\n")).collect()
}

/// A name, and what is known of it.
type Fact = (&'static str, Option<String>);

fn ends(explanation: &Explanation) -> Vec<Fact> {
    let Explanation { source, certificate, destination, server, .. } = explanation;
    vec![
        ("from", Some(source.pod.clone())),
        ("identity", Some(source.identity.clone())),
        ("captured", Some(source.captured.to_string())),
        ("certificate", certificate.as_ref().map(|it| it.serial.clone())),
        ("valid until", certificate.as_ref().map(|it| it.not_after.clone())),
        ("to", Some(destination.name.clone())),
        ("address", Some(destination.address.to_string())),
        ("plan", Some(explanation.plan.to_string())),
        ("path", explanation.path.clone()),
        ("server", server.as_ref().map(|it| it.workload.clone())),
        ("server address", server.as_ref().map(|it| it.address.to_string())),
        ("must prove", server.as_ref().and_then(|it| it.identities.first().cloned())),
    ]
}

fn request(explanation: &Explanation) -> Vec<Fact> {
    let Some(it) = &explanation.request else { return Vec::new() };
    vec![
        ("request", Some(format!("{} {} of {}", it.method, it.path, it.host))),
        ("route", it.rule.as_ref().map(route)),
        ("matches", it.matches.clone()),
        ("action", Some(it.action.clone())),
        ("status", it.status.map(|it| it.to_string())),
        ("rewrite", it.effects.rewrite.clone()),
        ("cors", it.effects.cors.clone()),
    ]
    .into_iter()
    .chain(it.effects.faults.iter().map(|it| ("fault", Some(it.clone()))))
    .chain(it.effects.headers.iter().map(|it| ("header", Some(it.clone()))))
    .chain(it.effects.mirrors.iter().map(|it| ("mirror", Some(it.clone()))))
    .collect()
}

fn connection(explanation: &Explanation) -> Vec<Fact> {
    let Some(it) = &explanation.connection else { return Vec::new() };
    let name = it.server_name.as_ref().map(|name| format!(" to {name}")).unwrap_or_default();
    vec![
        ("carries", Some(format!("{}{name}", it.protocol))),
        ("route", it.rule.as_ref().map(route)),
        ("matches", it.matches.clone()),
        ("action", Some(it.action.clone())),
    ]
}

fn decision(explanation: &Explanation) -> Vec<Fact> {
    let policy = explanation.policy.as_ref();
    let origin = policy.and_then(|it| it.origin.as_ref());
    vec![
        ("decision", Some(explanation.decision.to_string())),
        ("decided by", explanation.decided_by.clone()),
        ("policy", policy.map(|it| it.name.clone())),
        ("rule", policy.map(|it| it.rule.to_string())),
        ("written in", origin.map(|it| format!("{} {}", it.object.kind, it.object.name))),
        ("because", Some(explanation.reason.clone())),
        ("to change it", explanation.remedy.clone()),
    ]
}

/// What counts and bounds it, and which endpoints are checked.
fn counted(explanation: &Explanation) -> Vec<(&'static str, String)> {
    let (request, connection) = (&explanation.request, &explanation.connection);
    let limits = request.iter().flat_map(|it| &it.limits).map(|it| ("limit", limit(it)));
    let bounds = request.iter().flat_map(|it| &it.bounds);
    let bounds = bounds.chain(connection.iter().flat_map(|it| &it.bounds));
    let checks = request.iter().flat_map(|it| &it.health_checks);
    let checks = checks.chain(connection.iter().flat_map(|it| &it.health_checks));
    let bounds = bounds.map(|it| ("bound", bound(it)));
    limits.chain(bounds).chain(checks.map(|it| ("health check", check(it)))).collect()
}

fn route(rule: &RouteRule) -> String {
    format!("{} {} rule {}", rule.kind, rule.route, rule.rule)
}

fn limit(limit: &RequestLimit) -> String {
    let RequestLimit { policy, limit, quota, sender, cost, enforced } = limit;
    let sender = if sender.is_empty() { String::new() } else { format!(" for {sender}") };
    let cost = if *cost == 1 { String::new() } else { format!("; costs {cost}") };
    let shadow = if *enforced { "" } else { "; only reported (shadowMode)" };
    format!("{policy} {limit}: {quota}{sender}{cost}{shadow}")
}

fn bound(Bound { bound, value, service, from }: &Bound) -> String {
    let of = service.as_ref().map(|service| format!(" of {service}")).unwrap_or_default();
    format!("{from} {bound}: {value}{of}")
}

fn check(BackendCheck { service, check, from }: &BackendCheck) -> String {
    format!("{from}: {check}; of {service}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decides_and_what_bounds_is_a_line_each() {
        let form = include_str!("../../../wire/tests/wire/admin/why.json");
        let explanation: Explanation = serde_json::from_str(form).expect("the form is read");
        let text = text(&explanation);
        for line in [
            "route          HTTPRoute app/web rule 0",
            "fault          answer 418 for 5 %",
            "rewrite        host web-v2",
            "header         request: set x-team: ops",
            "mirror         50 % to app/web-v3.app.svc.cluster.local:80",
            "carries        TLS to db.example.com",
            "route          TLSRoute app/db rule 0",
            "written in     AuthorizationPolicy app/no-sleepers",
            "limit          app/limits per-user: 10 per second, burst 20, in each waypoint pod for \
             x-user=ann",
            "bound          DestinationRule app/web-v2 maxConnections: 100 of \
             app/web-v2.app.svc.cluster.local",
            "health check   TrafficPolicy app/db: TCP every 5s; of app/db",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
