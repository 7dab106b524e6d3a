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
