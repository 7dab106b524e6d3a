//! Volumes: the same for a container with an image and for one that runs a command of the host.

use std::fs;

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
  containers:
  - name: real
    image: shop/web:1
    command: [bash, -c, 'sleep infinity & wait']
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
  - name: local
    image: busybox
    command: [sleep, infinity]
    volumeMounts: *mounts
";

/// What each container finds, line by line.
const LOOK: &str = "
for file in /conf-of-it/one /etc/one /secrets/deep/password /opt/e2e/projected/sub/two \
            /opt/e2e/projected/labels /host/file; do
    echo $(<$file)
done
for path in /conf-of-it/x /scratch-ro/x /host/x; do
    { echo a > $path; } 2>/dev/null && echo \"$path can be written\"
done
echo \"by $WHO\" > /scratch/$WHO
echo $(</scratch-ro/$WHO)
echo part > /part/$WHO
echo $(</scratch/a/b/$WHO)
{ echo host > /own/$WHO; } 2>/dev/null
{ printf '%2000000s' x > /scratch/large; } 2>/dev/null || echo full
: > /scratch/large
";

#[test]
fn containers_of_both_sorts_get_their_volumes() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let image = format!("shop/web=docker-archive:{}", archive(directory.path()).display());
    let host = directory.path().join("host");
    fs::create_dir_all(host.join("own")).expect("it can be made");
    fs::write(host.join("file"), "of the host\n").expect("it can be written");
    let pod = POD.replace("HOST", &host.display().to_string());
    let machine = Machine::none("volumes");
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
        let script = format!("WHO={container}\n{LOOK}");
        let expected = format!(
            "first\nfirst\ngeheim-e2e\nsecond\ncolor=\"red\"\nof the host\nby {container}\n\
             part\nfull\n"
        );
        let found = run(container, &script);
        assert_eq!(found, expected, "{container}");
        let is_made = host.join("own/new").join(container).exists();
        assert_eq!(is_made, container == "local", "the image's user is not root");
    }
    let shared = run("real", "echo $(</scratch/local)");
    assert_eq!(shared, "by local\n", "both have the same volume");
    let state = machine.layout.root().display();
    let found = machine.bash("app/vols", &format!("[[ -e {state} ]] || echo hidden"));
    assert_eq!(found, "hidden\n");

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
    }
    machine.down();
}

#[test]
fn volumes_that_cannot_be_say_why() {
    let machine = Machine::none("novolumes");
    let (start, _) = POD.split_once("---\n").expect("the namespace comes first");
    let said = machine.ambit_with(&["up", "-", "--detach", "--no-mesh"], start);
    assert!(said.status.success(), "ambit up: {}", said.err);
    let state = machine.layout.root().display().to_string();
    for (name, source, reason) in [
        (
            "run",
            "{path: /run/docker.sock}",
            "allow it with `ambit up --host-path /run/docker.sock`",
        ),
        ("own", &format!("{{path: {state}/control}}"), "is the machine's own"),
        ("none", "{path: /no-such-directory}", "/no-such-directory cannot be used"),
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
