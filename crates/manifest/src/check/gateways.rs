//! Checks what names a Gateway at the edge against what is there: ListenerSets, and routes.
//!
//! All of it may be applied later, so each is a warning; until then nothing listens, or nobody asks
//! the route. Gateways of other classes are left to their controllers.

use std::collections::BTreeMap;

use super::All;
use crate::gateway::attach::{Attaching, attach};
use crate::gateway::listeners::judge_all;
use crate::gateway::sets::ListenerSet;
use crate::gateway::{GatewaySpec, Position};
use crate::routing::{Parent, ParentKind};
use crate::{Finding, Kind, Object, ObjectKey, Typed};

/// What is wrong, and what to do about it.
type Wrong = (String, &'static str);

/// What to do where a reference leads nowhere.
const CORRECT: &str = "correct the reference, or add what it names";

impl<'a> All<'a> {
    /// Warns about a ListenerSet that no Gateway takes, and of its listeners that are not served.
    pub(super) fn listener_set(
        &self,
        object: &Object,
        set: &ListenerSet,
        warnings: &mut Vec<Finding>,
    ) {
        let Some((namespace, name)) = set.gateway() else { return };
        let (gateway, position) = match self.gateway(namespace, name) {
            Ok(found) => found,
            Err((what, remedy)) => {
                let what = format!("{what}: nothing listens");
                warnings.push(object.finding("spec.parentRef", what, remedy));
                return;
            }
        };
        // Of a Gateway of another class another controller says it.
        if position.is_none() {
            return;
        }
        let takes = position == Some(Position::Edge) && self.takes(namespace, gateway, set);
        if !takes {
            let what = format!(
                "the Gateway `{namespace}/{name}` does not take ListenerSets of the namespace \
                 `{}`: nothing listens",
                object.key.namespace
            );
            let remedy = "set `allowedListeners.namespaces` of the Gateway";
            warnings.push(object.finding("spec.parentRef", what, remedy));
            return;
        }
        let sets = self.sets(namespace, name, gateway);
        let all = judge_all(gateway, &sets);
        let its = all.iter().filter(|it| {
            it.set.is_some_and(|other| other.namespaced_name() == set.namespaced_name())
        });
        for (index, judged) in its.enumerate() {
            // What it says itself is wrong with it was said when it was read.
            let Some(fault) = judged.conflict() else { continue };
            let what = format!("{}: this one is not served ({})", fault.what, fault.reason);
            let at = format!("spec.listeners[{index}]");
            warnings.push(object.finding(at, what, "give it another port or another host"));
        }
    }

    /// Whether a route with these hosts attaches to a Gateway or ListenerSet; otherwise what is
    /// wrong, and what to do about it.
    pub(super) fn at_gateway(
        &self,
        object: &Object,
        hosts: &[String],
        parent: &Parent<'_>,
    ) -> Result<(), Wrong> {
        let set = match parent.kind {
            ParentKind::ListenerSet => Some(self.set(parent)?),
            _ => None,
        };
        let of = set.map(|it| it.gateway()).unwrap_or(Some((parent.namespace, parent.name)));
        let Some((namespace, name)) = of else { return Ok(()) };
        let (gateway, position) = self.gateway(namespace, name)?;
        if position == Some(Position::Waypoint) {
            let what = format!(
                "the Gateway `{namespace}/{name}` is a waypoint, which is asked for the routes of \
                 Services: as a route of the Gateway, this one does nothing"
            );
            let remedy =
                "name each Service that it is for: `group: \"\"`, `kind: Service` and its name";
            return Err((what, remedy));
        }
        // Of other classes other controllers know.
        if position != Some(Position::Edge) {
            return Ok(());
        }
        if let Some(set) = set
            && !self.takes(namespace, gateway, set)
        {
            let what = format!(
                "the Gateway `{namespace}/{name}` does not take the ListenerSet `{}/{}`",
                parent.namespace, parent.name
            );
            return Err((what, "set `allowedListeners.namespaces` of the Gateway"));
        }
        let own = &object.key.namespace;
        let labels = self.labels(own);
        let route = Attaching { kind: object.key.kind, namespace: own, labels: &labels, hosts };
        let sets = self.sets(namespace, name, gateway);
        match attach(namespace, &judge_all(gateway, &sets), parent, &route) {
            Ok(_) => Ok(()),
            Err(why) => Err((why.what(parent, &route), why.remedy())),
        }
    }

    /// A Gateway, and its position if it is Ambit's.
    fn gateway(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<(&'a GatewaySpec, Option<Position>), Wrong> {
        let gateway = match self.objects.get(&ObjectKey::new(Kind::Gateway, namespace, name)) {
            Some(Typed::Gateway(gateway)) => &gateway.spec,
            _ => return Err((format!("the Gateway `{namespace}/{name}` does not exist"), CORRECT)),
        };
        let class = &gateway.gateway_class_name;
        let known = match self.objects.get(&ObjectKey::new(Kind::GatewayClass, "", class)) {
            Some(Typed::GatewayClass(known)) => Some(&known.spec),
            _ => None,
        };
        Ok((gateway, Position::of_class(class, known)))
    }

    /// The ListenerSet that a route names.
    fn set(&self, parent: &Parent<'_>) -> Result<&'a ListenerSet, Wrong> {
        let Parent { namespace, name, .. } = parent;
        match self.objects.get(&ObjectKey::new(Kind::ListenerSet, namespace, name)) {
            Some(Typed::ListenerSet(set)) => Ok(set),
            _ => Err((format!("the ListenerSet `{namespace}/{name}` does not exist"), CORRECT)),
        }
    }

    /// The sets that a Gateway takes, in their order.
    fn sets(&self, namespace: &str, name: &str, gateway: &GatewaySpec) -> Vec<&'a ListenerSet> {
        let all = self.objects.values().filter_map(|it| match it {
            Typed::ListenerSet(set) => Some(&**set),
            _ => None,
        });
        let named = all.filter(|set| set.gateway() == Some((namespace, name)));
        let mut taken: Vec<_> = named.filter(|set| self.takes(namespace, gateway, set)).collect();
        taken.sort_by(|one, other| one.order(other));
        taken
    }

    fn takes(&self, namespace: &str, gateway: &GatewaySpec, set: &ListenerSet) -> bool {
        let of_set = set.namespaced_name().0;
        gateway.takes_sets_of(namespace, of_set, &self.labels(of_set))
    }

    fn labels(&self, namespace: &str) -> BTreeMap<String, String> {
        let labels = match self.objects.get(&ObjectKey::new(Kind::Namespace, "", namespace)) {
            Some(Typed::Namespace(it)) => it.metadata.labels.clone(),
            _ => None,
        };
        labels.unwrap_or_default()
    }
}
