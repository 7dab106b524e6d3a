//! The token that a request is asked about with: claims that somebody supposes.

use std::time::SystemTime;

use ambit_model::http::authentication::Authentication;
use ambit_model::http::authorize::Token;
use ambit_tls::jwt::{Refusal, suppose};
use ambit_wire::admin;

/// The token with these claims, if any are given, as the waypoint takes it. Where it refuses the
/// request the status of its answer, and `into` says why.
pub(super) fn supposed(
    authentication: &Authentication,
    claims: Option<&str>,
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
    let Some(claims) = claims else { return Ok(None) };
    if authentication.rules.is_empty() {
        let note = "no RequestAuthentication holds for the service: nobody reads the token";
        into.notes.push(note.to_owned());
        return Ok(None);
    }
    suppose(claims, &authentication.rules, SystemTime::now()).map(Some).map_err(|refusal| {
        let remedy = match refusal {
            Refusal::Issuer => "give `iss` of the token, or add a rule for its issuer",
            Refusal::NoKeys => "make the issuer reachable for control, or write its keys as `jwks`",
            Refusal::Audience => "give `aud` of the token, or add its audience to the rule",
            _ => "correct the claims: an object in JSON",
        };
        refused(format!("the token is refused: {refusal}"), remedy);
        if refusal == Refusal::Audience { 403 } else { 401 }
    })
}
