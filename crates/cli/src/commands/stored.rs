//! Objects of a machine as Kubernetes shows them.
//!
//! The machine keeps what its nodes report of pods apart from the objects. Here both are together.

use std::collections::HashMap;

use ambit_machine::{Client, ClientError, PodInfo, complete_pod};
use ambit_manifest::Kind;
use serde_json::Value;

/// The objects of a kind.
pub(super) async fn objects(client: &Client, kind: Kind) -> Result<Vec<Value>, ClientError> {
    let mut objects = client.objects(kind.plural()).await?;
    for object in &mut objects {
        // Whose the fields are is for clients that apply; kubectl does not show it either.
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
    if kind != Kind::Pod {
        return Ok(objects);
    }
    let pods = client.pods().await?;
    let by_uid: HashMap<&str, &PodInfo> = pods.iter().map(|it| (it.uid.as_str(), it)).collect();
    for object in &mut objects {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(info) = by_uid.get(uid) {
            complete_pod(object, info);
        }
    }
    Ok(objects)
}
