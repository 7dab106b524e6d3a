//! Which endpoints are near, and which are new.

use ambit_model::http::nearness::{Distribution, Failover, Nearness, Place};
use ambit_model::http::warmup::Warmup;
use ambit_model::service::Scope;

use super::super::{ConvertError, Problem, each, known, text};
use super::{EMPTY, duration, duration_message, inner, optional_string, optional_text, required};
use crate::proto::ambit::http as proto;

pub(super) fn nearness(message: Option<proto::Nearness>) -> Result<Nearness, ConvertError> {
    use proto::nearness::Kind;
    let Some(message) = message else { return Ok(Nearness::OfService) };
    Ok(match required("kind", message.kind)? {
        Kind::OfServiceElsePlace(_) => Nearness::OfServiceElsePlace,
        Kind::Ignored(_) => Nearness::Ignored,
        Kind::Failover(it) => Nearness::Failover(Failover {
            steps: it.steps.into_iter().map(scope).collect::<Result<_, _>>()?,
            regions: it.regions.iter().map(|it| (text(&it.from), text(&it.to))).collect(),
        }),
        Kind::Distribute(it) => Nearness::Distribute(each("all", it.all, distribution)?),
    })
}

pub(super) fn nearness_message(nearness: &Nearness) -> Option<proto::Nearness> {
    use proto::nearness::Kind;
    let kind = match nearness {
        Nearness::OfService => return None,
        Nearness::OfServiceElsePlace => Kind::OfServiceElsePlace(EMPTY),
        Nearness::Ignored => Kind::Ignored(EMPTY),
        Nearness::Failover(it) => Kind::Failover(proto::Failover {
            steps: it.steps.iter().map(|it| scope_message(*it).into()).collect(),
            regions: it
                .regions
                .iter()
                .map(|(from, to)| proto::RegionPair { from: from.to_string(), to: to.to_string() })
                .collect(),
        }),
        Nearness::Distribute(all) => Kind::Distribute(proto::Distribute {
            all: all.iter().map(distribution_message).collect(),
        }),
    };
    Some(proto::Nearness { kind: Some(kind) })
}

fn scope(message: i32) -> Result<Scope, ConvertError> {
    Ok(match known("steps", message)? {
        proto::Scope::Unspecified => return Err(ConvertError::new("steps", Problem::Unspecified)),
        proto::Scope::Region => Scope::Region,
        proto::Scope::Zone => Scope::Zone,
        proto::Scope::Subzone => Scope::Subzone,
        proto::Scope::Node => Scope::Node,
        proto::Scope::Cluster => Scope::Cluster,
        proto::Scope::Network => Scope::Network,
    })
}

fn scope_message(scope: Scope) -> proto::Scope {
    match scope {
        Scope::Region => proto::Scope::Region,
        Scope::Zone => proto::Scope::Zone,
        Scope::Subzone => proto::Scope::Subzone,
        Scope::Node => proto::Scope::Node,
        Scope::Cluster => proto::Scope::Cluster,
        Scope::Network => proto::Scope::Network,
    }
}

fn distribution(message: proto::Distribution) -> Result<Distribution, ConvertError> {
    let share = |it: proto::PlaceShare| Ok((place(required("place", it.place)?), it.weight));
    let from = place(required("from", message.from)?);
    Ok(Distribution { from, to: each("to", message.to, share)? })
}

fn distribution_message(it: &Distribution) -> proto::Distribution {
    let share = |(place, weight): &(Place, u32)| proto::PlaceShare {
        place: Some(place_message(place)),
        weight: *weight,
    };
    proto::Distribution {
        from: Some(place_message(&it.from)),
        to: it.to.iter().map(share).collect(),
    }
}

fn place(message: proto::Place) -> Place {
    Place {
        region: optional_text(message.region),
        zone: optional_text(message.zone),
        subzone: optional_text(message.subzone),
    }
}

fn place_message(it: &Place) -> proto::Place {
    proto::Place {
        region: optional_string(&it.region),
        zone: optional_string(&it.zone),
        subzone: optional_string(&it.subzone),
    }
}

pub(super) fn warmup(message: proto::Warmup) -> Result<Warmup, ConvertError> {
    let aggression = message.aggression;
    if !(aggression > 0.0 && aggression.is_finite()) {
        return Err(ConvertError::new("aggression", Problem::NotPositive));
    }
    let duration = inner("duration", message.duration, duration)?;
    Ok(Warmup { duration, minimum_percent: message.minimum_percent, aggression })
}

pub(super) fn warmup_message(it: Warmup) -> proto::Warmup {
    proto::Warmup {
        duration: Some(duration_message(it.duration)),
        minimum_percent: it.minimum_percent,
        aggression: it.aggression,
    }
}
