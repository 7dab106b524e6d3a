//! Rules of routes.

use std::time::Duration;

use ambit_model::http::rule::{
    Abort, Cors, Faults, Fraction, Mirror, Origin, Retry, RetryOn, RouteKind, Rule, Session,
    SessionKeeper, Timeouts,
};

use super::super::{ConvertError, Problem, each, known, text};
use super::{
    EMPTY, action, duration, duration_message, inner, matching, optional, optional_string,
    optional_text, required, status, strings, texts,
};
use crate::proto::ambit::http as proto;

pub(super) fn rule(message: proto::Rule) -> Result<Rule, ConvertError> {
    Ok(Rule {
        origin: inner("origin", message.origin, origin)?,
        matches: each("matches", message.matches, matching::one)?,
        action: action::action(required("action", message.action)?)?,
        request_headers: action::header_changes(message.request_headers),
        response_headers: action::header_changes(message.response_headers),
        mirrors: each("mirrors", message.mirrors, mirror)?,
        cors: optional("cors", message.cors, cors)?,
        faults: Faults {
            delay: optional("delay", message.delay, delay)?,
            abort: optional("abort", message.abort, abort)?,
        },
        timeouts: Timeouts {
            request: optional("request_timeout", message.request_timeout, duration)?,
            backend: optional("backend_timeout", message.backend_timeout, duration)?,
            response_head: optional(
                "response_head_timeout",
                message.response_head_timeout,
                duration,
            )?,
        },
        retry: optional("retry", message.retry, retry)?,
        session: optional("session", message.session, session)?,
    })
}

pub(super) fn rule_message(rule: &Rule) -> proto::Rule {
    proto::Rule {
        origin: Some(origin_message(&rule.origin)),
        matches: rule.matches.iter().map(matching::one_message).collect(),
        action: Some(action::action_message(&rule.action)),
        request_headers: action::header_changes_message(&rule.request_headers),
        response_headers: action::header_changes_message(&rule.response_headers),
        mirrors: rule.mirrors.iter().map(mirror_message).collect(),
        cors: rule.cors.as_ref().map(cors_message),
        delay: rule.faults.delay.map(delay_message),
        abort: rule.faults.abort.map(abort_message),
        request_timeout: rule.timeouts.request.map(duration_message),
        backend_timeout: rule.timeouts.backend.map(duration_message),
        response_head_timeout: rule.timeouts.response_head.map(duration_message),
        retry: rule.retry.as_ref().map(retry_message),
        session: rule.session.as_ref().map(session_message),
    }
}

pub(super) fn route_kind(field: &str, kind: i32) -> Result<RouteKind, ConvertError> {
    Ok(match known(field, kind)? {
        proto::RouteKind::Unspecified => {
            return Err(ConvertError::new(field, Problem::Unspecified));
        }
        proto::RouteKind::HttpRoute => RouteKind::HttpRoute,
        proto::RouteKind::GrpcRoute => RouteKind::GrpcRoute,
        proto::RouteKind::VirtualService => RouteKind::VirtualService,
        proto::RouteKind::TlsRoute => RouteKind::TlsRoute,
        proto::RouteKind::TcpRoute => RouteKind::TcpRoute,
        proto::RouteKind::UdpRoute => RouteKind::UdpRoute,
    })
}

pub(super) fn route_kind_message(kind: RouteKind) -> proto::RouteKind {
    match kind {
        RouteKind::HttpRoute => proto::RouteKind::HttpRoute,
        RouteKind::GrpcRoute => proto::RouteKind::GrpcRoute,
        RouteKind::VirtualService => proto::RouteKind::VirtualService,
        RouteKind::TlsRoute => proto::RouteKind::TlsRoute,
        RouteKind::TcpRoute => proto::RouteKind::TcpRoute,
        RouteKind::UdpRoute => proto::RouteKind::UdpRoute,
    }
}

pub(super) fn origin(message: proto::Origin) -> Result<Origin, ConvertError> {
    Ok(Origin {
        kind: route_kind("kind", message.kind)?,
        namespace: text(&message.namespace),
        name: text(&message.name),
        created_unix_s: message.created_unix_s,
        index: message.index,
        rule_name: optional_text(message.rule_name),
    })
}

pub(super) fn origin_message(origin: &Origin) -> proto::Origin {
    proto::Origin {
        kind: route_kind_message(origin.kind).into(),
        namespace: origin.namespace.to_string(),
        name: origin.name.to_string(),
        created_unix_s: origin.created_unix_s,
        index: origin.index,
        rule_name: optional_string(&origin.rule_name),
    }
}

pub(super) fn fraction(message: proto::Fraction) -> Result<Fraction, ConvertError> {
    if message.denominator == 0 {
        return Err(ConvertError::new("denominator", Problem::ZeroDenominator));
    }
    Ok(Fraction { numerator: message.numerator, denominator: message.denominator })
}

pub(super) fn fraction_message(fraction: Fraction) -> proto::Fraction {
    proto::Fraction { numerator: fraction.numerator, denominator: fraction.denominator }
}

fn mirror(message: proto::Mirror) -> Result<Mirror, ConvertError> {
    Ok(Mirror {
        destination: inner("destination", message.destination, action::destination)?,
        fraction: inner("fraction", message.fraction, fraction)?,
    })
}

fn mirror_message(mirror: &Mirror) -> proto::Mirror {
    proto::Mirror {
        destination: Some(action::destination_message(&mirror.destination)),
        fraction: Some(fraction_message(mirror.fraction)),
    }
}

fn cors(message: proto::Cors) -> Result<Cors, ConvertError> {
    Ok(Cors {
        allow_origins: each("allow_origins", message.allow_origins, matching::value)?,
        allow_methods: texts(&message.allow_methods),
        allow_headers: texts(&message.allow_headers),
        expose_headers: texts(&message.expose_headers),
        allow_credentials: message.allow_credentials,
        max_age: optional("max_age", message.max_age, duration)?,
        forwards_unmatched: message.forwards_unmatched,
    })
}

fn cors_message(cors: &Cors) -> proto::Cors {
    proto::Cors {
        allow_origins: cors.allow_origins.iter().map(matching::value_message).collect(),
        allow_methods: strings(&cors.allow_methods),
        allow_headers: strings(&cors.allow_headers),
        expose_headers: strings(&cors.expose_headers),
        allow_credentials: cors.allow_credentials,
        max_age: cors.max_age.map(duration_message),
        forwards_unmatched: cors.forwards_unmatched,
    }
}

fn delay(message: proto::Delay) -> Result<(Fraction, Duration), ConvertError> {
    let fraction = inner("fraction", message.fraction, fraction)?;
    Ok((fraction, inner("duration", message.duration, duration)?))
}

fn delay_message((fraction, duration): (Fraction, Duration)) -> proto::Delay {
    proto::Delay {
        fraction: Some(fraction_message(fraction)),
        duration: Some(duration_message(duration)),
    }
}

fn abort(message: proto::Abort) -> Result<(Fraction, Abort), ConvertError> {
    let fraction = inner("fraction", message.fraction, fraction)?;
    let abort = match required("status", message.status)? {
        proto::abort::Status::Http(it) => Abort::Http(status("http", it)?),
        proto::abort::Status::Grpc(it) => Abort::Grpc(it),
    };
    Ok((fraction, abort))
}

fn abort_message((fraction, abort): (Fraction, Abort)) -> proto::Abort {
    let status = match abort {
        Abort::Http(it) => proto::abort::Status::Http(it.into()),
        Abort::Grpc(it) => proto::abort::Status::Grpc(it),
    };
    proto::Abort { fraction: Some(fraction_message(fraction)), status: Some(status) }
}

fn retry(message: proto::Retry) -> Result<Retry, ConvertError> {
    Ok(Retry {
        attempts: message.attempts,
        on: each("on", message.on, retry_on)?,
        backoff: inner("backoff", message.backoff, duration)?,
        is_for_all_methods: message.is_for_all_methods,
    })
}

fn retry_message(retry: &Retry) -> proto::Retry {
    proto::Retry {
        attempts: retry.attempts,
        on: retry.on.iter().copied().map(retry_on_message).collect(),
        backoff: Some(duration_message(retry.backoff)),
        is_for_all_methods: retry.is_for_all_methods,
    }
}

fn retry_on(message: proto::RetryOn) -> Result<RetryOn, ConvertError> {
    use proto::retry_on::Kind;
    Ok(match required("kind", message.kind)? {
        Kind::ConnectFailure(_) => RetryOn::ConnectFailure,
        Kind::RefusedStream(_) => RetryOn::RefusedStream,
        Kind::Reset(_) => RetryOn::Reset,
        Kind::Status(it) => RetryOn::Status(status("status", it)?),
        Kind::ServerError(_) => RetryOn::ServerError,
        Kind::GatewayError(_) => RetryOn::GatewayError,
        Kind::Grpc(it) => RetryOn::Grpc(it),
    })
}

fn retry_on_message(on: RetryOn) -> proto::RetryOn {
    use proto::retry_on::Kind;
    let kind = match on {
        RetryOn::ConnectFailure => Kind::ConnectFailure(EMPTY),
        RetryOn::RefusedStream => Kind::RefusedStream(EMPTY),
        RetryOn::Reset => Kind::Reset(EMPTY),
        RetryOn::Status(it) => Kind::Status(it.into()),
        RetryOn::ServerError => Kind::ServerError(EMPTY),
        RetryOn::GatewayError => Kind::GatewayError(EMPTY),
        RetryOn::Grpc(it) => Kind::Grpc(it),
    };
    proto::RetryOn { kind: Some(kind) }
}

fn session(message: proto::Session) -> Result<Session, ConvertError> {
    let keeper = match required("keeper", message.keeper)? {
        proto::session::Keeper::Cookie(it) => {
            SessionKeeper::Cookie { name: text(&it.name), is_permanent: it.is_permanent }
        }
        proto::session::Keeper::Header(it) => SessionKeeper::Header(text(&it)),
    };
    Ok(Session {
        keeper,
        absolute_timeout: optional("absolute_timeout", message.absolute_timeout, duration)?,
        idle_timeout: optional("idle_timeout", message.idle_timeout, duration)?,
    })
}

fn session_message(session: &Session) -> proto::Session {
    use proto::session::Keeper;
    let keeper = match &session.keeper {
        SessionKeeper::Cookie { name, is_permanent } => Keeper::Cookie(proto::SessionCookie {
            name: name.to_string(),
            is_permanent: *is_permanent,
        }),
        SessionKeeper::Header(name) => Keeper::Header(name.to_string()),
    };
    proto::Session {
        keeper: Some(keeper),
        absolute_timeout: session.absolute_timeout.map(duration_message),
        idle_timeout: session.idle_timeout.map(duration_message),
    }
}
