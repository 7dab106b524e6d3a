//! Init containers that run beside the others, and what comes before a container's end.

use std::time::{Duration, Instant};

use ambit_machine::Phase;
use serde_json::json;

use crate::lab::{Lab, container, pod};

pub(crate) async fn sidecars_outlive_those_they_serve() {
    let lab = Lab::up("sidecars", 1).await;
    let says = |name: &str, word: &str| {
        let script = format!(
            "trap '[ -e /run/before ] && echo {word} after preStop; exit 0' TERM; echo {word}; \
             while :; do sleep 0.05; done"
        );
        json!({"name": name, "image": "busybox", "command": ["sh", "-c", script]})
    };
    let sidecar = |name: &str| {
        let mut container = says(name, name);
        container["restartPolicy"] = json!("Always");
        container
    };
    // The init container runs only once the first sidecar does.
    let look = "grep -q 'echo [o]ne' /proc/[0-9]*/cmdline";
    let init = json!({"name": "init", "image": "busybox", "command": ["sh", "-c", look]});
    let mut job = pod("job", &[]);
    job["spec"]["restartPolicy"] = json!("Never");
    job["spec"]["initContainers"] = json!([sidecar("one"), init, sidecar("two")]);
    job["spec"]["containers"] = json!([container(&["sh", "-c", "sleep 0.5; exit 0"])]);
    let mut server = pod("server", &[]);
    server["spec"]["initContainers"] = json!([sidecar("one"), sidecar("two")]);
    let mut main = says("main", "main");
    let before = json!(["sh", "-c", "echo > /run/before; sleep 0.2"]);
    main["lifecycle"] = json!({"preStop": {"exec": {"command": before}}});
    server["spec"]["containers"] = json!([main]);
    lab.apply(vec![job, server]).await;
    lab.until("the job succeeds, and the server is ready", async || {
        let pods = lab.client.pods().await.unwrap();
        let of = |name: &str| pods.iter().find(|pod| pod.name == name).unwrap().clone();
        of("job").phase == Phase::Succeeded
            && of("job").containers.iter().all(|container| !container.running)
            && of("server").ready
    })
    .await;
    let (names, _) = lab.sh("server", "ls /run");
    assert!(!names.contains("before"), "{names}");
    // A sidecar that ends is started again; the job's were not.
    let pods = lab.client.pods().await.unwrap();
    let job = pods.iter().find(|pod| pod.name == "job").unwrap();
    assert_eq!(job.restarts, 0, "{job:?}");
    lab.sh(
        "server",
        "for p in /proc/[0-9]*; do grep -q 'echo [o]ne' $p/cmdline && kill ${p#/proc/}; done",
    );
    lab.until("the killed sidecar runs again", async || {
        let pods = lab.client.pods().await.unwrap();
        pods.iter().any(|pod| pod.name == "server" && pod.restarts == 1 && pod.ready)
    })
    .await;
    let start = Instant::now();
    lab.delete("pods", &["server"]).await;
    lab.until_gone(&["server"]).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for container in ["main", "two", "one"] {
        lab.log("server", container, &format!("{container} after preStop")).await;
    }
    lab.down().await;
}
