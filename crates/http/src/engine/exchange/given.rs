//! What a rule says of responses holds for answers that the proxy itself gives to its requests:
//! redirects, direct responses, and what says why a request went nowhere.
//!
//! Without its CORS fields a page could not read even the status of such an answer.

use ambit_model::http::rule::Rule;

use crate::engine::answer::Answer;
use crate::engine::{cors, filters};
use crate::fields::Fields;
use crate::head::ResponseHead;

/// Changes the head of an answer as the rule says. `asked` are the fields of the request.
pub(super) fn change(head: &mut ResponseHead, answer: &Answer, rule: &Rule, asked: &Fields) {
    // The answer to a browser's question says all that there is to say.
    if answer.reason == cors::PREFLIGHT {
        return;
    }
    let origin = rule.cors.as_ref().and_then(|it| Some((it, cors::allowed_origin(it, asked)?)));
    let changed = filters::change_response(head, &rule.response_headers);
    let shared = changed.and_then(|()| match origin {
        Some((it, origin)) => cors::share(&mut head.fields, it, origin),
        None => Ok(()),
    });
    if let Err(error) = shared {
        tracing::debug!(%error, "fields of an answer are left out");
    }
}
