//! Machines of namespaces, end to end: started, used, disturbed and taken down. Needs root.
//!
//! This binary stands in for the shipped one: its `main` runs the hidden subcommands when it is
//! asked to. It runs the cases one by one, since they share the host's process table. Arguments
//! select cases by name.

#![expect(clippy::unwrap_used, reason = "a test without the harness is not known to be one")]

mod health;
mod images;
mod lab;
mod limits;
mod sidecars;
mod volumes;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ambit_machine::image::ImageMap;
use ambit_machine::layout::Layout;
use ambit_machine::{Liveness, Phase, UpConfig, UpError};
use futures::future::{FutureExt, LocalBoxFuture};
use serde_json::json;

use lab::{Lab, container, deployment, owners, pod, service};

fn main() -> ExitCode {
    if let Some(code) = lab::hidden(std::env::args_os()) {
        return code;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, case) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let start = Instant::now();
        runtime.block_on(case());
        println!("test {name} ... ok ({:.2} s)", start.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

type Case = fn() -> LocalBoxFuture<'static, ()>;
const CASES: &[(&str, Case)] = &[
    ("pods_are_set_apart", || pods_are_set_apart().boxed_local()),
    ("pods_cannot_write_the_host", || pods_cannot_write_the_host().boxed_local()),
    ("commands_in_pods_behave", || commands_in_pods_behave().boxed_local()),
    ("containers_get_their_environment", || containers_get_their_environment().boxed_local()),
    ("containers_start_end_and_restart", || containers_start_end_and_restart().boxed_local()),
    ("sidecars_outlive_those_they_serve", || {
        sidecars::sidecars_outlive_those_they_serve().boxed_local()
    }),
    ("volumes_change_alone", || volumes::a_bad_volume_stops_no_other().boxed_local()),
    ("claims_outlive_pods", || volumes::claims_outlive_pods().boxed_local()),
    ("no_process_escapes", || volumes::nothing_outlives_the_only_container().boxed_local()),
    ("probes_end_what_is_not_well", || health::probes_end_what_is_not_well().boxed_local()),
    ("hooks_belong_to_a_containers_life", || {
        health::hooks_belong_to_a_containers_life().boxed_local()
    }),
    ("readiness_is_what_probes_say", || health::readiness_is_what_probes_say().boxed_local()),
    ("containers_keep_to_their_limits", || limits::containers_keep_to_their_limits().boxed_local()),
    ("services_lead_to_ready_endpoints", || services_lead_to_ready_endpoints().boxed_local()),
    ("cluster_dns_answers", || cluster_dns_answers().boxed_local()),
    ("deployments_roll", || deployments_roll().boxed_local()),
    ("wrong_objects_change_nothing", || wrong_objects_change_nothing().boxed_local()),
    ("images_get_a_meaning_later", || images_get_a_meaning_later().boxed_local()),
    ("deletion_cascades", || deletion_cascades().boxed_local()),
    ("crashes_disturb_nobody_else", || crashes_disturb_nobody_else().boxed_local()),
    ("pods_ask_for_addresses_and_networks", || pods_ask_for_addresses_and_networks().boxed_local()),
    ("machines_that_cannot_start_say_why", || machines_that_cannot_start_say_why().boxed_local()),
    ("machines_start_where_nobody_else_writes", || {
        owners::machines_start_where_nobody_else_writes().boxed_local()
    }),
    ("commands_go_to_our_own_machine_alone", || {
        owners::commands_go_to_our_own_machine_alone().boxed_local()
    }),
    ("machines_end_without_trace", || machines_end_without_trace().boxed_local()),
    ("machines_run_without_root", || machines_run_without_root().boxed_local()),
];

async fn pods_are_set_apart() {
    let lab = Lab::up("apart", 1).await;
    lab.apply_ready(vec![pod("a", &["sleep", "infinity"]), pod("b", &["sleep", "infinity"])]).await;
    let run = |command: &str| lab.sh("a", command);
    // Bit 13 is NET_RAW, bit 21 SYS_ADMIN, bit 27 MKNOD.
    let bounding = run("grep CapBnd /proc/self/status").0;
    let bits = u64::from_str_radix(bounding.split_whitespace().nth(1).unwrap(), 16).unwrap();
    assert_eq!(bits & (1 << 13 | 1 << 21 | 1 << 27), 0, "{bounding}");
    assert_ne!(bits & 1, 0, "CHOWN is a default: {bounding}");
    let keyring = lab::session_keyring();
    assert_ne!(lab.exec("a", &lab::SESSION_KEYRING).0, keyring, "the session's keys stay outside");
    assert_eq!(run("id -G").0, "0\n", "so do the groups of whoever started the machine");
    assert!(run("grep NoNewPrivs /proc/self/status").0.contains('1'));
    assert_eq!(run("hostname").0, "a\n");
    let resolv = run("cat /etc/resolv.conf").0;
    assert!(resolv.contains("nameserver 10.96.0.10\n") && resolv.contains("ndots:5"), "{resolv}");
    assert!(run("cat /etc/hosts").0.contains("10.244.1."));
    let state = lab.layout().root().display().to_string();
    let seen = run(&format!("ls -A {state} 2>&1; ls -A /tmp")).0;
    assert!(!seen.contains("machine.json") && !seen.contains("registry"), "{seen}");
    // Its own init, its container, this shell and what it runs; not the other pod's.
    let processes = run("cat /proc/[0-9]*/comm").0;
    assert!(processes.lines().count() <= 5, "{processes}");
    assert_ne!(run("umount /etc/hosts").1, 0);
    for place in ["/tmp", "/run", "/dev", "/dev/shm"] {
        let read = format!("mknod {place}/disk b 254 0; head -c 1 {place}/disk");
        assert_ne!(run(&read).1, 0, "no device file works in {place}");
    }
    assert_ne!(run("ls -l /proc/1/cwd").1, 0, "the pod's init is closed to the pod");
    run("echo only-here > /tmp/mark");
    assert_ne!(lab.sh("b", "cat /tmp/mark").1, 0, "/tmp is a pod's own");
    lab.down().await;
}

async fn pods_cannot_write_the_host() {
    let lab = Lab::up("read-only", 1).await;
    lab.apply_ready(vec![pod("a", &["sh", "-c", "echo logged; exec sleep infinity"])]).await;
    let state = lab.layout().root().display().to_string();
    check_read_only(&lab, &state);
    lab.log("a", "c", "logged").await;
    lab.down().await;
    let left = ["/etc", "/usr", "/"].map(|place| Path::new(place).join(TRACE));
    assert!(left.iter().all(|path| !path.exists()), "{left:?}");
}

/// A name that nothing else uses.
const TRACE: &str = "ambit-write-trace";

/// What a pod must not and what it must be able to write, as real root and as a user's root.
fn check_read_only(lab: &Lab, state: &str) {
    let run = |command: &str| lab.sh("a", command);
    for directory in ["/", "/etc", "/usr", "/usr/bin", "/sys", "/proc/sys", state] {
        let (said, code) = run(&format!("echo x > {directory}/{TRACE}"));
        assert_ne!(code, 0, "{directory} takes a new file: {said}");
    }
    // The container's own process, with what it was given. The modes are those that they have.
    for (file, mode) in [("fd/0", "666"), ("exe", "755"), ("cwd", "755")] {
        let (said, code) = run(&format!("chmod {mode} /proc/2/{file}"));
        assert_ne!(code, 0, "{file} takes a mode: {said}");
    }
    // Opened for appending and left as they are, should the test fail.
    let release_agents = "/sys/fs/cgroup/*/release_agent";
    for file in [
        "/usr/bin/env",
        "/etc/passwd",
        "/etc/hosts",
        "/etc/resolv.conf",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/net/ipv4/tcp_fwmark_accept",
        "/proc/sysrq-trigger",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/fs/cgroup/cgroup.procs",
        release_agents,
    ] {
        let (said, code) = run(&format!(
            "for file in {file}; do if [ -e $file ] && (: >> $file); then echo $file; fi; done"
        ));
        let refused = code == 0 && !said.lines().any(|line| line.starts_with('/'));
        assert!(refused, "{file} opens for writing: {said}");
    }
    // Whatever else is mounted on this machine: only the pod's own is writable, devices are few.
    let mounts = run("cut -d' ' -f5,6 /proc/self/mountinfo").0;
    for (place, options) in mounts.lines().map(|line| line.split_once(' ').unwrap()) {
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        let own = ["/tmp", "/var/tmp", "/run", "/dev", "/dev/pts", "/dev/shm", "/proc"];
        let own = own.contains(&place);
        assert!(own || has("ro"), "{place} is {options}");
        let device = place.starts_with("/dev/") || run(&format!("[ -c '{place}' ]")).1 == 0;
        assert!(device || has("nodev"), "{place} is {options}");
    }
    for wrong in ["touch /dev/pts/x", "mkdir /dev/pts/x", "mknod /dev/pts/x c 1 3"] {
        assert_ne!(run(wrong).1, 0, "terminals come of /dev/ptmx alone: {wrong}");
    }
    assert_eq!(run("exec 3<>/dev/ptmx && ls /dev/pts").0, "0\nptmx\n");
    assert_ne!(run("mount -o remount,rw,bind /").1, 0);
    assert_ne!(run("umount /proc/sys").1, 0);
    // Not even as the root of a namespace of its own, where such a thing is allowed at all.
    let own = format!("unshare -Urm sh -c 'mount -o remount,rw,bind / && : > /etc/{TRACE}'");
    assert_ne!(run(&own).1, 0);
    for mask in ["/proc/kcore", "/proc/keys", "/proc/timer_list"] {
        assert_eq!(run(&format!("[ ! -e {mask} ] || cat {mask} | wc -c | grep -qx 0")).1, 0);
    }
    for directory in ["/tmp", "/var/tmp", "/run", "/dev/shm"] {
        let (said, code) = run(&format!("echo x > {directory}/x && cat {directory}/x"));
        assert_eq!((said.as_str(), code), ("x\n", 0), "{directory}");
    }
    assert_eq!(run("echo x > /dev/null && [ $(head -c 3 /dev/zero | wc -c) = 3 ]").1, 0);
    assert_eq!(run("head -c 3 /dev/urandom | wc -c").0.trim(), "3");
    assert_eq!(run("curl --version > /tmp/curl && grep -c ^curl /tmp/curl").0, "1\n");
    assert!(run("cat /etc/hosts").0.contains("10.244.1."));
    assert!(run("cat /etc/resolv.conf").0.contains("ndots:5"));
}

async fn commands_in_pods_behave() {
    let lab = Lab::up("exec", 1).await;
    lab.apply_ready(vec![
        pod("a", &["sleep", "infinity"]),
        deployment("web", 1, container(&["sleep", "infinity"])),
    ])
    .await;
    assert_eq!(lab.sh("a", "exit 7").1, 7);
    assert_eq!(lab.sh("a", "kill -9 $$").1, 137);
    assert_eq!(lab.sh("web", "hostname").0.split('-').next(), Some("web"));
    assert_eq!(lab.exec_with_input("a", &["cat"], "in and out\n").0, "in and out\n");
    assert_eq!(lab.exec("a", &["no-such-program"]).1, 127);
    let (said, code) = lab.exec("nobody", &["true"]);
    assert!(code == 99 && said.contains("no pod default/nobody"), "{said}");
    let start = Instant::now();
    assert_eq!(lab.interrupt_exec("a", &["sleep", "60"]), 130);
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(
        lab.exec("a", &["ambit", "sample", "--help"]).1,
        0,
        "the shipped binary is in every pod"
    );
    lab.down().await;
}

async fn containers_get_their_environment() {
    let lab = Lab::up("env", 1).await;
    let mut reader = pod("reader", &[]);
    reader["spec"]["hostname"] = json!("host-of-reader");
    reader["spec"]["initContainers"] = json!([{
        "name": "first", "image": "busybox", "command": ["sh", "-c", "echo ready > /tmp/first"],
    }]);
    let script = "cat /tmp/first; pwd; id -u; id -g; env; echo \"$0 $1\"; exec sleep infinity";
    let from_map = |key: &str, optional: bool| {
        let reference = json!({"name": "settings", "key": key, "optional": optional});
        json!({"configMapKeyRef": reference})
    };
    let from_secret = json!({"secretKeyRef": {"name": "keys", "key": "password"}});
    reader["spec"]["containers"] = json!([{
        "name": "c", "image": "busybox",
        "command": ["sh", "-c", script],
        "args": ["$(GREETING)", "$$(GREETING)"],
        "workingDir": "/usr",
        "securityContext": {"runAsUser": 1234, "runAsGroup": 2345},
        "envFrom": [{"prefix": "MAP_", "configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "NAME", "value": "world"},
            {"name": "GREETING", "value": "hello $(NAME)"},
            {"name": "PASSWORD", "valueFrom": from_secret},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "COLOR", "valueFrom": from_map("color", false)},
            {"name": "ABSENT", "valueFrom": from_map("no", true)},
        ],
    }]);
    // The pod comes first and waits for what it names.
    lab.apply(vec![reader]).await;
    lab.until("the missing ConfigMap is named", async || {
        let pods = lab.client.pods().await.unwrap();
        pods[0].reason.contains("ConfigMap \"settings\" does not exist")
    })
    .await;
    lab.apply_ready(vec![
        data("ConfigMap", "settings", json!({"color": "blue"})),
        data("Secret", "keys", json!({"password": "c2VzYW1l"})),
    ])
    .await;
    let log = lab.log("reader", "c", "hello world $(GREETING)").await;
    for line in [
        "ready",
        "/usr",
        "1234",
        "2345",
        "MAP_color=blue",
        "COLOR=blue",
        "GREETING=hello world",
        "PASSWORD=sesame",
        "NODE=node-1",
        "HOSTNAME=host-of-reader",
    ] {
        assert!(log.lines().any(|have| have == line), "{line:?} is not in {log}");
    }
    assert!(log.contains("POD_IP=10.244.1.") && !log.contains("ABSENT"), "{log}");
    lab.down().await;
}

fn data(kind: &str, name: &str, data: serde_json::Value) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data})
}

/// More than time can count: nothing is added up that overflows.
const GRACE_SECONDS: i64 = i64::MAX;

async fn containers_start_end_and_restart() {
    let lab = Lab::up("restart", 1).await;
    let once = |name: &str, policy: &str, command: &str| {
        let mut pod = pod(name, &["sh", "-c", command]);
        pod["spec"]["restartPolicy"] = json!(policy);
        pod
    };
    let mut two = pod("two", &[]);
    two["spec"]["containers"] = json!([
        {"name": "server", "image": "ambit/sample", "args": ["echo", "--listen", "127.0.0.1:7000"]},
        {"name": "client", "image": "busybox", "command": ["sh", "-c",
            "until curl -s http://127.0.0.1:7000/; do sleep 0.1; done; echo reached; sleep 999"]},
    ]);
    lab.apply(vec![
        once("good", "Never", "exit 0"),
        once("bad", "Never", "exit 3"),
        once("again", "OnFailure", "exit 4"),
        once("always", "Always", "exit 0"),
        two,
    ])
    .await;
    lab.log("two", "client", "reached").await;
    lab.until("each pod is where its policy leads", async || {
        let pods = lab.client.pods().await.unwrap();
        let of = |name: &str| pods.iter().find(|pod| pod.name == name).unwrap().clone();
        of("good").phase == Phase::Succeeded
            && of("bad").phase == Phase::Failed
            && of("bad").containers[0].last_exit == Some(3)
            && of("again").restarts >= 2
            && of("again").containers[0].last_exit == Some(4)
            && of("always").restarts >= 2
    })
    .await;
    // A polite end is waited for, an impolite one is not waited for longer than its grace.
    let mut polite =
        pod("polite", &["sh", "-c", "trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done"]);
    polite["spec"]["terminationGracePeriodSeconds"] = json!(GRACE_SECONDS);
    let mut deaf = pod("deaf", &["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"]);
    deaf["spec"]["terminationGracePeriodSeconds"] = json!(1);
    lab.apply(vec![polite, deaf]).await;
    lab.until("both run", async || {
        lab.client.pods().await.unwrap().iter().filter(|pod| pod.ready).count() >= 3
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    lab.delete("pods", &["polite", "deaf"]).await;
    lab.until_gone(&["polite", "deaf"]).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    lab.log("polite", "c", "bye").await;
    lab.down().await;
}

async fn services_lead_to_ready_endpoints() {
    let lab = Lab::up("services", 2).await;
    let echo = container(&["ambit", "sample", "echo", "--listen", "[::]:8000"]);
    let to_8000 = || json!([{"name": "http", "port": 80, "targetPort": 8000}]);
    let mut sticky = service("sticky", json!({"app": "names"}), to_8000());
    sticky["spec"]["sessionAffinity"] = json!("ClientIP");
    lab.apply_ready(vec![
        deployment("web", 4, echo),
        dual_stack(service("web", json!({"app": "web"}), to_8000())),
        deployment("names", 4, says_its_name()),
        service("names", json!({"app": "names"}), to_8000()),
        sticky,
        service("empty", json!({"app": "nothing"}), json!([{"port": 80}])),
        pod("client", &["sleep", "infinity"]),
    ])
    .await;
    let services = lab.client.objects("services").await.unwrap();
    let web = services.iter().find(|one| one["metadata"]["name"] == "web").unwrap();
    let [v4, v6] =
        [0, 1].map(|index| web["spec"]["clusterIPs"][index].as_str().unwrap().to_owned());
    let pods = lab.client.pods().await.unwrap();
    let nodes: BTreeSet<_> =
        pods.iter().filter(|pod| pod.owner == "web").map(|pod| pod.node.clone()).collect();
    assert_eq!(nodes.len(), 2, "pods spread");
    let codes = |from: &str, host: &str| {
        let ask = format!("curl -s -m 5 -o /dev/null -w '%{{http_code}} ' http://{host}/");
        lab.sh(from, &format!("for i in $(seq 40); do {ask}; done")).0
    };
    lab.until("the service is in place", async || codes("client", &v4).contains("200")).await;
    for host in [&v4, &format!("[{v6}]"), "web", "web.default.svc.cluster.local"] {
        let codes = codes("client", host);
        assert_eq!(codes.matches("200").count(), 40, "{host}: {codes}");
    }
    // Hairpin: an endpoint reaches its own service, and thereby itself.
    let codes = codes("web", &v4);
    assert_eq!(codes.matches("200").count(), 40, "{codes}");
    let names = |host: &str| -> BTreeSet<String> {
        let ask = format!("curl -s -m 5 http://{host}/ | grep '\"name\"'");
        let said = lab.sh("client", &format!("for i in $(seq 60); do {ask}; done")).0;
        assert_eq!(said.lines().count(), 60, "{said}");
        said.lines().map(str::to_owned).collect()
    };
    assert_eq!(names("names").len(), 4, "every endpoint gets its share");
    assert_eq!(names("sticky").len(), 1, "a client stays with its endpoint");
    let start = Instant::now();
    let refused = |host: &str| lab.sh("client", &format!("curl -s -m 5 http://{host}/"));
    assert_eq!(refused("empty").1, 7, "no endpoint: refused");
    assert_eq!(refused(&format!("{v4}:81")).1, 7, "no such port: refused");
    assert_eq!(refused(&format!("[{v6}]:81")).1, 7, "no such port: refused");
    assert!(start.elapsed() < Duration::from_secs(3), "refusals come at once");
    lab.down().await;
}

/// A container whose answers name its pod.
fn says_its_name() -> serde_json::Value {
    let name = json!({"fieldRef": {"fieldPath": "metadata.name"}});
    let name = json!({"name": "NAME", "valueFrom": name});
    json!({
        "name": "c", "image": "nicholasjackson/fake-service:v0.26.2",
        "env": [{"name": "LISTEN_ADDR", "value": "0.0.0.0:8000"}, name],
        "readinessProbe": {"tcpSocket": {"port": 8000}},
    })
}

fn dual_stack(mut service: serde_json::Value) -> serde_json::Value {
    service["spec"]["ipFamilyPolicy"] = json!("PreferDualStack");
    service
}

async fn cluster_dns_answers() {
    let lab = Lab::up("dns", 2).await;
    let mut named = pod("db-0", &["sleep", "infinity"]);
    named["metadata"]["labels"] = json!({"app": "db"});
    named["spec"]["hostname"] = json!("db-0");
    named["spec"]["subdomain"] = json!("db");
    let mut headless = service("db", json!({"app": "db"}), json!([{"name": "sql", "port": 5432}]));
    headless["spec"]["clusterIP"] = json!("None");
    lab.apply_ready(vec![
        named,
        headless,
        pod("client", &["sleep", "infinity"]),
        dual_stack(service("web", json!({"app": "web"}), json!([{"port": 80}]))),
    ])
    .await;
    let lookup = |name: &str| lab.exec("client", &["getent", "ahosts", name]);
    let pods = lab.client.pods().await.unwrap();
    let ip = pods.iter().find(|pod| pod.name == "db-0").unwrap().pod_ips[0].to_string();
    lab.until("the headless service resolves", async || lookup("db").0.contains(&ip)).await;
    assert!(lookup("db-0.db").0.contains(&ip));
    assert!(
        lookup("web").0.contains("10.96.1.") && lookup("web.default").0.contains("fd00:10:96::1")
    );
    let start = Instant::now();
    assert_ne!(lookup("nothing").1, 0);
    assert_ne!(lookup("www.example.com").1, 0);
    assert!(start.elapsed() < Duration::from_secs(2), "absence is told, not waited for");
    assert!(lab.exec("client", &["getent", "hosts", &ip]).0.contains("db-0.db.default"));
    lab.down().await;
}

async fn deployments_roll() {
    let lab = Lab::up("roll", 2).await;
    let echo = |port: &str| container(&["ambit", "sample", "echo", "--listen", port]);
    lab.apply_ready(vec![
        deployment("web", 3, echo("[::]:8000")),
        service("web", json!({"app": "web"}), json!([{"port": 80, "targetPort": 8000}])),
        pod("client", &["sleep", "infinity"]),
    ])
    .await;
    let names = async || {
        let pods = lab.client.pods().await.unwrap();
        let mut names: Vec<String> =
            pods.into_iter().filter(|pod| pod.owner == "web").map(|pod| pod.name).collect();
        names.sort();
        names
    };
    let before = names().await;
    assert_eq!(before.len(), 3);
    lab.client.scale(&lab::web(), 1).await.unwrap();
    lab.until("one is left", async || names().await.len() == 1).await;
    lab.client.scale(&lab::web(), 2).await.unwrap();
    lab.ready().await;
    let before = names().await;
    lab.client.restart(&lab::web()).await.unwrap();
    lab.until("all are new", async || {
        let now = names().await;
        now.len() == 2 && now.iter().all(|name| !before.contains(name))
    })
    .await;
    // A manifest of what is there is remembered, as kubectl has it, and disturbs no pod, not even
    // after a restart and a scale to the same number. The same manifest again changes nothing.
    let there = names().await;
    for expected in ["configured", "unchanged"] {
        let changes = lab.apply(vec![deployment("web", 2, echo("[::]:8000"))]).await;
        assert_eq!(changes, [expected]);
    }
    assert_eq!(names().await, there);
    // A template that never becomes ready does not take the service down.
    let mut broken = deployment("web", 2, echo("[::]:8000"));
    broken["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": 1}, "periodSeconds": 1});
    broken["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    lab.apply(vec![broken]).await;
    lab.until("a pod of the new template is there", async || names().await.len() == 3).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        lab.sh("client", "curl -s -m 5 -o /dev/null -w '%{http_code}' http://web/").0,
        "200"
    );
    lab.down().await;
}

async fn wrong_objects_change_nothing() {
    let lab = Lab::up("wrong", 1).await;
    lab.apply_ready(vec![pod("old", &["sleep", "infinity"])]).await;
    let good = || pod("good", &["sleep", "infinity"]);
    let fresh = || pod("wrong", &["sleep", "infinity"]);
    let mut elsewhere = fresh();
    elsewhere["metadata"]["namespace"] = json!("nowhere");
    let mut account = fresh();
    account["spec"]["serviceAccountName"] = json!("nobody");
    let image = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "i"},
        "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}});
    let outside = service("s", json!({"app": "x"}), json!([{"port": 1}]));
    let with = |mut value: serde_json::Value, pointer: &str, new: serde_json::Value| {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[field] = new;
        value
    };
    let cases = [
        (elsewhere, "Namespace nowhere, which does not exist"),
        (account, "ServiceAccount default/nobody, which does not exist"),
        (image, "--image nginx=COMMAND"),
        (
            with(fresh(), "/spec/securityContext", json!({"runAsUser": u32::MAX})),
            "runAsUser 4294967295; the number of a user or group is 0 to 2147483647",
        ),
        (
            with(fresh(), "/spec/containers/0/securityContext", json!({"runAsGroup": -1})),
            "runAsGroup -1;",
        ),
        (
            with(fresh(), "/spec/securityContext", json!({"supplementalGroups": [1, -2]})),
            "supplementalGroups -2;",
        ),
        (
            with(pod("old", &["sleep", "1"]), "/metadata/name", json!("old")),
            "cannot change on a live object",
        ),
        (with(fresh(), "/kind", json!("ReplicaSet")), "no kind that a machine keeps"),
        (with(fresh(), "/metadata/name", json!("../../etc")), "a name is at most 253"),
        (with(fresh(), "/spec/containers", json!("none")), "not of the shape of its kind"),
        (
            with(outside.clone(), "/spec/clusterIP", json!("1.2.3.4")),
            "1.2.3.4 is not in 10.96.0.0/16",
        ),
        (with(outside, "/spec/type", json!("ExternalName")), "ServiceEntry"),
        (
            with(
                deployment("d", 1, container(&["true"])),
                "/spec/selector",
                json!({"matchLabels": {"a": "b"}}),
            ),
            "does not match spec.template.metadata.labels",
        ),
        (json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-9"}}), "--nodes"),
    ];
    for (wrong, part) in cases {
        let error = lab.client.apply(vec![good(), wrong], false).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
        let pods = lab.client.pods().await.unwrap();
        assert_eq!(pods.len(), 1, "{part}: nothing was applied");
    }
    let twice = lab.client.apply(vec![good(), good()], false).await.unwrap_err().to_string();
    assert!(twice.contains("given twice"), "{twice}");
    let dry = lab.client.apply(vec![good()], true).await.unwrap();
    assert_eq!(dry.changes.len(), 1);
    assert_eq!(lab.client.pods().await.unwrap().len(), 1, "a dry run changes nothing");
    lab.down().await;
}

async fn images_get_a_meaning_later() {
    let lab = Lab::up("images", 1).await;
    let shop = |name: &str| {
        let mut object = pod(name, &[]);
        object["spec"]["containers"] = json!([{"name": "c", "image": "shop/web:2"}]);
        object
    };
    let error = lab.client.apply(vec![shop("a")], false).await.unwrap_err().to_string();
    assert!(error.contains("--image shop/web=COMMAND"), "{error}");
    let images = || ImageMap::parse(["shop/web=sleep infinity"]).unwrap();
    lab.client.apply_with_images(vec![shop("a")], images(), true).await.unwrap();
    lab.client.apply(vec![shop("a")], false).await.expect_err("a dry run changes nothing");
    lab.client.apply_with_images(vec![shop("a")], images(), false).await.unwrap();
    lab.apply_ready(vec![shop("b")]).await;
    assert_eq!(lab.record().images, images());
    lab.down().await;
}

async fn deletion_cascades() {
    let lab = Lab::up("cascade", 2).await;
    let in_shop = |mut value: serde_json::Value| {
        value["metadata"]["namespace"] = json!("shop");
        value
    };
    let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    lab.apply_ready(vec![
        shop.clone(),
        in_shop(deployment("web", 2, container(&["sleep", "infinity"]))),
        in_shop(service("web", json!({"app": "web"}), json!([{"port": 80}]))),
        deployment("other", 1, container(&["sleep", "infinity"])),
    ])
    .await;
    lab.delete("deployments", &["other"]).await;
    lab.until("the deployment's pod is gone", async || {
        lab.client.pods().await.unwrap().iter().all(|pod| pod.namespace == "shop")
    })
    .await;
    lab.delete("namespaces", &["shop"]).await;
    let again = lab.client.apply(vec![shop.clone()], false).await;
    lab.until("the namespace is gone", async || {
        let left = lab.client.objects("namespaces").await.unwrap();
        left.iter().all(|namespace| namespace["metadata"]["name"] != "shop")
    })
    .await;
    assert!(again.is_err_and(|error| error.to_string().contains("still being deleted")));
    assert!(lab.client.pods().await.unwrap().is_empty());
    let left = std::fs::read_dir(lab.layout().pod_statuses().join("shop"));
    assert!(left.is_err() || left.unwrap().count() == 0, "no status is left");
    lab.apply(vec![shop]).await;
    lab.down().await;
}

async fn crashes_disturb_nobody_else() {
    let lab = Lab::up("crashes", 2).await;
    lab.apply_ready(vec![
        deployment("web", 2, container(&["ambit", "sample", "echo", "--listen", "[::]:8000"])),
        service("web", json!({"app": "web"}), json!([{"port": 80, "targetPort": 8000}])),
        pod("client", &["sleep", "infinity"]),
    ])
    .await;
    let before = lab.client.pods().await.unwrap();
    // The pod runners: their pods continue, and are known again afterwards.
    for node in ["node-1", "node-2"] {
        lab.client.kill(&format!("lab-node/{node}"), 9).await.unwrap();
    }
    lab.until("the runners are back", async || {
        let status = lab.client.status().await.unwrap();
        status.roles.iter().all(|role| role.restarts == 1 && role.waiting_for.is_none())
    })
    .await;
    let after = lab.client.pods().await.unwrap();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.pid, before.restarts, after.ready), (after.pid, after.restarts, true));
    }
    assert_eq!(
        lab.sh("client", "curl -s -m 5 -o /dev/null -w '%{http_code}' http://web/").0,
        "200"
    );
    // A pod's init: the pod is started again where it was.
    let victim = before.iter().find(|pod| pod.owner == "web").unwrap();
    let processes = ambit_machine::processes(&lab.record(), &before).unwrap();
    let init = processes.iter().find(|process| process.pid == victim.pid).unwrap();
    assert_eq!(init.name, format!("pod default/{}", victim.name));
    lab::kill(init.host_pid);
    lab.until("the pod is back at its address", async || {
        let pods = lab.client.pods().await.unwrap();
        let now = pods.iter().find(|pod| pod.name == victim.name).unwrap();
        now.ready && now.restarts == 1 && now.pod_ips == victim.pod_ips
    })
    .await;
    // The pod's init and its runner at once: the next runner finds it dead, and says so.
    let pods = lab.client.pods().await.unwrap();
    let now = pods.iter().find(|pod| pod.name == victim.name).unwrap();
    let processes = ambit_machine::processes(&lab.record(), &pods).unwrap();
    let init = processes.iter().find(|process| process.pid == now.pid).unwrap();
    lab.client.kill(&format!("lab-node/{}", now.node), 9).await.unwrap();
    lab::kill(init.host_pid);
    lab.until("the pod is back and counts its restarts", async || {
        let pods = lab.client.pods().await.unwrap();
        let now = pods.iter().find(|pod| pod.name == victim.name).unwrap();
        now.ready && now.restarts == 2 && now.pod_ips == victim.pod_ips
    })
    .await;
    // What was taken over can be taken down.
    lab.delete("deployments", &["web"]).await;
    lab.until("its pods are gone", async || lab.client.pods().await.unwrap().len() == 1).await;
    lab.down().await;
}

async fn pods_ask_for_addresses_and_networks() {
    let lab = Lab::up("wishes", 1).await;
    let mut fixed = pod("fixed", &["sleep", "infinity"]);
    fixed["metadata"]["annotations"] = json!({"ambit.io/pod-ip": "10.244.1.77"});
    let mut host = pod("host", &["sleep", "infinity"]);
    host["spec"]["hostNetwork"] = json!(true);
    lab.apply_ready(vec![fixed.clone(), host]).await;
    let address = async |name: &str| {
        let pods = lab.client.pods().await.unwrap();
        pods.iter().find(|pod| pod.name == name).unwrap().pod_ips[0].to_string()
    };
    assert_eq!(address("fixed").await, "10.244.1.77");
    assert_eq!(address("host").await, "172.18.0.11");
    assert!(lab.sh("host", "cat /proc/net/dev").0.contains("pods:"), "it sees the node's network");
    // The address of a pod that is gone is free for who asks for it.
    lab.delete("pods", &["fixed"]).await;
    lab.until_gone(&["fixed"]).await;
    fixed["metadata"]["name"] = json!("next");
    lab.apply_ready(vec![fixed]).await;
    assert_eq!(address("next").await, "10.244.1.77");
    lab.down().await;
}

async fn machines_that_cannot_start_say_why() {
    // This binary has no control plane in it, so that its process ends at once.
    let config = UpConfig { mesh: true, ..lab::config("refused", 1) };
    let start = Instant::now();
    let error = ambit_machine::up(&config, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("control ends again and again"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let layout = Layout::new(&config.state);
    assert_eq!(ambit_machine::liveness(&layout).unwrap(), Liveness::Absent);
    std::fs::remove_dir_all(layout.root()).unwrap();
    let elsewhere = |state: &str| UpConfig { state: state.into(), ..config.clone() };
    let proxies = [("node-2".to_owned(), "/bin/true".into())].into();
    for (wrong, part) in [
        (UpConfig { nodes: 0, ..config.clone() }, "1 to 200"),
        (elsewhere("relative"), "must be absolute"),
        (elsewhere(&format!("/tmp/{}", "x".repeat(60))), "at most"),
        (elsewhere("/etc"), "holds no machine"),
        (UpConfig { proxies, ..config.clone() }, "the nodes are node-1 to node-1"),
    ] {
        let error = ambit_machine::up(&wrong, |_| {}).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

async fn machines_end_without_trace() {
    let lab = Lab::up("trace", 2).await;
    lab.apply_ready(vec![deployment("web", 3, container(&["sleep", "infinity"]))]).await;
    let error = ambit_machine::up(&lab.config, |_| {}).await.unwrap_err();
    assert!(matches!(error, UpError::Running { .. }), "{error}");
    lab.client.kill("lab-node/node-1", 9).await.unwrap();
    // Process 1 is killed from outside: everything inside ends with it, and only files are left.
    lab::kill(lab.record().pid);
    lab.until("the machine is dead", async || {
        ambit_machine::liveness(lab.layout()).unwrap() == Liveness::Dead
    })
    .await;
    // The next one cleans up what is left.
    let config = lab.config.clone();
    let born = ambit_machine::up(&config, |_| {}).await.unwrap();
    assert_ne!(born.record.pid, lab.record_before.pid);
    assert_eq!(lab.record_before.cgroups.present(), Vec::<std::path::PathBuf>::new());
    let again = Lab::of(config, born.record);
    again.apply_ready(vec![pod("a", &["sleep", "infinity"])]).await;
    let layout = again.layout().clone();
    let inside = ambit_machine::processes(&again.record(), &[]).unwrap();
    assert!(inside.len() >= 5, "{inside:#?}");
    again.down().await;
    let left: Vec<_> =
        std::fs::read_dir(layout.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["logs"]);
    let gone = ambit_machine::down(&layout).await.unwrap_err().to_string();
    assert!(gone.contains("no machine at"), "{gone}");
    for process in inside {
        assert!(!lab::lives(process.host_pid), "{process:?}");
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(layout.root().to_str().unwrap()), "{mounts}");
    std::fs::remove_dir_all(layout.root()).unwrap();
}

async fn machines_run_without_root() {
    let (said, code) = lab::as_user_nobody("rootless-helper");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("a rootless machine ran a pod"), "{said}");
}

/// Runs as a user without privileges, in a process of its own.
async fn rootless() {
    let lab = Lab::up("rootless", 1).await;
    assert!(lab.record().rootless);
    lab.apply_ready(vec![pod("a", &["sleep", "infinity"])]).await;
    assert_eq!(lab.sh("a", "id -u; hostname").0, "0\na\n");
    let state = lab.layout().root().display().to_string();
    check_read_only(&lab, &state);
    let mut other = pod("b", &["true"]);
    other["spec"]["securityContext"] = json!({"runAsUser": 5});
    let refused = lab.client.apply(vec![other], false).await.unwrap_err().to_string();
    assert!(refused.contains("run `ambit up` as root"), "{refused}");
    images::images_run_without_root(&lab).await;
    lab.down().await;
    println!("a rootless machine ran a pod");
}
