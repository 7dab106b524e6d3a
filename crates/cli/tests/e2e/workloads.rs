//! What makes pods besides a Deployment: a StatefulSet with names of its own, a DaemonSet on each
//! node, Jobs that come to an end; and which nodes pods go to.

use std::collections::BTreeSet;
use std::time::Duration;

use ambit_machine::PodInfo;
use serde_json::Value;

use crate::machine::{Machine, Mesh};

/// How long pods may take to be what a change says.
const CHANGED: Duration = Duration::from_secs(60);

/// A database of three that answers with its own name, and an agent on each node.
const SETS: &str = "
apiVersion: v1
kind: Service
metadata: {name: db, namespace: app}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: tcp, port: 8080}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: app}
spec:
  serviceName: db
  replicas: 3
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db, release: RELEASE}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: main, image: ambit/sample:1, args: [echo, --listen, '[::]:8080']}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: app}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: ambit/sample:1
        command: [sh, -c, 'echo on duty; sleep infinity']
";

/// A Job of three parts, one that always fails, and one that vanishes when it is done.
const JOBS: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: parts, namespace: app}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: ambit/sample:1
        command: [sh, -c, 'echo part $JOB_COMPLETION_INDEX of $HOSTNAME']
---
apiVersion: batch/v1
kind: Job
metadata: {name: broken, namespace: app}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: ambit/sample:1, command: [sh, -c, 'echo no luck; exit 3']}
---
apiVersion: batch/v1
kind: Job
metadata: {name: brief, namespace: app}
spec:
  ttlSecondsAfterFinished: 1
  template:
    spec:
      restartPolicy: OnFailure
      containers:
      - {name: main, image: ambit/sample:1, command: ['true']}
";

/// A Job at each minute, and one that is suspended.
const CRON_JOBS: &str = "
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick, namespace: app}
spec:
  schedule: '* * * * *'
  timeZone: Etc/UTC
  jobTemplate:
    metadata: {labels: {made: by-the-clock}}
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - {name: main, image: ambit/sample:1, command: [sh, -c, 'echo it is time']}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: asleep, namespace: app}
spec:
  schedule: '* * * * *'
  suspend: true
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: main, image: ambit/sample:1, command: ['true']}]
";
/// A minute, and what it takes to start.
const NEXT_MINUTE: Duration = Duration::from_secs(75);

/// Two pods that keep apart, one that wants to be beside the second, and one that no node takes.
const PLACED: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: apart, namespace: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: apart}}
  template:
    metadata: {labels: {app: apart}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: apart}}
      containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
---
apiVersion: v1
kind: Pod
metadata: {name: beside, namespace: app}
spec:
  terminationGracePeriodSeconds: 0
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: NotIn, values: [node-1]}]
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {app: apart}}
  containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
---
apiVersion: v1
kind: Pod
metadata: {name: nowhere, namespace: app}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: Exists}]}]
  containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
";

#[test]
fn sets_and_jobs_run_as_on_kubernetes() {
    let machine = Machine::up("workloads", Mesh::On, &[]);
    machine.apply(&SETS.replace("RELEASE", "one"));
    // Its time comes while others are looked at.
    machine.apply(CRON_JOBS);
    rolled_out(&machine, "sts/db");
    rolled_out(&machine, "ds/agent");
    names_are_stable(&machine);
    one_pod_is_on_each_node(&machine);
    stateful_pods_change_one_by_one(&machine);
    jobs_end(&machine);
    what_cannot_be_is_refused(&machine);
    pods_are_placed_as_they_say(&machine);
    jobs_begin_when_it_is_time(&machine);
    machine.run(&["delete", "-n", "app", "sts/db", "ds/agent", "job/parts", "job/broken"]);
    machine.wait("all their pods are gone", CHANGED, || {
        let owners = ["db", "agent", "parts", "broken"];
        machine.pods().iter().all(|it| !owners.contains(&it.owner.as_str()))
    });
    machine.down();
}

fn run(machine: &Machine, words: &str) -> String {
    machine.run(&words.split(' ').collect::<Vec<_>>())
}

fn rolled_out(machine: &Machine, object: &str) {
    run(machine, &format!("rollout status {object} -n app --timeout 1m"));
}

fn object(machine: &Machine, object: &str) -> Value {
    let text = run(machine, &format!("get {object} -n app -o json"));
    serde_json::from_str(&text).expect("it prints JSON")
}

fn pods_of(machine: &Machine, kind: &str, name: &str) -> Vec<PodInfo> {
    let mut pods = machine.pods();
    pods.retain(|it| it.owner_kind == kind && it.owner == name && !it.terminating);
    pods
}

fn names_of(machine: &Machine, kind: &str, name: &str) -> Vec<String> {
    let mut names: Vec<String> =
        pods_of(machine, kind, name).into_iter().map(|it| it.name).collect();
    names.sort();
    names
}

fn names_are_stable(machine: &Machine) {
    assert_eq!(names_of(machine, "StatefulSet", "db"), ["db-0", "db-1", "db-2"]);
    for pod in pods_of(machine, "StatefulSet", "db") {
        let name = format!("{}.db.app.svc.cluster.local", pod.name);
        let words = ["exec", "-n", "app", "ds/agent", "--", "getent", "ahostsv4", &name];
        let address = pod.pod_ips[0].to_string();
        machine.wait("each has a name of its own", CHANGED, || {
            machine.ambit(&words).out.contains(&address)
        });
    }
    assert_eq!(run(machine, "exec -n app db-1 -- hostname"), "db-1\n");
    let before = pods_of(machine, "StatefulSet", "db");
    run(machine, "delete pod/db-1 -n app");
    machine.wait("another pod has its name", CHANGED, || {
        let now = pods_of(machine, "StatefulSet", "db");
        let is_back = now
            .iter()
            .any(|it| it.name == "db-1" && it.ready && before.iter().all(|old| old.uid != it.uid));
        is_back && now.len() == 3
    });
}

fn one_pod_is_on_each_node(machine: &Machine) {
    let mut nodes: Vec<String> =
        pods_of(machine, "DaemonSet", "agent").into_iter().map(|it| it.node).collect();
    nodes.sort();
    let all = run(machine, "get nodes -o name");
    let mut all: Vec<&str> = all.lines().filter_map(|it| it.strip_prefix("nodes/")).collect();
    all.sort_unstable();
    assert_eq!(nodes, all);
    assert_eq!(run(machine, "logs -n app daemonset/agent"), "on duty\n");
    let before = names_of(machine, "DaemonSet", "agent");
    run(machine, "rollout restart ds/agent -n app");
    rolled_out(machine, "ds/agent");
    let after = names_of(machine, "DaemonSet", "agent");
    assert!(after.iter().all(|it| !before.contains(it)), "{before:?} {after:?}");
}

fn stateful_pods_change_one_by_one(machine: &Machine) {
    run(machine, "scale sts/db --replicas 2 -n app");
    machine.wait("the highest is gone", CHANGED, || {
        names_of(machine, "StatefulSet", "db") == ["db-0", "db-1"]
    });
    let partition = "  updateStrategy: {rollingUpdate: {partition: 1}}\n  replicas: 2\n";
    let text = SETS.replace("RELEASE", "two").replace("  replicas: 3\n", partition);
    machine.apply(&text);
    rolled_out(machine, "sts/db");
    let columns = "custom-columns=NAME:.metadata.name,RELEASE:.metadata.labels.release";
    let listed = machine.run(&["get", "pods", "-n", "app", "-o", columns]);
    let release = |pod: &str| {
        let mut words = listed.lines().map(|it| it.split_whitespace().collect::<Vec<_>>());
        let line = words.find(|it| it.first() == Some(&pod)).expect("the pod is listed");
        line[1].to_owned()
    };
    assert_eq!(release("db-0"), "one", "it is below the partition");
    assert_eq!(release("db-1"), "two");
}

fn jobs_end(machine: &Machine) {
    machine.apply(JOBS);
    let condition = |name: &str, kind: &str| {
        let value = object(machine, &format!("job/{name}"));
        let conditions = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|it| it["type"] == kind)
    };
    machine.wait("a Job is complete", CHANGED, || condition("parts", "Complete").is_some());
    assert_eq!(object(machine, "job/parts")["status"]["completedIndexes"], "0-2");
    assert_eq!(object(machine, "job/parts")["status"]["succeeded"], 3);
    for pod in pods_of(machine, "Job", "parts") {
        let index = pod.name.split('-').nth(1).expect("its index");
        let said = run(machine, &format!("logs app/{}", pod.name));
        assert_eq!(said, format!("part {index} of parts-{index}\n"));
    }
    machine.wait("a Job has failed", CHANGED, || condition("broken", "Failed").is_some());
    let failed = condition("broken", "Failed").expect("it has failed");
    assert_eq!(failed["reason"], "BackoffLimitExceeded");
    assert_eq!(run(machine, "logs -n app job/broken"), "no luck\n");
    machine.wait("a Job that is done vanishes", CHANGED, || {
        !run(machine, "get jobs -n app -o name").contains("brief")
    });
}

fn jobs_begin_when_it_is_time(machine: &Machine) {
    let jobs = || {
        let list: Value =
            serde_json::from_str(&run(machine, "get jobs -n app -o json")).expect("JSON");
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let is_its = |it: &Value| it["metadata"]["labels"]["made"] == "by-the-clock";
        all.into_iter().filter(is_its).collect::<Vec<_>>()
    };
    machine.wait("a CronJob has noted that its Job ended well", NEXT_MINUTE, || {
        object(machine, "cronjob/tick")["status"]["lastSuccessfulTime"].is_string()
    });
    let made = jobs();
    let ended = made.iter().rev().find(|it| it["status"]["completionTime"].is_string());
    let made = ended.expect("a Job that has ended");
    let name = made["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("tick-"), "{name}");
    assert_eq!(made["metadata"]["ownerReferences"][0]["name"], "tick");
    assert_eq!(run(machine, &format!("logs -n app job/{name}")), "it is time\n");
    let asleep = &object(machine, "cj/asleep")["status"];
    assert_eq!((asleep.get("lastScheduleTime"), &asleep["active"]), (None, &Value::Array(vec![])));
    let wrong = CRON_JOBS.replace("'* * * * *'", "'every minute'");
    let said = machine.ambit_with(&["apply", "-f", "-"], &wrong);
    for word in ["app/tick", "spec.schedule", "five fields"] {
        assert!(said.err.contains(word), "{word:?} is missing in: {}", said.err);
    }
    machine.run(&["delete", "-n", "app", "cronjob/tick", "cronjob/asleep"]);
    assert_eq!(jobs().len(), 0, "they go with what made them");
}

fn what_cannot_be_is_refused(machine: &Machine) {
    let claims = "  volumeClaimTemplates: [{metadata: {name: data}}]\n  replicas: 3\n";
    let text = SETS.replace("RELEASE", "two").replace("  replicas: 3\n", claims);
    let said = machine.ambit_with(&["apply", "-f", "-"], &text);
    assert!(!said.status.success(), "{}", said.out);
    for word in ["StatefulSet app/db", "spec.volumeClaimTemplates[0].spec", "needs a spec", ":15:"]
    {
        assert!(said.err.contains(word), "{word:?} is missing in: {}", said.err);
    }
    let said = machine.ambit(&["scale", "ds/agent", "-n", "app", "--replicas", "1"]);
    assert!(said.err.contains("a DaemonSet has no replicas"), "{}", said.err);
}

fn pods_are_placed_as_they_say(machine: &Machine) {
    machine.apply(PLACED);
    rolled_out(machine, "deploy/apart");
    let nodes = pods_of(machine, "Deployment", "apart").into_iter().map(|it| it.node);
    let nodes: BTreeSet<String> = nodes.collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    let pods = machine.pods();
    let node = |name: &str| {
        let pod = pods.iter().find(|it| it.name == name).expect("the pod is there");
        (pod.node.clone(), pod.reason.clone())
    };
    let (beside, _) = node("beside");
    assert!(beside != "node-1" && nodes.contains(&beside), "{beside} {nodes:?}");
    let (nowhere, why) = node("nowhere");
    assert_eq!(nowhere, "");
    assert!(why.contains("2 node(s) didn't match Pod's node affinity/selector"), "{why}");
    let events = run(machine, "events -n app --for pod/nowhere");
    assert!(events.contains("FailedScheduling"), "{events}");
    machine.run(&["delete", "-n", "app", "deploy/apart", "pod/beside", "pod/nowhere"]);
}
