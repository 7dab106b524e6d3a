//! What becomes of a request: backends, redirects, changes of its target and fields.

use ambit_model::Text;
use ambit_model::http::rule::{
    Action, Backend, Destination, HeaderChanges, PathChange, Redirect, RedirectPort, Rewrite,
};
use ambit_model::names::ServiceName;

use super::super::{ConvertError, each, port, text};
use super::{
    EMPTY, inner, optional, optional_string, optional_text, pattern, required, status, strings,
    texts,
};
use crate::proto::ambit::http as proto;

/// An error's field says which action it is.
pub(super) fn action(message: proto::rule::Action) -> Result<Action, ConvertError> {
    use proto::rule::Action as Message;
    match message {
        Message::Forward(it) => forward(it).map_err(|error| error.within("forward")),
        Message::Redirect(it) => {
            redirect(it).map(Action::Redirect).map_err(|error| error.within("redirect"))
        }
        Message::Respond(it) => {
            let status = status("respond.status", it.status)?;
            Ok(Action::Respond { status, body: text(&it.body) })
        }
    }
}

pub(super) fn action_message(action: &Action) -> proto::rule::Action {
    use proto::rule::Action as Message;
    match action {
        Action::Forward { backends, rewrite } => Message::Forward(proto::Forward {
            backends: backends.iter().map(backend_message).collect(),
            rewrite_host: optional_string(&rewrite.host),
            rewrite_path: rewrite.path.as_ref().map(path_change_message),
        }),
        Action::Redirect(redirect) => Message::Redirect(redirect_message(redirect)),
        Action::Respond { status, body } => {
            Message::Respond(proto::Respond { status: (*status).into(), body: body.to_string() })
        }
    }
}

fn forward(message: proto::Forward) -> Result<Action, ConvertError> {
    Ok(Action::Forward {
        backends: each("backends", message.backends, backend)?,
        rewrite: Rewrite {
            host: optional_text(message.rewrite_host),
            path: optional("rewrite_path", message.rewrite_path, path_change)?,
        },
    })
}

fn backend(message: proto::Backend) -> Result<Backend, ConvertError> {
    Ok(Backend {
        weight: message.weight,
        destination: inner("destination", message.destination, destination)?,
        request_headers: header_changes(message.request_headers),
        response_headers: header_changes(message.response_headers),
    })
}

fn backend_message(backend: &Backend) -> proto::Backend {
    proto::Backend {
        weight: backend.weight,
        destination: Some(destination_message(&backend.destination)),
        request_headers: header_changes_message(&backend.request_headers),
        response_headers: header_changes_message(&backend.response_headers),
    }
}

pub(super) fn destination(message: proto::Destination) -> Result<Destination, ConvertError> {
    Ok(match required("kind", message.kind)? {
        proto::destination::Kind::Invalid(reason) => Destination::Invalid(text(&reason)),
        proto::destination::Kind::Service(it) => Destination::Service {
            port: port("service.port", it.port)?,
            name: ServiceName::new(it.namespace, it.hostname),
            subset: optional_text(it.subset),
        },
    })
}

pub(super) fn destination_message(destination: &Destination) -> proto::Destination {
    use proto::destination::Kind;
    let kind = match destination {
        Destination::Invalid(reason) => Kind::Invalid(reason.to_string()),
        Destination::Service { name, port, subset } => Kind::Service(proto::ServicePort {
            namespace: name.namespace.to_string(),
            hostname: name.hostname.to_string(),
            port: (*port).into(),
            subset: optional_string(subset),
        }),
    };
    proto::Destination { kind: Some(kind) }
}

pub(super) fn header_changes(message: Option<proto::HeaderChanges>) -> HeaderChanges {
    let message = message.unwrap_or_default();
    let fields =
        |all: Vec<proto::Header>| all.iter().map(|it| (text(&it.name), text(&it.value))).collect();
    HeaderChanges {
        remove: texts(&message.remove),
        set: fields(message.set),
        add: fields(message.add),
    }
}

/// No change is not sent.
pub(super) fn header_changes_message(changes: &HeaderChanges) -> Option<proto::HeaderChanges> {
    let fields = |all: &[(Text, Text)]| {
        let field = |(name, value): &(Text, Text)| proto::Header {
            name: name.to_string(),
            value: value.to_string(),
        };
        all.iter().map(field).collect()
    };
    (*changes != HeaderChanges::default()).then(|| proto::HeaderChanges {
        remove: strings(&changes.remove),
        set: fields(&changes.set),
        add: fields(&changes.add),
    })
}

fn path_change(message: proto::PathChange) -> Result<PathChange, ConvertError> {
    use proto::path_change::Kind;
    Ok(match required("kind", message.kind)? {
        Kind::Full(it) => PathChange::Full(text(&it)),
        Kind::Segments(it) => PathChange::Segments(text(&it)),
        Kind::Prefix(it) => PathChange::Prefix(text(&it)),
        Kind::Regex(it) => PathChange::Regex {
            pattern: pattern("regex.pattern", &it.pattern)?,
            substitution: text(&it.substitution),
        },
    })
}

fn path_change_message(change: &PathChange) -> proto::PathChange {
    use proto::path_change::Kind;
    let kind = match change {
        PathChange::Full(it) => Kind::Full(it.to_string()),
        PathChange::Segments(it) => Kind::Segments(it.to_string()),
        PathChange::Prefix(it) => Kind::Prefix(it.to_string()),
        PathChange::Regex { pattern, substitution } => Kind::Regex(proto::RegexChange {
            pattern: pattern.source().to_string(),
            substitution: substitution.to_string(),
        }),
    };
    proto::PathChange { kind: Some(kind) }
}

fn redirect(message: proto::Redirect) -> Result<Redirect, ConvertError> {
    use proto::redirect::Port;
    Ok(Redirect {
        scheme: optional_text(message.scheme),
        host: optional_text(message.host),
        port: match required("port", message.port)? {
            Port::Given(it) => RedirectPort::Given(port("given", it)?),
            Port::OfScheme(_) => RedirectPort::OfScheme,
            Port::OfListener(_) => RedirectPort::OfListener,
            Port::OfAuthority(_) => RedirectPort::OfAuthority,
        },
        path: optional("path", message.path, path_change)?,
        status: status("status", message.status)?,
    })
}

fn redirect_message(redirect: &Redirect) -> proto::Redirect {
    use proto::redirect::Port;
    let port = match redirect.port {
        RedirectPort::Given(it) => Port::Given(it.into()),
        RedirectPort::OfScheme => Port::OfScheme(EMPTY),
        RedirectPort::OfListener => Port::OfListener(EMPTY),
        RedirectPort::OfAuthority => Port::OfAuthority(EMPTY),
    };
    proto::Redirect {
        scheme: optional_string(&redirect.scheme),
        host: optional_string(&redirect.host),
        port: Some(port),
        path: redirect.path.as_ref().map(path_change_message),
        status: redirect.status.into(),
    }
}
