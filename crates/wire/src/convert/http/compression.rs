//! Which of the responses of a service are compressed.

use std::sync::Arc;

use ambit_model::http::compression::{Coding, Compression, Compressions, RouteCompression};

use super::super::{ConvertError, Problem, each, known, text};
use super::{inner, optional, optional_string, optional_text, rule, strings};
use crate::proto::ambit::http as proto;

pub(super) fn compressions(message: proto::Compressions) -> Result<Compressions, ConvertError> {
    Ok(Compressions {
        service: optional("service", message.service, compression)?,
        routes: each("routes", message.routes, of_route)?,
    })
}

/// Absent where nothing is said.
pub(super) fn message(all: &Compressions) -> Option<proto::Compressions> {
    (*all != Compressions::default()).then(|| proto::Compressions {
        service: all.service.as_deref().map(compression_message),
        routes: all.routes.iter().map(of_route_message).collect(),
    })
}

fn of_route(message: proto::RouteCompression) -> Result<RouteCompression, ConvertError> {
    Ok(RouteCompression {
        kind: rule::route_kind("kind", message.kind)?,
        namespace: text(&message.namespace),
        name: text(&message.name),
        rule_name: optional_text(message.rule_name),
        compression: inner("compression", message.compression, compression)?,
    })
}

fn of_route_message(it: &RouteCompression) -> proto::RouteCompression {
    proto::RouteCompression {
        kind: rule::route_kind_message(it.kind).into(),
        namespace: it.namespace.to_string(),
        name: it.name.to_string(),
        rule_name: optional_string(&it.rule_name),
        compression: Some(compression_message(&it.compression)),
    }
}

fn compression(message: proto::Compression) -> Result<Arc<Compression>, ConvertError> {
    Ok(Arc::new(Compression {
        codings: each("codings", message.codings, coding)?,
        min_bytes: message.min_bytes,
        content_types: message.content_types.iter().map(|it| text(it)).collect(),
    }))
}

fn compression_message(it: &Compression) -> proto::Compression {
    let coding = |it: &Coding| match it {
        Coding::Brotli => proto::Coding::Brotli,
        Coding::Gzip => proto::Coding::Gzip,
    };
    proto::Compression {
        codings: it.codings.iter().map(|it| coding(it).into()).collect(),
        min_bytes: it.min_bytes,
        content_types: strings(&it.content_types),
    }
}

fn coding(value: i32) -> Result<Coding, ConvertError> {
    match known("coding", value)? {
        proto::Coding::Unspecified => Err(ConvertError::new("coding", Problem::Unspecified)),
        proto::Coding::Gzip => Ok(Coding::Gzip),
        proto::Coding::Brotli => Ok(Coding::Brotli),
    }
}
