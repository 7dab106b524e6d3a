//! The Fetch standard's CORS protocol, as a route asks for it.
//!
//! A browser's question (a preflight) is answered here, before any policy: it carries no
//! credentials, and its answer says nothing but what the route's owner has written.

use ambit_model::Text;
use ambit_model::http::matching::ValueMatch;
use ambit_model::http::rule::Cors;

use crate::engine::answer::Answer;
use crate::engine::record::Flags;
use crate::fields::Fields;
use crate::head::RequestHead;
use crate::refused::Refused;

/// The page's origin, if it may send requests.
pub(crate) fn allowed_origin<'a>(cors: &Cors, fields: &'a Fields) -> Option<&'a str> {
    let origin = std::str::from_utf8(fields.first("origin")?).ok()?;
    cors.allow_origins.iter().any(|it| it.matches(origin.as_bytes())).then_some(origin)
}

/// Why this proxy itself has answered a browser's question.
pub(crate) const PREFLIGHT: &str = "preflight";

/// The answer to a preflight. That to a page whose origin is not allowed permits nothing, unless
/// such questions are sent on.
pub(crate) fn preflight(cors: &Cors, head: &RequestHead) -> Option<Answer> {
    let asked = head.fields.first("access-control-request-method")?;
    if head.method().as_str() != "OPTIONS" || head.fields.first("origin").is_none() {
        return None;
    }
    let mut answer = Answer::new(204, Flags::None, PREFLIGHT, String::new());
    let Some(origin) = allowed_origin(cors, &head.fields) else {
        return (!cors.forwards_unmatched).then_some(answer);
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let asked_headers = head.fields.first("access-control-request-headers");
    // A page reads `access-control-expose-headers` elsewhere, but Envoy and the Gateway API's suite
    // have it here as well.
    for (name, value) in shared(cors, origin) {
        answer = answer.with_field(name, value);
    }
    let methods = list(&cors.allow_methods, cors.allow_credentials, || text(asked));
    if !methods.is_empty() {
        answer = answer.with_field("access-control-allow-methods", methods);
    }
    let wanted = || asked_headers.map(text).unwrap_or_default();
    let headers = list(&cors.allow_headers, cors.allow_credentials, wanted);
    if !headers.is_empty() {
        answer = answer.with_field("access-control-allow-headers", headers);
    }
    if let Some(age) = cors.max_age {
        answer = answer.with_field("access-control-max-age", age.as_secs().to_string());
    }
    Some(answer)
}

/// Puts in what lets a page of another origin, which is allowed, read a response.
pub(crate) fn share(fields: &mut Fields, cors: &Cors, origin: &str) -> Result<(), Refused> {
    for (name, value) in shared(cors, origin) {
        let put = match name {
            "vary" => fields.append(name, value.as_bytes()),
            _ => fields.set(name, value.as_bytes()),
        };
        put.map_err(|_| Refused::HeadTooLarge)?;
    }
    Ok(())
}

/// The fields of every answer to a page whose origin is allowed.
fn shared(cors: &Cors, origin: &str) -> Vec<(&'static str, String)> {
    let mut fields = of_origin(cors, origin);
    let exposed = list(&cors.expose_headers, cors.allow_credentials, String::new);
    if !exposed.is_empty() {
        fields.push(("access-control-expose-headers", exposed));
    }
    fields
}

fn of_origin(cors: &Cors, origin: &str) -> Vec<(&'static str, String)> {
    let is_any = cors.allow_origins.iter().any(|it| matches!(it, ValueMatch::Present));
    if is_any && !cors.allow_credentials {
        return vec![("access-control-allow-origin", "*".to_owned())];
    }
    let mut fields = vec![
        ("access-control-allow-origin", origin.to_owned()),
        // Caches must not give one page's answer to another.
        ("vary", "Origin".to_owned()),
    ];
    if cors.allow_credentials {
        fields.push(("access-control-allow-credentials", "true".to_owned()));
    }
    fields
}

/// A list as it is sent. With credentials `*` has no meaning of its own (Fetch, 3.3.5), so what was
/// asked for is sent instead.
fn list(allowed: &[Text], with_credentials: bool, asked: impl FnOnce() -> String) -> String {
    if allowed.iter().any(|it| &**it == "*") {
        return if with_credentials { asked() } else { "*".to_owned() };
    }
    allowed.join(", ")
}
