//! The authorization services that policies ask.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::authorizer::{Authorizer, BodyCheck, Call, Check, HttpCall};
use ambit_model::policy::TextMatch;

use super::super::{ConvertError, each, text};
use super::{EMPTY, action, duration, duration_message, inner, optional, policy, required, status};
use crate::proto::ambit::http as proto;

pub(super) fn authorizer(
    message: proto::Authorizer,
) -> Result<(Text, Arc<Authorizer>), ConvertError> {
    let check = Check {
        call: call(required("call", message.call)?)?,
        timeout: inner("timeout", message.timeout, duration)?,
        fail_open: message.fail_open,
        status_on_error: status("status_on_error", message.status_on_error)?,
        body: message.body.map(|it| BodyCheck {
            max_bytes: it.max_bytes,
            allow_partial: it.allow_partial,
            as_bytes: it.as_bytes,
        }),
    };
    let destination = inner("destination", message.destination, action::destination)?;
    Ok((text(&message.name), Arc::new(Authorizer { destination, check })))
}

pub(super) fn message((name, it): (&Text, &Arc<Authorizer>)) -> proto::Authorizer {
    let check = &it.check;
    proto::Authorizer {
        name: name.to_string(),
        destination: Some(action::destination_message(&it.destination)),
        call: Some(call_message(&check.call)),
        timeout: Some(duration_message(check.timeout)),
        fail_open: check.fail_open,
        status_on_error: check.status_on_error.into(),
        body: check.body.map(|it| proto::BodyCheck {
            max_bytes: it.max_bytes,
            allow_partial: it.allow_partial,
            as_bytes: it.as_bytes,
        }),
    }
}

fn call(message: proto::authorizer::Call) -> Result<Call, ConvertError> {
    use proto::authorizer::Call as Message;
    Ok(match message {
        Message::Grpc(_) => Call::Grpc,
        Message::Http(it) => Call::Http(http(it).map_err(|error| error.within("http"))?),
    })
}

fn call_message(call: &Call) -> proto::authorizer::Call {
    use proto::authorizer::Call as Message;
    match call {
        Call::Grpc => Message::Grpc(EMPTY),
        Call::Http(it) => Message::Http(http_message(it)),
    }
}

fn http(message: proto::HttpCall) -> Result<HttpCall, ConvertError> {
    let matches = |it: proto::TextMatches| each("any_of", it.any_of, policy::words);
    let additional = message.additional.iter().map(|it| (text(&it.name), text(&it.value)));
    Ok(HttpCall {
        path_prefix: text(&message.path_prefix),
        additional: additional.collect(),
        include: each("include", message.include, policy::words)?,
        to_upstream_on_allow: each(
            "to_upstream_on_allow",
            message.to_upstream_on_allow,
            policy::words,
        )?,
        to_downstream_on_deny: optional(
            "to_downstream_on_deny",
            message.to_downstream_on_deny,
            matches,
        )?,
        to_downstream_on_allow: each(
            "to_downstream_on_allow",
            message.to_downstream_on_allow,
            policy::words,
        )?,
    })
}

fn http_message(it: &HttpCall) -> proto::HttpCall {
    let matches = |all: &[TextMatch]| all.iter().map(policy::words_message).collect::<Vec<_>>();
    let field = |(name, value): &(Text, Text)| proto::Header {
        name: name.to_string(),
        value: value.to_string(),
    };
    proto::HttpCall {
        path_prefix: it.path_prefix.to_string(),
        include: matches(&it.include),
        additional: it.additional.iter().map(field).collect(),
        to_upstream_on_allow: matches(&it.to_upstream_on_allow),
        to_downstream_on_deny: it
            .to_downstream_on_deny
            .as_deref()
            .map(|all| proto::TextMatches { any_of: matches(all) }),
        to_downstream_on_allow: matches(&it.to_downstream_on_allow),
    }
}
