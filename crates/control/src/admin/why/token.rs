//! The token that a request is asked about with: a client's own, or claims that somebody supposes.

use std::fmt;
use std::time::SystemTime;

use ambit_model::http::authentication::{Authentication, JwtRule};
use ambit_model::http::authorize::Token;
use ambit_tls::jwt::{Refusal, suppose, verify};
use ambit_tls::key_set::KeySet;
use ambit_wire::admin;

/// What is given of a token.
#[derive(PartialEq)]
pub(super) enum Given {
    /// What it says, in JSON.
    Claims(String),
    /// The token itself, which is a secret.
    Whole(String),
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claims(claims) => f.debug_tuple("Claims").field(claims).finish(),
            Self::Whole(_) => f.write_str("Whole"),
        }
    }
}

/// The token, if one is given, as the waypoint takes it. Where it refuses the request the status of
/// its answer, and `into` says why.
pub(super) fn taken(
    authentication: &Authentication,
    given: Option<&Given>,
    into: &mut admin::Explanation,
) -> Result<Option<Box<dyn Token>>, u16> {
    let mut refused = |reason: String, remedy: &str| {
        into.decision = admin::Decision::Deny;
        (into.reason, into.policy) = (reason, None);
        into.remedy = Some(remedy.to_owned());
    };
    if let Some(problem) = &authentication.problem {
        refused(
            format!("{problem}: every request is refused"),
            "correct the RequestAuthentication",
        );
        return Err(403);
    }
    let Some(given) = given else { return Ok(None) };
    if authentication.rules.is_empty() {
        let note = "no RequestAuthentication holds for the service: nobody reads the token";
        into.notes.push(note.to_owned());
        return Ok(None);
    }
    let (rules, now) = (&authentication.rules[..], SystemTime::now());
    let taken = match given {
        Given::Claims(claims) => suppose(claims, rules, now),
        Given::Whole(token) => verified(token, rules, now),
    };
    taken.map(Some).map_err(|refusal| {
        let remedy = match refusal {
            Refusal::Issuer => "give `iss` of the token, or add a rule for its issuer",
            Refusal::NoKeys => "make the issuer reachable for control, or write its keys as `jwks`",
            Refusal::Audience => "give `aud` of the token, or add its audience to the rule",
            Refusal::UnknownKey => {
                "publish the key among the issuer's, and wait until control has fetched it; \
                 `ambit status` says how its keys are"
            }
            Refusal::Expired | Refusal::NotYet => "get another token, or set the clocks",
            _ if matches!(given, Given::Whole(_)) => "get another token from the issuer",
            _ => "correct the claims: an object in JSON",
        };
        refused(format!("the token is refused: {refusal}"), remedy);
        if refusal == Refusal::Audience { 403 } else { 401 }
    })
}

/// Verifies a token as the waypoint does it where a rule finds it. That it is another issuer's says
/// less than what its own rule says of it.
fn verified(token: &str, rules: &[JwtRule], now: SystemTime) -> Result<Box<dyn Token>, Refusal> {
    let mut refusal = Refusal::Issuer;
    for rule in rules {
        let keys = rule.keys.as_ref().and_then(|keys| KeySet::from_json(keys).ok());
        match verify(token, rule, rules, keys.as_ref(), now) {
            Ok(verified) => return Ok(Box::new(verified)),
            Err(why) if refusal == Refusal::Issuer => refusal = why,
            Err(_) => {}
        }
    }
    Err(refusal)
}
