//! Whose tokens a request carries.
//!
//! Each rule of the service looks for tokens of its issuer where it is told to. Without any token a
//! request passes: policies decide whether that is enough. Otherwise one rule must accept what it
//! has found, all of it. What is learned becomes a part of the client for routes and policies, and
//! is written into the fields that the rules name. A client never writes these itself.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::SystemTime;

use ambit_model::Text;
use ambit_model::http::authentication::{Authentication, JwtRule};
use ambit_tls::jwt::{Refusal, Verified, verify};
use ambit_tls::key_set::KeySet;

use crate::engine::answer::Answer;
use crate::engine::record::Flags;
use crate::fields::known::Known;
use crate::head::RequestHead;
use crate::refused::Refused;

/// Key sets that a thread keeps read; beyond that the oldest is read again when it is needed.
const KEY_SETS_MAX: usize = 64;

/// Key sets that were read, by the text they were read of.
#[derive(Default)]
pub(super) struct KeySets(RefCell<Vec<(Text, Option<Arc<KeySet>>)>>);

impl KeySets {
    /// The set; `None` if the text is none.
    fn get(&self, text: &Text) -> Option<Arc<KeySet>> {
        let mut known = self.0.borrow_mut();
        // The text that is compared is held here, so its address is not another's.
        if let Some((_, set)) = known.iter().find(|(it, _)| Arc::ptr_eq(it, text)) {
            return set.clone();
        }
        if known.len() == KEY_SETS_MAX {
            known.remove(0);
        }
        let set = KeySet::from_json(text).map(Arc::new);
        let set = set.inspect_err(|error| tracing::warn!(%error, "an issuer's keys are unusable"));
        known.push((text.clone(), set.as_ref().ok().cloned()));
        set.ok()
    }
}

/// A token of a request, and where it was found.
struct Found {
    token: String,
    place: Place,
}

/// Where a token was found.
enum Place {
    Field(Text),
    Parameter(Text),
    Cookie(Text),
}

/// Verifies the tokens of a request, and changes its fields as the rules say.
pub(super) fn authenticate(
    authentication: &Authentication,
    head: &mut RequestHead,
    scheme: &str,
    sets: &KeySets,
) -> Result<Option<Verified>, Answer> {
    if let Some(problem) = &authentication.problem {
        let answer = Answer::new(403, Flags::Denied, "denied", problem.to_string());
        return Err(answer.with_body("RBAC: access denied"));
    }
    if authentication.rules.is_empty() {
        return Ok(None);
    }
    for name in authentication.rules.iter().flat_map(JwtRule::written_headers) {
        head.fields.remove_alike(name);
    }
    // Beside a token that is verified, none that is not.
    for (name, _) in authentication.rules.iter().flat_map(|rule| &rule.from_headers) {
        head.fields.remove_disguised(name);
    }
    if is_preflight(head) {
        return Ok(None);
    }
    let now = SystemTime::now();
    let (mut refusal, mut accepted) = (None, None);
    for rule in &authentication.rules {
        let found = tokens(rule, head);
        if found.is_empty() {
            continue;
        }
        let keys = rule.keys.as_ref().and_then(|keys| sets.get(keys));
        let all = &authentication.rules;
        let verified = found.iter().map(|it| verify(&it.token, rule, all, keys.as_deref(), now));
        match verified.collect::<Result<Vec<_>, _>>() {
            Ok(verified) => {
                let first = verified.into_iter().next();
                let first = first.expect("one result for each token, and there is one");
                pass_on(rule, &first, &found, head).map_err(too_large)?;
                accepted.get_or_insert(first);
            }
            // That it is another issuer's says less than what its own rule says of it.
            Err(why) => {
                refusal = refusal.filter(|it| *it != Refusal::Issuer).or(Some(why));
            }
        }
    }
    match (accepted, refusal) {
        (Some(verified), _) => Ok(Some(verified)),
        (None, None) => Ok(None),
        (None, Some(refusal)) => Err(refused(refusal, head, scheme)),
    }
}

/// A browser's question carries no token (Fetch, "CORS-preflight fetch").
fn is_preflight(head: &RequestHead) -> bool {
    head.method().as_str() == "OPTIONS"
        && head.fields.first("origin").is_some()
        && head.fields.first("access-control-request-method").is_some()
}

fn too_large(refused: Refused) -> Answer {
    let details = format!("{refused} ({})", refused.section());
    Answer::new(refused.status(), Flags::Malformed, "malformed", details)
}

/// The tokens that a rule's issuer may have made.
fn tokens(rule: &JwtRule, head: &RequestHead) -> Vec<Found> {
    let mut found = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for (name, prefix) in &rule.from_headers {
        for line in head.fields.all(&**name) {
            // The scheme of Authorization has no case (RFC 9110, 11.1).
            let Some((start, token)) = line.split_at_checked(prefix.len()) else { continue };
            if start.eq_ignore_ascii_case(prefix.as_bytes()) {
                let (token, place) = (text(token.trim_ascii()), Place::Field(name.clone()));
                found.push(Found { token, place });
            }
        }
    }
    let query = head.path().and_then(|it| it.query()).unwrap_or_default();
    for name in &rule.from_parameters {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let values = pairs.filter(|(key, _)| *key == &**name).map(|(_, value)| value);
        let place = || Place::Parameter(name.clone());
        found.extend(values.map(|value| Found { token: value.to_owned(), place: place() }));
    }
    for name in &rule.from_cookies {
        let lines = head.fields.all(Known::Cookie);
        let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
        for pair in pairs.map(<[u8]>::trim_ascii) {
            let value = pair.strip_prefix(name.as_bytes()).and_then(|it| it.strip_prefix(b"="));
            let place = || Place::Cookie(name.clone());
            found.extend(value.map(|value| Found { token: text(value), place: place() }));
        }
    }
    found
}

/// Writes what of a token is sent on.
fn pass_on(
    rule: &JwtRule,
    verified: &Verified,
    found: &[Found],
    head: &mut RequestHead,
) -> Result<(), Refused> {
    if !rule.forwards_token {
        found.iter().try_for_each(|it| take_out(&it.place, head))?;
    }
    let mut set = |name: &Text, value: &str| {
        head.fields.set(&**name, value.as_bytes()).map_err(|_| Refused::HeadTooLarge)
    };
    if let Some(name) = &rule.payload_header {
        set(name, verified.payload())?;
    }
    for (name, keys) in &rule.claim_headers {
        let Some(value) = verified.claim_text(keys) else { continue };
        // What is no plain text in a field is left out: it could be read as something else.
        if value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            set(name, &value)?;
        }
    }
    Ok(())
}

/// Removes what a token was found in; what else the query or the cookies say stays.
fn take_out(place: &Place, head: &mut RequestHead) -> Result<(), Refused> {
    match place {
        Place::Field(name) => {
            head.fields.remove(&**name);
        }
        Place::Parameter(name) => {
            if let Some(path) = head.path_mut() {
                path.retain_parameters(|it| it != &**name);
            }
        }
        Place::Cookie(name) => {
            let is_token = |pair: &[u8]| {
                let value = pair.strip_prefix(name.as_bytes());
                value.is_some_and(|it| it.starts_with(b"="))
            };
            let lines: Vec<Vec<u8>> = head.fields.all(Known::Cookie).map(<[u8]>::to_vec).collect();
            head.fields.remove(Known::Cookie);
            for line in lines {
                let pairs = line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
                let kept: Vec<&[u8]> = pairs.filter(|pair| !is_token(pair)).collect();
                let kept = kept.join(&b"; "[..]);
                if !kept.is_empty() {
                    let put = head.fields.append(Known::Cookie, &kept);
                    put.map_err(|_| Refused::HeadTooLarge)?;
                }
            }
        }
    }
    Ok(())
}

/// RFC 6750, section 3; the texts are Envoy's.
fn refused(refusal: Refusal, head: &RequestHead, scheme: &str) -> Answer {
    let status = if refusal == Refusal::Audience { 403 } else { 401 };
    let details = format!("the request's token is refused: {refusal}");
    let answer = Answer::new(status, Flags::Unauthorized, "jwt", details);
    let path = head.path().map_or("*", |it| it.path());
    let realm = format!("{scheme}://{}{path}", head.authority().as_str());
    let challenge = format!("Bearer realm=\"{realm}\", error=\"invalid_token\"");
    answer.with_body(refusal.to_string()).with_field("www-authenticate", challenge)
}
