//! Canary waypoints that get nothing.

use std::collections::BTreeMap;

use ambit_words::annotations::USE_WAYPOINT_CANARY_WEIGHT;
use ambit_words::labels::{NONE, USE_WAYPOINT, USE_WAYPOINT_CANARY, USE_WAYPOINT_NAMESPACE};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::All;
use crate::canary::{Said, Unfit, canary};
use crate::{Finding, Kind, Object, ObjectKey};

/// Labels of an object that has none.
static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

fn said(metadata: Option<&ObjectMeta>) -> Said<'_> {
    let annotations = metadata.and_then(|it| it.annotations.as_ref());
    let weight = annotations.and_then(|all| all.get(USE_WAYPOINT_CANARY_WEIGHT));
    let labels = metadata.and_then(|it| it.labels.as_ref()).unwrap_or(&NO_LABELS);
    Said { labels, weight: weight.map(String::as_str) }
}

impl All<'_> {
    /// Warns where an object names a canary that cannot be one. What a namespace says is warned of
    /// there, once.
    pub(super) fn canary(&self, object: &Object, warnings: &mut Vec<Finding>) {
        let key = &object.key;
        let metadata = object.typed.metadata();
        let says = |name: &str| metadata.labels.as_ref().is_some_and(|it| it.contains_key(name));
        let own = match key.kind {
            Kind::Namespace => &key.name,
            Kind::Service | Kind::ServiceEntry => &key.namespace,
            _ => return,
        };
        if !says(USE_WAYPOINT_CANARY) {
            return;
        }
        let namespace = self.objects.get(&ObjectKey::new(Kind::Namespace, "", own));
        let of_namespace = said(namespace.map(|it| it.metadata()));
        let own_said = if key.kind == Kind::Namespace { said(None) } else { said(Some(metadata)) };
        let Some(asked) = canary(own_said, of_namespace) else { return };
        let is_own = own_said.labels.contains_key(USE_WAYPOINT);
        let labels = if is_own { own_said.labels } else { of_namespace.labels };
        let named = labels.get(USE_WAYPOINT).filter(|it| ![NONE, ""].contains(&it.as_str()));
        let at = |kind: &str, name: &str| format!("metadata.{kind}.{name}");
        let Some(primary) = named else {
            return warnings.push(object.finding(
                at("labels", USE_WAYPOINT_CANARY),
                "a canary without a waypoint beside it gets nothing",
                format!("name the waypoint in {USE_WAYPOINT}"),
            ));
        };
        let primary = (labels.get(USE_WAYPOINT_NAMESPACE).map_or(&**own, String::as_str), primary);
        let canary = (asked.namespace.unwrap_or(own), asked.name);
        let unfit = match asked.share {
            _ if canary == (primary.0, primary.1.as_str()) => Unfit::SameAsPrimary,
            Err(_) => Unfit::Weight,
            Ok(_) => match self.bound(canary, own, false) {
                Ok(()) => return,
                Err(unbound) => Unfit::Unbound(unbound),
            },
        };
        let at = match unfit {
            Unfit::Weight => at("annotations", USE_WAYPOINT_CANARY_WEIGHT),
            _ => at("labels", USE_WAYPOINT_CANARY),
        };
        warnings.push(object.finding(
            at,
            format!(
                "the canary waypoint `{}` {}: all connections go to the waypoint `{}`",
                asked.name,
                unfit.what(),
                primary.1
            ),
            unfit.remedy(),
        ));
    }
}
