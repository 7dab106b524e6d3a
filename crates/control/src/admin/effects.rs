//! What a rule does beside sending a request on, in words, for `ambit routes` and `ambit why`.

use ambit_model::http::matching::ValueMatch;
use ambit_model::http::rule::{
    Abort, Action, Cors, Destination, Fraction, HeaderChanges, Mirror, PathChange, Rewrite, Rule,
};
use ambit_wire::admin::RuleEffects;
use ambit_words::durations::write_duration;

/// What a rule does beside sending the request on.
pub(super) fn of_rule(rule: &Rule) -> RuleEffects {
    let (backends, rewrite) = match &rule.action {
        Action::Forward { backends, rewrite } => (&backends[..], self::rewrite(rewrite)),
        Action::Redirect(_) | Action::Respond { .. } => (&[][..], None),
    };
    let of_backends = backends.iter().flat_map(|backend| {
        let to = match &backend.destination {
            Destination::Service { name, port, .. } => format!(" to {name}:{port}"),
            Destination::Invalid(_) => String::new(),
        };
        let request = changes(&format!("request{to}"), &backend.request_headers);
        request
            .chain(changes(&format!("response{to}"), &backend.response_headers))
            .collect::<Vec<_>>()
    });
    let headers = changes("request", &rule.request_headers);
    let headers = headers.chain(changes("response", &rule.response_headers)).chain(of_backends);
    RuleEffects {
        faults: faults(rule),
        rewrite,
        headers: headers.collect(),
        mirrors: rule.mirrors.iter().map(mirror).collect(),
        cors: rule.cors.as_ref().map(cors),
    }
}

/// The answer that a fault gives to every request that would be sent on.
pub(super) fn abort_of_all(rule: &Rule) -> Option<Abort> {
    let is_sent = matches!(rule.action, Action::Forward { .. });
    let (part, abort) = rule.faults.abort?;
    (is_sent && part.numerator >= part.denominator).then_some(abort)
}

/// The status of a fault's answer, in words.
pub(super) fn abort(abort: Abort) -> String {
    match abort {
        Abort::Http(status) => status.to_string(),
        Abort::Grpc(status) => format!("200 and grpc-status {status}"),
    }
}

fn faults(rule: &Rule) -> Vec<String> {
    let delay = rule
        .faults
        .delay
        .map(|(part, time)| format!("delay of {} for {}", write_duration(time), percent(part)));
    let aborted =
        rule.faults.abort.map(|(part, it)| format!("answer {} for {}", abort(it), percent(part)));
    delay.into_iter().chain(aborted).collect()
}

fn percent(Fraction { numerator, denominator }: Fraction) -> String {
    let percent = f64::from(numerator) * 100.0 / f64::from(denominator.max(1));
    format!("{percent} %")
}

fn rewrite(Rewrite { host, path }: &Rewrite) -> Option<String> {
    let host = host.as_ref().map(|host| format!("host {host}"));
    let path = path.as_ref().map(|change| match change {
        PathChange::Full(text) => format!("path {text}"),
        PathChange::Segments(text) | PathChange::Prefix(text) => {
            format!("what matches of the path becomes {text}")
        }
        PathChange::Regex { pattern, substitution } => {
            format!("~{} of the path becomes {substitution}", pattern.source())
        }
    });
    let parts: Vec<String> = [host, path].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn changes<'a>(of: &str, changes: &'a HeaderChanges) -> impl Iterator<Item = String> + use<'a> {
    let [remove, set, add] = ["remove", "set", "add"].map(|what| format!("{of}: {what}"));
    let removed = changes.remove.iter().map(move |name| format!("{remove} {name}"));
    let replaced = changes.set.iter().map(move |(name, value)| format!("{set} {name}: {value}"));
    let added = changes.add.iter().map(move |(name, value)| format!("{add} {name}: {value}"));
    removed.chain(replaced).chain(added)
}

fn mirror(Mirror { destination, fraction }: &Mirror) -> String {
    let part = percent(*fraction);
    match destination {
        Destination::Service { name, port, subset } => {
            let subset = subset.as_ref().map(|it| format!(" subset {it}")).unwrap_or_default();
            format!("{part} to {name}:{port}{subset}")
        }
        Destination::Invalid(why) => format!("none: {why}"),
    }
}

fn cors(cors: &Cors) -> String {
    let origin = |origin: &ValueMatch| match origin {
        ValueMatch::Exact(text) | ValueMatch::ExactNoCase(text) => text.to_string(),
        ValueMatch::Prefix(text) => format!("{text}*"),
        ValueMatch::Regex(pattern) => format!("~{}", pattern.source()),
        ValueMatch::Present => "*".to_owned(),
    };
    let origins: Vec<String> = cors.allow_origins.iter().map(origin).collect();
    let origins = if origins.is_empty() { "none".to_owned() } else { origins.join(" or ") };
    let methods: Vec<&str> = cors.allow_methods.iter().map(|it| &**it).collect();
    match methods.is_empty() {
        true => format!("origins {origins}"),
        false => format!("origins {origins}; methods {}", methods.join(", ")),
    }
}
