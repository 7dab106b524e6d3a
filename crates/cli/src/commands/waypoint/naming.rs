//! Who names a waypoint: its deletion would refuse every new connection to them.

use ambit_manifest::Kind;
use ambit_words::labels::{USE_WAYPOINT, USE_WAYPOINT_NAMESPACE};
use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Place, name_of, text};

/// What can name a waypoint.
const KINDS: [Kind; 5] =
    [Kind::Namespace, Kind::Service, Kind::ServiceEntry, Kind::WorkloadEntry, Kind::Pod];
/// Most objects that an error names.
const NAMES_MAX: usize = 5;

/// Fails if an object names one of these waypoints.
pub(super) async fn check(place: &Place, doomed: &[Value]) -> Result<()> {
    for gateway in doomed {
        let naming = naming(place, gateway)
            .await
            .context("see who names the waypoint; --force deletes it without looking")?;
        if naming.is_empty() {
            continue;
        }
        let shown = naming[..naming.len().min(NAMES_MAX)].join(", ");
        let more = match naming.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        bail!(
            "waypoint {}/{} is not deleted: {shown}{more} still name it by the label \
             {USE_WAYPOINT}, and without it every new connection to them is refused; remove the \
             label first, or add --force",
            text(gateway, "/metadata/namespace"),
            name_of(gateway)
        );
    }
    Ok(())
}

async fn naming(place: &Place, gateway: &Value) -> Result<Vec<String>> {
    let mut naming = Vec::new();
    for kind in KINDS {
        let objects = match place {
            Place::Machine(client) => client.objects(kind.plural()).await?,
            Place::Cluster(cluster) => {
                let version = kind.api_versions()[0];
                let plural = kind.plural();
                cluster.labelled(version, plural, USE_WAYPOINT, name_of(gateway)).await?
            }
        };
        let objects = objects.iter().filter(|it| names(kind, it, gateway));
        naming.extend(objects.map(|it| match text(it, "/metadata/namespace") {
            "" => format!("{kind} {}", name_of(it)),
            namespace => format!("{kind} {namespace}/{}", name_of(it)),
        }));
    }
    Ok(naming)
}

/// Whether an object's labels name a waypoint.
fn names(kind: Kind, object: &Value, gateway: &Value) -> bool {
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    let own = match kind {
        Kind::Namespace => name_of(object),
        _ => text(object, "/metadata/namespace"),
    };
    let namespace = label(USE_WAYPOINT_NAMESPACE).unwrap_or(own);
    label(USE_WAYPOINT) == Some(name_of(gateway))
        && namespace == text(gateway, "/metadata/namespace")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_names_the_waypoint_of_its_own_namespace_or_of_the_one_it_says() {
        let way = json!({"metadata": {"namespace": "shop", "name": "way"}});
        let check = |kind, metadata: Value, expected: bool| {
            let object = json!({"metadata": metadata});
            assert_eq!(names(kind, &object, &way), expected, "{object}");
        };
        let label = json!({USE_WAYPOINT: "way"});
        let both = json!({USE_WAYPOINT: "way", USE_WAYPOINT_NAMESPACE: "shop"});
        let other = json!({USE_WAYPOINT: "other"});
        check(Kind::Namespace, json!({"name": "shop", "labels": label}), true);
        check(Kind::Namespace, json!({"name": "bank", "labels": label}), false);
        check(Kind::Namespace, json!({"name": "bank", "labels": both}), true);
        check(Kind::Namespace, json!({"name": "shop", "labels": other}), false);
        check(Kind::Namespace, json!({"name": "shop"}), false);
        let service = |own: &str, labels: &Value| json!({"namespace": own, "labels": labels});
        check(Kind::Service, service("shop", &label), true);
        check(Kind::Service, service("bank", &label), false);
        check(Kind::Pod, service("bank", &both), true);
    }
}
