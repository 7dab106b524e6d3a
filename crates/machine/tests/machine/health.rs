//! Probes and hooks: what makes a container ready, and what ends it.

use std::time::{Duration, Instant};

use ambit_machine::ContainerStatus;
use serde_json::{Value, json};

use crate::lab::{Lab, pod};

/// A pod of one container that runs a script, with more fields.
pub(crate) fn running(name: &str, script: &str, more: &Value) -> Value {
    let mut pod = pod(name, &[]);
    let mut container = json!({"name": "c", "image": "busybox", "command": ["sh", "-c", script]});
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pod["spec"]["containers"] = json!([container]);
    pod
}

/// Init containers first; one that says nothing yet if nothing is reported.
async fn statuses(lab: &Lab, name: &str) -> Vec<ContainerStatus> {
    let pods = lab.client.pods().await.unwrap();
    let pod = pods.into_iter().find(|pod| pod.name == name).unwrap();
    if pod.containers.is_empty() { vec![ContainerStatus::default()] } else { pod.containers }
}

pub(crate) async fn status(lab: &Lab, name: &str) -> ContainerStatus {
    statuses(lab, name).await.pop().unwrap()
}

/// The events of a pod, as `REASON: MESSAGE`.
pub(crate) async fn events(lab: &Lab, name: &str) -> String {
    let events = lab.client.events().await.unwrap();
    let of_it = events.iter().filter(|event| event["involvedObject"]["name"] == name);
    let line = |event: &Value| {
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        format!("{}: {}\n", text("reason"), text("message"))
    };
    of_it.map(line).collect()
}

/// Ends on its stop signal, and says so.
const POLITE: &str = "trap 'echo asked; exit 0' TERM; echo begun; while :; do sleep 0.05; done";

pub(crate) async fn probes_end_what_is_not_well() {
    let lab = Lab::up("liveness", 1).await;
    let quick = |mut probe: Value| {
        (probe["periodSeconds"], probe["failureThreshold"]) = (json!(1), json!(2));
        probe
    };
    let echo = "sleep 2; exec ambit sample echo --listen [::]:8000";
    let file = json!({"exec": {"command": ["test", "-e", "/tmp/good"]}});
    let port = json!({"httpGet": {"port": 8000, "path": "/"}});
    let mut deaf = quick(json!({"tcpSocket": {"port": 1}}));
    deaf["terminationGracePeriodSeconds"] = json!(1);
    let never = "trap '' TERM; while :; do sleep 0.05; done";
    let mut last = running("last", POLITE, &json!({"livenessProbe": quick(file.clone())}));
    last["spec"]["restartPolicy"] = json!("Never");
    let before = json!({"exec": {"command": ["sh", "-c", "echo before > /tmp/before"]}});
    let polite = json!({"livenessProbe": quick(file.clone()), "lifecycle": {"preStop": before}});
    // Without the startup probe it would be ended before it listens.
    let mut slow = json!({"startupProbe": port, "livenessProbe": quick(port.clone())});
    (slow["startupProbe"]["periodSeconds"], slow["livenessProbe"]["failureThreshold"]) =
        (json!(1), json!(1));
    slow["startupProbe"]["failureThreshold"] = json!(60);
    lab.apply(vec![
        running("polite", &format!("touch /tmp/good; {POLITE}"), &polite),
        running("slow", echo, &slow),
        running("deaf", never, &json!({"livenessProbe": deaf})),
        running("late", POLITE, &json!({"startupProbe": quick(file)})),
        last,
    ])
    .await;
    lab.until("what listens late has started", async || status(&lab, "slow").await.ready).await;
    assert_eq!(status(&lab, "slow").await.restarts, 0);
    lab.until("polite runs", async || status(&lab, "polite").await.started).await;
    assert_eq!(status(&lab, "polite").await.restarts, 0, "it is well");
    lab.sh("polite", "rm /tmp/good");
    for name in ["polite", "deaf", "late"] {
        let again = async || status(&lab, name).await.restarts > 0;
        lab.until(&format!("{name} is started again"), again).await;
    }
    lab.log("polite", "c", "asked").await;
    assert_eq!(lab.sh("polite", "cat /tmp/before").0, "before\n", "preStop came first");
    let said = events(&lab, "polite").await;
    for expected in [
        "Unhealthy: Liveness probe failed: command \"test\" exited with 1\n",
        "Killing: Container c failed liveness probe, will be restarted\n",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    let said = events(&lab, "deaf").await;
    assert!(said.contains("Unhealthy: Liveness probe failed: dial tcp 10.244.1."), "{said}");
    assert!(status(&lab, "deaf").await.last_exit == Some(137), "by force, after its grace");
    let said = events(&lab, "late").await;
    assert!(
        said.contains("Killing: Container c failed startup probe, will be restarted"),
        "{said}"
    );
    lab.until("a pod that never restarts ends", async || {
        let last = status(&lab, "last").await;
        !last.running && last.last_exit == Some(0)
    })
    .await;
    assert_eq!(status(&lab, "last").await.restarts, 0);
    lab.down().await;
}

pub(crate) async fn hooks_belong_to_a_containers_life() {
    let lab = Lab::up("hooks", 1).await;
    let exec = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
    let hooks = |hook: Value| json!({"lifecycle": {"postStart": hook}});
    let gated = exec("while [ ! -e /tmp/go ]; do sleep 0.05; done; echo hooked > /tmp/hooked");
    let mut sidecar = running("side", POLITE, &hooks(gated.clone()));
    let mut first = sidecar["spec"]["containers"][0].clone();
    (first["name"], first["restartPolicy"]) = (json!("first"), json!("Always"));
    sidecar["spec"]["initContainers"] = json!([first]);
    sidecar["spec"]["containers"][0].as_object_mut().unwrap().remove("lifecycle");
    lab.apply(vec![
        running("gated", POLITE, &hooks(gated)),
        running("pause", POLITE, &hooks(json!({"sleep": {"seconds": 1}}))),
        running("failing", POLITE, &hooks(exec("exit 3"))),
        sidecar,
    ])
    .await;
    lab.until("gated runs", async || status(&lab, "gated").await.running).await;
    lab.until("the pause is over", async || status(&lab, "pause").await.ready).await;
    let gated = status(&lab, "gated").await;
    assert!(!gated.started && !gated.ready, "{gated:?}");
    assert_eq!(gated.reason, "its postStart hook runs");
    let sidecar = async || statuses(&lab, "side").await.swap_remove(0);
    lab.until("the sidecar runs", async || sidecar().await.running).await;
    assert!(!sidecar().await.started && !status(&lab, "side").await.running);
    lab.sh("gated", "touch /tmp/go");
    lab.until("gated is ready", async || status(&lab, "gated").await.ready).await;
    assert_eq!(lab.sh("gated", "cat /tmp/hooked").0, "hooked\n");
    lab.until("failing is started again", async || status(&lab, "failing").await.restarts > 0)
        .await;
    let said = events(&lab, "failing").await;
    for expected in
        ["FailedPostStartHook: PostStartHook failed\n", "Killing: FailedPostStartHook\n"]
    {
        assert!(said.contains(expected), "{said}");
    }
    // A hook that runs does not hold up the end.
    let start = Instant::now();
    lab.delete("pods", &["side"]).await;
    lab.until_gone(&["side"]).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    lab.down().await;
}

pub(crate) async fn readiness_is_what_probes_say() {
    let lab = Lab::up("probes", 1).await;
    let probed = |name: &str, probe: Value| {
        let mut pod = pod(name, &[]);
        pod["spec"]["containers"] = json!([{
            "name": "c", "image": "busybox",
            "command": ["ambit", "sample", "echo", "--listen", "[::]:8000"],
            "ports": [{"name": "web", "containerPort": 8000}],
            "readinessProbe": probe,
        }]);
        pod
    };
    let quick = |mut probe: Value| {
        probe["periodSeconds"] = json!(1);
        probe["failureThreshold"] = json!(1);
        probe
    };
    lab.apply(vec![
        probed("tcp", quick(json!({"tcpSocket": {"port": "web"}}))),
        probed("http", quick(json!({"httpGet": {"port": 8000, "path": "/?size=5"}}))),
        probed("command", quick(json!({"exec": {"command": ["test", "-e", "/tmp/good"]}}))),
        probed("wrong", quick(json!({"tcpSocket": {"port": 8001}}))),
    ])
    .await;
    let ready = async |name: &str| {
        let pods = lab.client.pods().await.unwrap();
        pods.iter().any(|pod| pod.name == name && pod.ready)
    };
    lab.until("tcp and http answer", async || ready("tcp").await && ready("http").await).await;
    assert!(!ready("command").await && !ready("wrong").await);
    lab.sh("command", "touch /tmp/good");
    lab.until("the command succeeds", async || ready("command").await).await;
    lab.sh("command", "rm /tmp/good");
    lab.until("the command fails", async || !ready("command").await).await;
    let pods = lab.client.pods().await.unwrap();
    let wrong = pods.iter().find(|pod| pod.name == "wrong").unwrap();
    assert!(wrong.reason.contains("readiness probe"), "{}", wrong.reason);
    lab.down().await;
}
