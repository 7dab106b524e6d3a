//! Volumes whose objects change, and containers that end with theirs.

use serde_json::{Value, json};

use crate::lab::{Lab, pod};

fn config_map(key: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {key: "1"},
    })
}

fn secret(content: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "b"},
        "stringData": {"y": content},
    })
}

pub(crate) async fn a_bad_volume_stops_no_other() {
    let lab = Lab::up("volumes", 1).await;
    let mut reader = pod("reader", &["sleep", "infinity"]);
    reader["spec"]["volumes"] = json!([
        {"name": "a", "configMap": {"name": "a", "items": [{"key": "x", "path": "x"}]}},
        {"name": "b", "secret": {"secretName": "b"}},
    ]);
    reader["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "b", "mountPath": "/mnt"}]);
    lab.apply_ready(vec![config_map("x"), secret("1"), reader]).await;
    assert_eq!(lab.sh("reader", "cat /mnt/y").0, "1");
    let reason = async || lab.client.pods().await.unwrap().remove(0).reason;
    lab.apply(vec![config_map("z")]).await;
    lab.until("the status names the volume", async || {
        let reason = reason().await;
        reason.contains("volume \"a\" stays as it was") && reason.contains("\"x\"")
    })
    .await;
    lab.apply(vec![secret("2")]).await;
    lab.until("the other volume has changed", async || lab.sh("reader", "cat /mnt/y").0 == "2")
        .await;
    assert!(reason().await.contains("volume \"a\""));
    lab.apply(vec![config_map("x")]).await;
    lab.until("nothing is wrong any more", async || reason().await.is_empty()).await;
    lab.down().await;
}

pub(crate) async fn nothing_outlives_the_only_container() {
    let lab = Lab::up("escape", 1).await;
    // It leaves its session and all namespaces by which it would be known.
    let script = "[ -e /mnt/again ] && exec sleep infinity
        : > /mnt/again; setsid unshare -Urm sleep 98765 &
        until [ \"$(tr '\\0' ' ' < /proc/$!/cmdline)\" = 'sleep 98765 ' ]; do :; done
        echo escaped";
    let mut escaping = pod("escaping", &["sh", "-c", script]);
    escaping["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    escaping["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/mnt"}]);
    lab.apply(vec![escaping]).await;
    lab.log("escaping", "c", "escaped").await;
    lab.until("it runs again", async || {
        let pods = lab.client.pods().await.unwrap();
        pods.iter().any(|pod| pod.restarts == 1 && pod.ready)
    })
    .await;
    let (left, _) = lab.sh("escaping", "grep -l '9876[5]' /proc/[0-9]*/cmdline; echo looked");
    assert_eq!(left, "looked\n");
    lab.down().await;
}

/// A pod that mounts a claim at `/data`.
fn claiming(name: &str, claim: &Value) -> Value {
    let mut pod = pod(name, &["sleep", "infinity"]);
    pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": claim}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod
}

pub(crate) async fn claims_outlive_pods() {
    let lab = Lab::up("claims", 2).await;
    let spec = json!({
        "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}},
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"}, "spec": spec,
    });
    let mut writer = claiming("writer", &json!({"claimName": "shared"}));
    writer["spec"]["securityContext"] = json!({"fsGroup": 77});
    lab.apply(vec![writer.clone()]).await;
    let reason = async |name: &str| {
        let pods = lab.client.pods().await.unwrap();
        pods.into_iter().find(|pod| pod.name == name).unwrap().reason
    };
    let missing = "PersistentVolumeClaim \"shared\" does not exist";
    lab.until("it waits for its claim", async || reason("writer").await.contains(missing)).await;
    let reader = claiming("reader", &json!({"claimName": "shared", "readOnly": true}));
    lab.apply_ready(vec![claim.clone(), reader]).await;
    assert_eq!(lab.sh("writer", "echo kept > /data/x; stat -c %g /data/x").0, "77\n");
    assert_eq!(lab.sh("reader", "cat /data/x").0, "kept\n");
    assert_ne!(lab.sh("reader", "echo other > /data/x").1, 0, "it is read-only there");
    assert_ne!(lab.sh("writer", "head -c 2000000 /dev/zero > /data/y").1, 0, "it is bounded");
    lab.sh("writer", "rm /data/y");
    // Another pod has what was left, and a set's pods have claims of their own.
    lab.delete("pods", &["writer"]).await;
    lab.until_gone(&["writer"]).await;
    let template = json!({"metadata": {"name": "v"}, "spec": spec});
    let of_pod = claiming("db", &json!({}));
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "db"}},
            "volumeClaimTemplates": [template],
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": of_pod["spec"]["containers"],
                },
            },
        },
    });
    lab.apply_ready(vec![writer, set]).await;
    assert_eq!(lab.sh("writer", "cat /data/x").0, "kept\n");
    lab.until("both are there", async || lab.sh("db-1", "echo 1 > /data/number").1 == 0).await;
    assert_eq!(lab.sh("db-0", "ls /data").0, "");
    lab.delete("pods", &["db-1"]).await;
    let is_back = async || lab.sh("db-1", "cat /data/number").0 == "1\n";
    lab.until("the next one has its claim", is_back).await;
    // A claim goes at once, and what it held with the last pod that has it.
    lab.delete("persistentvolumeclaims", &["shared"]).await;
    assert_eq!(lab.sh("writer", "cat /data/x").0, "kept\n");
    lab.delete("pods", &["writer", "reader"]).await;
    lab.until_gone(&["writer", "reader"]).await;
    lab.apply_ready(vec![claim, claiming("reader", &json!({"claimName": "shared"}))]).await;
    assert_eq!(lab.sh("reader", "ls /data").0, "", "it is another one");
    lab.down().await;
}
