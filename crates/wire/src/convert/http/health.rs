//! How the endpoints of a service are checked.

use std::time::Duration;

use ambit_model::http::health::{HealthCheck, Probe};

use super::super::{ConvertError, Problem, each, port, text};
use super::{
    EMPTY, duration, duration_message, inner, optional_string, optional_text, required, status,
};
use crate::proto::ambit::http as proto;

pub(super) fn check(message: proto::HealthCheck) -> Result<HealthCheck, ConvertError> {
    Ok(HealthCheck {
        probe: probe(required("probe", message.probe)?)?,
        port: message.port.map(|it| port("port", it)).transpose()?,
        interval: inner("interval", message.interval, time)?,
        jitter_percent: message.jitter_percent,
        timeout: inner("timeout", message.timeout, time)?,
        unhealthy_threshold: positive("unhealthy_threshold", message.unhealthy_threshold)?,
        healthy_threshold: positive("healthy_threshold", message.healthy_threshold)?,
        panic_percent: message.panic_percent,
        problem: optional_text(message.problem),
    })
}

pub(super) fn message(it: &HealthCheck) -> proto::HealthCheck {
    proto::HealthCheck {
        probe: Some(probe_message(&it.probe)),
        port: it.port.map(u32::from),
        interval: Some(duration_message(it.interval)),
        jitter_percent: it.jitter_percent,
        timeout: Some(duration_message(it.timeout)),
        unhealthy_threshold: it.unhealthy_threshold,
        healthy_threshold: it.healthy_threshold,
        panic_percent: it.panic_percent,
        problem: optional_string(&it.problem),
    }
}

/// A time of 0 would check without a pause, or never pass.
fn time(message: proto::Duration) -> Result<Duration, ConvertError> {
    let time = duration(message)?;
    if time.is_zero() {
        return Err(ConvertError::new("seconds", Problem::NotPositive));
    }
    Ok(time)
}

fn positive(field: &str, number: u32) -> Result<u32, ConvertError> {
    if number == 0 {
        return Err(ConvertError::new(field, Problem::NotPositive));
    }
    Ok(number)
}

fn probe(message: proto::health_check::Probe) -> Result<Probe, ConvertError> {
    use proto::health_check::Probe as Message;
    Ok(match message {
        Message::Tcp(_) => Probe::Tcp,
        Message::Http(it) => Probe::Http {
            path: text(&it.path),
            host: optional_text(it.host),
            statuses: each("statuses", it.statuses, |it| {
                Ok((status("from", it.from)?, status("to", it.to)?))
            })?,
        },
        Message::Grpc(it) => Probe::Grpc { service: text(&it.service) },
    })
}

fn probe_message(probe: &Probe) -> proto::health_check::Probe {
    use proto::health_check::Probe as Message;
    let range =
        |(from, to): &(u16, u16)| proto::StatusRange { from: u32::from(*from), to: u32::from(*to) };
    match probe {
        Probe::Tcp => Message::Tcp(EMPTY),
        Probe::Http { path, host, statuses } => Message::Http(proto::HttpProbe {
            path: path.to_string(),
            host: optional_string(host),
            statuses: statuses.iter().map(range).collect(),
        }),
        Probe::Grpc { service } => Message::Grpc(proto::GrpcProbe { service: service.to_string() }),
    }
}
