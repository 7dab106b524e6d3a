//! Nearness and warm-up of a DestinationRule's `loadBalancer`.

use std::time::Duration;

use ambit_model::http::nearness::{Distribution, Failover, Nearness, Place};
use ambit_model::http::warmup::Warmup;
use ambit_model::service::Scope;
use ambit_words::labels::{CLUSTER, HOSTNAME, NETWORK, REGION, SUBZONE, ZONE};

use crate::FieldPath;
use crate::destination_rule::{LoadBalancer, LocalitySetting, WrittenWarmup};
use crate::remarks::Remarks;

/// The labels by which endpoints can be preferred, and what they say.
const STEPS: [(&str, Scope); 6] = [
    (REGION, Scope::Region),
    (ZONE, Scope::Zone),
    (SUBZONE, Scope::Subzone),
    (HOSTNAME, Scope::Node),
    (CLUSTER, Scope::Cluster),
    (NETWORK, Scope::Network),
];
/// Istio's, of a warm-up that says nothing else.
const MINIMUM_PERCENT: f64 = 10.0;

/// Which endpoints are near. Only who ejects endpoints that fail can tell when to look farther.
pub(super) fn nearness(
    written: Option<&LoadBalancer>,
    ejects: bool,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Nearness {
    let at = at.field("localityLbSetting");
    let Some(setting) = written.and_then(|it| it.locality_lb_setting.as_ref()) else {
        return if ejects { Nearness::OfServiceElsePlace } else { Nearness::OfService };
    };
    if setting.enabled == Some(false) {
        return Nearness::Ignored;
    }
    let kinds = [
        !setting.distribute.is_empty(),
        !setting.failover.is_empty(),
        !setting.failover_priority.is_empty(),
    ];
    if kinds[0] && (kinds[1] || kinds[2]) {
        let what = "`distribute` excludes `failover` and `failoverPriority`";
        remarks.wrong(&at, what, "write one of them");
    }
    if kinds[0] {
        return Nearness::Distribute(distribute(setting, &at.field("distribute"), remarks));
    }
    let failover = failover(setting, &at, remarks);
    if !ejects {
        let what = "without `outlierDetection` nobody can tell when to look farther: it has no \
            effect, and all endpoints are alike";
        remarks.unhonoured(true, &at, what, "add `outlierDetection`");
        return Nearness::Ignored;
    }
    Nearness::Failover(failover)
}

fn failover(setting: &LocalitySetting, at: &FieldPath, remarks: &mut Remarks) -> Failover {
    let mut steps = Vec::new();
    for (index, label) in setting.failover_priority.iter().enumerate() {
        match STEPS.iter().find(|(name, _)| name == label) {
            Some((_, step)) => steps.push(*step),
            None => {
                let at = at.field("failoverPriority").index(index);
                let what = format!(
                    "a waypoint does not know the label `{label}` of endpoints: it and what \
                     follows have no effect"
                );
                let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
                remarks.unhonoured(true, &at, what, format!("use {}", names.join(", ")));
                break;
            }
        }
    }
    let mut regions = Vec::new();
    for (index, it) in setting.failover.iter().enumerate() {
        if it.from.is_empty() || it.to.is_empty() || it.from == it.to {
            let at = at.field("failover").index(index);
            remarks.wrong(&at, "it leads from no region to another", "name two regions");
            continue;
        }
        regions.push((it.from.as_str().into(), it.to.as_str().into()));
    }
    let usual = Failover::default().steps;
    Failover { steps: if steps.is_empty() { usual } else { steps }, regions }
}

fn distribute(
    setting: &LocalitySetting,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Vec<Distribution> {
    let mut all = Vec::new();
    for (index, it) in setting.distribute.iter().enumerate() {
        let at = at.index(index);
        let from = place(&it.from, &at.field("from"), remarks);
        let mut to: Vec<(Place, u32)> = Vec::new();
        for (written, weight) in &it.to {
            let at = at.field("to").field(written);
            let weight = remarks.number(Some(*weight), &at).unwrap_or_default();
            to.push((place(written, &at, remarks), weight));
        }
        // An endpoint is where the most specific of them says.
        to.sort_by_key(|(place, _)| {
            [&place.subzone, &place.zone, &place.region].map(|part| part.is_none())
        });
        let sum: u64 = to.iter().map(|(_, weight)| u64::from(*weight)).sum();
        if sum != 100 {
            remarks.wrong(
                &at.field("to"),
                format!("the shares add up to {sum}"),
                "let them be 100",
            );
        }
        all.push(Distribution { from, to });
    }
    all
}

/// Reads `region/zone/subzone`, of which the end may be missing or `*`.
fn place(written: &str, at: &FieldPath, remarks: &mut Remarks) -> Place {
    let parts: Vec<&str> = written.split('/').collect();
    let open = parts.iter().position(|part| *part == "*").unwrap_or(parts.len());
    let is_wrong = parts.len() > 3
        || parts.iter().any(|part| part.is_empty())
        || parts[open..].iter().any(|part| *part != "*");
    if is_wrong {
        let what = format!("`{written}` is no place");
        remarks.wrong(at, what, "write `region/zone/subzone`, or `*` in place of the end");
    }
    let part = |index: usize| parts[..open].get(index).map(|it| (*it).into());
    Place { region: part(0), zone: part(1), subzone: part(2) }
}

/// How a new endpoint comes to its share.
pub(super) fn warmup(
    written: Option<&LoadBalancer>,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Option<Warmup> {
    let written = written?;
    let older = WrittenWarmup {
        duration: written.warmup_duration_secs.clone(),
        ..WrittenWarmup::default()
    };
    let (warmup, at) = match (&written.warmup, &older.duration) {
        (Some(warmup), _) => (warmup, at.field("warmup")),
        (None, Some(_)) => (&older, at.field("warmupDurationSecs")),
        (None, None) => return None,
    };
    let is_hashed = written.consistent_hash.is_some();
    let what = "endpoints that are chosen by a hash do not warm up";
    remarks.unhonoured(is_hashed, &at, what, "remove it, or `consistentHash`");
    if warmup.duration.is_none() {
        remarks.wrong(&at.field("duration"), "it is not said how long it takes", "add it");
    }
    let at_duration = match &written.warmup {
        Some(_) => at.field("duration"),
        None => at.clone(),
    };
    let duration = remarks.duration(warmup.duration.as_deref(), &at_duration)?;
    let minimum = warmup.minimum_percent.unwrap_or(MINIMUM_PERCENT);
    if !(0.0..=100.0).contains(&minimum) {
        let what = format!("{minimum} is no percentage");
        remarks.wrong(&at.field("minimumPercent"), what, "use 0 to 100");
    }
    let aggression = warmup.aggression.unwrap_or(1.0);
    if !(aggression > 0.0 && aggression.is_finite()) {
        let what = format!("{aggression} is not above 0");
        remarks.wrong(&at.field("aggression"), what, "use 1 for a share in proportion to time");
        return None;
    }
    // At most 100, and whole.
    let minimum_percent = format!("{:.0}", minimum.clamp(0.0, 100.0)).parse().unwrap_or_default();
    (duration > Duration::ZERO).then_some(Warmup { duration, minimum_percent, aggression })
}
