//! Volumes: the same for a container with an image and for one that runs a command of the host.

use std::fs;
use std::os::unix::fs::symlink;

use crate::images::archive;
use crate::machine::{Machine, SETTLE_TIMEOUT};

/// A pod that mounts one volume of each kind, in a container of each sort.
const POD: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: app}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: app}
data: {one: first, two: second}
---
apiVersion: v1
kind: Secret
metadata: {name: sec, namespace: app}
stringData: {password: geheim-e2e}
---
apiVersion: v1
kind: Pod
metadata: {name: vols, namespace: app, labels: {color: red}}
spec:
  securityContext: {fsGroup: 5000}
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: sec, secret: {secretName: sec, defaultMode: 0400}}
  - {name: empty, emptyDir: {sizeLimit: 1Mi}}
  - name: projected
    projected:
      sources:
      - {configMap: {name: conf, items: [{key: two, path: sub/two}]}}
      - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
      - {secret: {name: none, optional: true}}
  - {name: host, hostPath: {path: HOST}}
  - {name: own, hostPath: {path: HOST/own/new, type: DirectoryOrCreate}}
  - {name: untyped, hostPath: {path: HOST/own/untyped}}
  - {name: missing, hostPath: {path: HOST/missing}}
  containers:
  - name: real
    image: shop/web:1
    command: [bash, -c, 'sleep infinity & wait']
    resources: &resources {limits: {memory: 512Mi}}
    env: &env
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    volumeMounts: &mounts
    - {name: conf, mountPath: /conf-of-it}
    - {name: conf, mountPath: /etc/one, subPath: one}
    - {name: sec, mountPath: /secrets/deep}
    - {name: empty, mountPath: /scratch}
    - {name: empty, mountPath: /scratch-ro, readOnly: true}
    - {name: empty, mountPath: /part, subPath: a/b}
    - {name: projected, mountPath: /opt/e2e/projected}
    - {name: host, mountPath: /host}
    - {name: own, mountPath: /own}
    - {name: untyped, mountPath: /untyped}
    - {name: missing, mountPath: /missing}
    - {name: conf, mountPath: HOST/link/deep/conf}
    - {name: empty, mountPath: /conf-of-it/in/side}
    - {name: conf, mountPath: /etc/no-key, subPath: no-key}
  - name: local
    image: busybox
    command: [sleep, infinity]
    resources: *resources
    env: *env
    volumeMounts: *mounts
";

/// What each container finds, line by line.
const LOOK: &str = "
for file in /conf-of-it/one /etc/one /secrets/deep/password /opt/e2e/projected/sub/two \
            /opt/e2e/projected/labels /host/file HOST/link/deep/conf/one; do
    echo $(<$file)
done
for path in /conf-of-it/x /scratch-ro/x /host/x /missing/x /etc/no-key/x; do
    { echo a > $path; } 2>/dev/null && echo \"$path can be written\"
done
echo \"by $WHO\" > /scratch/$WHO
echo $(</scratch-ro/$WHO)
echo part > /part/$WHO
echo $(</scratch/a/b/$WHO)
echo $(</conf-of-it/in/side/$WHO) $LIMIT
[[ -d /etc/no-key ]] || echo no directory
{ exec 3<>/dev/ptmx; } && [[ -c /dev/pts/0 ]] && echo a terminal
{ echo host > /own/$WHO; } 2>/dev/null
{ printf '%2000000s' x > /scratch/large; } 2>/dev/null || echo full
: > /scratch/large
";

#[test]
fn containers_of_both_sorts_get_their_volumes() {
    // Not below /tmp, of which pods see nothing.
    let directory = tempfile::tempdir_in("/var/lib").expect("a directory can be made");
    let image = format!("shop/web=docker-archive:{}", archive(directory.path()).display());
    let host = directory.path().join("host");
    for name in ["own", "real"] {
        fs::create_dir_all(host.join(name)).expect("it can be made");
    }
    symlink("real", host.join("link")).expect("it can be made");
    fs::write(host.join("file"), "of the host\n").expect("it can be written");
    let with_host = |text: &str| text.replace("HOST", &host.display().to_string());
    let pod = with_host(POD);
    let machine = Machine::none_in("/var/lib", "volumes");
    let own = host.join("own").display().to_string();
    let words = ["up", "-", "--detach", "--no-mesh", "--image", &image, "--host-path", &own];
    let said = machine.ambit_with(&words, &pod);
    assert!(said.status.success(), "ambit up: {}", said.err);

    let run = |container: &str, script: &str| {
        let words = ["exec", "app/vols", "-c", container, "--", "bash", "-c", script];
        let said = machine.ambit(&words);
        format!("{}{}", said.out, said.err)
    };
    for container in ["real", "local"] {
        let script = format!("WHO={container}\n{}", with_host(LOOK));
        let expected = format!(
            "first\nfirst\ngeheim-e2e\nsecond\ncolor=\"red\"\nof the host\nfirst\n\
             by {container}\npart\nby {container} 512\na terminal\nfull\n"
        );
        let found = run(container, &script);
        assert_eq!(found, expected, "{container}");
        let is_made = host.join("own/new").join(container).exists();
        assert_eq!(is_made, container == "local", "the image's user is not root");
    }
    assert!(host.join("own/untyped").is_dir(), "what has no type is made where pods may write");
    assert!(!host.join("missing").exists(), "nothing is made elsewhere");
    let shared = run("real", "echo $(</scratch/local)");
    assert_eq!(shared, "by local\n", "both have the same volume");
    let state = machine.layout.root().display();
    let found = run("local", &format!("ls -A {state} && stat -f -c %c /scratch"));
    assert_eq!(found, "1024\n", "nothing of the state is seen, and files are bounded too");

    machine.apply(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: conf, namespace: app}, data: \
         {one: changed, two: second, three: third}}",
    );
    for container in ["real", "local"] {
        machine.wait("a changed ConfigMap is seen", SETTLE_TIMEOUT, || {
            run(container, "echo $(</conf-of-it/one) $(</conf-of-it/three)") == "changed third\n"
        });
        let part = run(container, "echo $(</etc/one)");
        assert_eq!(part, "first\n", "as in Kubernetes, a subPath stays");
        let inside = run(container, "echo $(</conf-of-it/in/side/local)");
        assert_eq!(inside, "by local\n", "so does what is mounted inside");
    }
    machine.down();
}

/// A set of two whose claims go with it and with its pods, and a pod that brings a claim along.
const CLAIMING: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: app}
spec:
  replicas: 2
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: busybox, command: [sleep, infinity]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";
const BRINGING: &str = "
apiVersion: v1
kind: Pod
metadata: {name: own, namespace: app}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - name: scratch
    ephemeral:
      volumeClaimTemplate:
        metadata: {labels: {for: scratch}}
        spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  containers:
  - name: c
    image: busybox
    command: [sleep, infinity]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
";

#[test]
fn claims_go_with_whom_they_belong_to() {
    let machine = Machine::none("claims");
    let (start, _) = POD.split_once("---\n").expect("the namespace comes first");
    let input = format!("{start}---{CLAIMING}---{BRINGING}");
    let said = machine.ambit_with(&["up", "-", "--detach", "--no-mesh"], &input);
    assert!(said.status.success() && !said.err.contains("warning"), "ambit up: {}", said.err);
    let claims = || {
        let text = machine.run(&["get", "pvc", "-n", "app", "-o", "name"]);
        text.lines().map(|it| it.rsplit('/').next().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(claims(), ["data-db-0", "data-db-1", "own-scratch"]);
    let found = machine.bash("app/own", "echo text > /scratch/file; echo $(</scratch/file)");
    assert_eq!(found, "text\n");
    let full = "{ printf '%2000000s' x > /scratch/large; } 2>/dev/null || echo full";
    assert_eq!(machine.bash("app/own", full), "full\n", "it has the size that is claimed");

    machine.run(&["scale", "-n", "app", "sts/db", "--replicas", "1"]);
    machine.wait("the claim goes with its pod", SETTLE_TIMEOUT, || {
        claims() == ["data-db-0", "own-scratch"]
    });
    machine.run(&["delete", "-n", "app", "pod/db-0"]);
    machine.wait("a pod that is replaced keeps its claim", SETTLE_TIMEOUT, || {
        machine.pods().iter().any(|it| it.name == "db-0" && it.ready && !it.terminating)
    });
    assert_eq!(claims(), ["data-db-0", "own-scratch"]);
    machine.run(&["delete", "-n", "app", "sts/db", "pod/own"]);
    machine.wait("the others go too", SETTLE_TIMEOUT, || claims().is_empty());

    let claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: own-scratch, \
                 namespace: app}, spec: {accessModes: [ReadWriteOnce], resources: {requests: \
                 {storage: 1Mi}}}}";
    machine.apply(claim);
    let said = machine.apply(BRINGING);
    let expected = "Pod app/own will not run: PersistentVolumeClaim app/own-scratch was not \
                    created for this pod (pod is not owner)";
    assert!(said.contains(expected), "{said}");
    machine.run(&["delete", "-n", "app", "pvc/own-scratch"]);
    machine.wait("it runs with a claim of its own", SETTLE_TIMEOUT, || {
        machine.pods().iter().any(|it| it.name == "own" && it.ready)
    });
    assert_eq!(machine.bash("app/own", "ls /scratch"), "");
    machine.down();
}

#[test]
fn a_change_that_cannot_be_made_is_told_and_stops_no_other() {
    let machine = Machine::none("lateconf");
    let map = |data: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: conf, namespace: app}}, data: \
             {{{data}}}}}"
        )
    };
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: vols, namespace: app}, spec: \
               {volumes: [{name: v, configMap: {name: conf}}], containers: [{name: c, image: \
               busybox, command: [sleep, infinity], volumeMounts: [{name: v, mountPath: /v}]}]}}";
    let (start, _) = POD.split_once("---\n").expect("the namespace comes first");
    let input = format!("{start}---\n{}\n---\n{pod}", map("one: first"));
    let said = machine.ambit_with(&["up", "-", "--detach", "--no-mesh"], &input);
    assert!(said.status.success(), "ambit up: {}", said.err);
    let shown = || machine.bash("app/vols", "echo $(</v/one)");
    let reason = || machine.run(&["get", "pods", "-o", "json"]);
    assert_eq!(shown(), "first\n");
    // More files than a volume can have.
    let many: String = (0..20_000).map(|number| format!("k{number}: \"\", ")).collect();
    machine.apply(&map(&format!("{many}one: second")));
    machine.wait("the pod says why its files stay", SETTLE_TIMEOUT, || {
        let why = "which stay as they were: No space left on device";
        reason().contains(&format!("volume \\\"v\\\": cannot update its files, {why}"))
    });
    assert_eq!(shown(), "first\n");
    machine.apply(&map("one: third"));
    machine.wait("the next change is seen", SETTLE_TIMEOUT, || shown() == "third\n");
    machine.wait("all is well", SETTLE_TIMEOUT, || !reason().contains("cannot update"));
    machine.down();
}

#[test]
fn directories_that_pods_may_write_do_not_lie_in_one_another() {
    let machine = Machine::none("nested");
    let (start, _) = POD.split_once("---\n").expect("the namespace comes first");
    let words = ["up", "-", "--no-mesh", "--host-path", "/var/lib", "--host-path", "/var"];
    let said = machine.ambit_with(&words, start);
    let expected = "--host-path /var/lib and /var: one lies in the other; name the outer one alone";
    assert!(!said.status.success() && said.err.contains(expected), "{}", said.err);
    assert!(!machine.layout.root().exists(), "nothing was started");
}

#[test]
fn volumes_that_cannot_be_say_why() {
    let machine = Machine::none_in("/srv", "novolumes");
    let (start, _) = POD.split_once("---\n").expect("the namespace comes first");
    let said = machine.ambit_with(&["up", "-", "--detach", "--no-mesh"], start);
    assert!(said.status.success(), "ambit up: {}", said.err);
    let state = machine.layout.root().display().to_string();
    for (name, source, reason) in [
        ("run", "{path: /run/docker.sock}", "pods see nothing of /run/docker.sock"),
        ("own", &format!("{{path: {state}/control}}"), "is the machine's own"),
        ("none", "{path: /no-such-directory, type: Directory}", "cannot open /no-such-directory"),
    ] {
        machine.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: app}}, spec: \
             {{volumes: [{{name: v, hostPath: {source}}}], containers: [{{name: c, image: busybox, \
             command: [sleep, infinity], volumeMounts: [{{name: v, mountPath: /v}}]}}]}}}}"
        ));
        machine.wait(&format!("pod {name} says {reason}"), SETTLE_TIMEOUT, || {
            machine.run(&["get", "pods", "-o", "json"]).contains(reason)
        });
    }
    machine.down();
}
