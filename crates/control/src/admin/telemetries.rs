//! The list of Telemetry objects: for whom each holds, and whether all of it is in force.

use ambit_manifest::telemetry::Telemetry;
use ambit_manifest::telemetry::effective::targets;
use ambit_manifest::{ObjectName, honoured};
use ambit_wire::admin;

use super::lists;
use crate::view_builder::Builder;
use crate::view_builder::store::selector;

/// [`admin::control::TELEMETRIES`].
pub(super) fn telemetries(builder: &Builder, namespace: Option<&str>) -> Vec<admin::Telemetry> {
    let all = builder.store().telemetries();
    let wanted = all.filter(|(name, _)| namespace.is_none_or(|it| *it == *name.namespace));
    wanted.map(|(name, object)| telemetry(builder, name, object)).collect()
}

fn telemetry(builder: &Builder, name: &ObjectName, object: &Telemetry) -> admin::Telemetry {
    let root = &builder.mesh().root_namespace;
    let attached = targets(object, root);
    let scope = match &attached {
        Err(_) => None,
        Ok(targets) if !targets.is_empty() => Some("targets"),
        Ok(_) if selector(object.spec.selector.as_ref()).is_some() => None,
        Ok(_) if name.namespace == *root => Some("mesh"),
        Ok(_) => Some("namespace"),
    };
    let condition = honoured::condition(&builder.telemetry_remarks(name));
    admin::Telemetry {
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
        scope: scope.map(Into::into),
        targets: attached.unwrap_or_default().iter().map(lists::attachment).collect(),
        sections: object.spec.sections().into_iter().map(Into::into).collect(),
        providers: object.spec.providers().into_iter().map(str::to_owned).collect(),
        services: builder.telemetry_services(name),
        conditions: vec![lists::condition(&condition)],
    }
}

#[cfg(test)]
mod tests {
    use ambit_manifest::{Kind, stored};
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};

    fn put(kind: Kind, namespace: &str, name: &str, spec: &Value) -> Event {
        let metadata = json!({"namespace": namespace, "name": name, "uid": name});
        let object = json!({"apiVersion": kind.api_versions()[0], "kind": kind.name(),
            "metadata": metadata, "spec": spec});
        Event::Put(stored(kind, object.to_string().as_bytes()).expect("valid"))
    }

    #[test]
    fn each_says_for_whom_it_holds_and_what_of_it_is_in_force() {
        let mut builder = Builder::new(Mesh::sample(), Vips::default());
        let off = json!({"accessLogging": [{"disabled": true}]});
        let service =
            |name: &str| put(Kind::Service, "shop", name, &json!({"ports": [{"port": 80}]}));
        let mut attached = json!({"tracing": [{"providers": [{"name": "none"}]}]});
        attached["targetRefs"] = json!([{"kind": "Service", "group": "", "name": "web"}]);
        let mut pods = off.clone();
        pods["selector"] = json!({"matchLabels": {"app": "web"}});
        builder.apply([
            service("web"),
            service("cart"),
            put(Kind::Telemetry, "istio-system", "mesh", &off),
            put(Kind::Telemetry, "shop", "own", &off),
            put(Kind::Telemetry, "bank", "other", &off),
            put(Kind::Telemetry, "shop", "pods", &pods),
            put(Kind::Telemetry, "shop", "web", &attached),
        ]);
        let shown = telemetries(&builder, None);
        let shown: Vec<String> = shown
            .iter()
            .map(|it| {
                let scope = it.scope.as_deref().unwrap_or("nobody");
                let (name, services, status) = (&it.name, it.services, &it.conditions[0].status);
                let sections = it.sections.join(",");
                format!("{name} {scope} {services} {sections} {status}")
            })
            .collect();
        assert_eq!(
            shown,
            [
                "other namespace 0 accessLogging True",
                "mesh mesh 2 accessLogging True",
                "own namespace 2 accessLogging True",
                "pods nobody 0 accessLogging False",
                "web targets 1 tracing False",
            ]
        );
        let [.., web] = &telemetries(&builder, Some("shop"))[..] else { panic!("none") };
        assert_eq!(
            (&web.targets[..], &web.providers[..]),
            (&["Service shop/web".to_owned()][..], &["none".to_owned()][..])
        );
    }
}
