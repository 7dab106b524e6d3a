//! Real images: a container in its own root, which ends with it and cannot be left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ambit_image::Digest;
use serde_json::json;

use crate::machine::{Machine, SETTLE_TIMEOUT};

/// A pod of the image, as its manifest says, and one of the host's programs beside it.
const PODS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: app}
---
apiVersion: v1
kind: Pod
metadata: {name: real, namespace: app}
spec:
  containers:
  - name: main
    image: shop/web:1
    env: [{name: WHO, value: manifest}]
    readinessProbe: {exec: {command: [bash, -c, '[[ -e /web/started ]]']}, periodSeconds: 1}
  - name: strict
    image: shop/web:1
    command: [bash, -c, 'sleep infinity & wait']
    securityContext: {readOnlyRootFilesystem: true, runAsUser: 0}
---
apiVersion: v1
kind: Pod
metadata: {name: local, namespace: app}
spec:
  containers: [{name: main, image: busybox, command: [sleep, infinity]}]
";

/// An archive as `docker save` writes it, of an image with bash alone. Its `/etc` and `/etc/hosts`
/// are links out of the image.
pub(crate) fn archive(directory: &Path) -> PathBuf {
    let (root, parts) = (directory.join("root"), directory.join("parts"));
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-euc", script]).env("ROOT", &root).env("PARTS", &parts);
        let said = command.output().expect("bash runs");
        assert!(said.status.success(), "{script}: {}", String::from_utf8_lossy(&said.stderr));
    };
    shell(
        "mkdir -p $ROOT/{web,conf,bin,tmp} $PARTS
         chmod 1777 $ROOT/tmp
         for file in $(type -P bash) $(type -P sleep); do
             cp -L $file $ROOT/bin/
             for library in $(ldd $file | grep -o '/[^ ]*' || true); do
                 mkdir -p $ROOT$(dirname $library); cp -L $library $ROOT$library
             done
         done
         ln -s ../../../conf $ROOT/etc
         ln -s ../../../../../tmp/hosts $ROOT/conf/hosts
         echo 'web:x:71:72::/web:/bin/bash' > $ROOT/conf/passwd
         tar --owner=71 --group=72 -C $ROOT -cf $PARTS/layer.tar .",
    );
    let layer = fs::read(parts.join("layer.tar")).expect("tar wrote it");
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "os": "linux",
        "architecture": architecture,
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer)]},
        "config": {
            "Entrypoint": ["bash", "-c"],
            "Cmd": ["trap 'echo quit >&2; exit' QUIT; : > started; echo up; sleep infinity & wait"],
            "Env": ["WHO=image", "MORE=image"],
            "User": "web",
            "WorkingDir": "/web",
            "StopSignal": "SIGQUIT",
        },
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": ["web:1"], "Layers": ["layer.tar"]}]);
    fs::write(parts.join("config.json"), config.to_string()).expect("it can be written");
    fs::write(parts.join("manifest.json"), manifest.to_string()).expect("it can be written");
    shell("tar -C $PARTS -cf $PARTS/../web.tar manifest.json config.json layer.tar");
    directory.join("web.tar")
}

#[test]
fn a_container_with_an_image_lives_in_its_own_root() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let image = format!("shop/web=docker-archive:{}", archive(directory.path()).display());
    let machine = Machine::none("images");
    let words = ["up", "-", "--detach", "--no-mesh", "--image", &image];
    let said = machine.ambit_with(&words, PODS);
    assert!(said.status.success(), "ambit up: {}", said.err);

    let main = |script: &str| machine.bash("app/real", script);
    assert_eq!(main("echo $UID $HOME $PWD $WHO $MORE"), "71 /web /web manifest image\n");
    assert_eq!(
        main("echo $(</etc/hostname); [[ -e /tmp/hosts ]] && echo within"),
        "real\nwithin\n"
    );
    assert_eq!(main("echo a > /web/a && echo $(</web/a)"), "a\n");
    assert!(main("echo a > /conf/resolv.conf").contains("Read-only"), "what is shown stays");
    for secret in ["/proc/1/root/", "/proc/1/fd/0", "/proc/1/environ"] {
        assert!(main(&format!("< {secret}")).contains("denied"), "{secret}");
    }
    assert_eq!(main("echo /dev/*").split(' ').filter(|it| it.ends_with("vda")).count(), 0);
    let strict = ["exec", "app/real", "-c", "strict", "--", "bash", "-c"];
    let said = machine.ambit(&[&strict[..], &["echo $UID; [[ -e /web/a ]] || > /web/b"]].concat());
    assert!(said.out == "0\n" && said.err.contains("Read-only"), "{}{}", said.out, said.err);
    let state = machine.layout.root().display().to_string();
    let seen = machine.bash("app/local", &format!("ls -A {state}"));
    assert!(seen.contains("No such file"), "the store is not for pods: {seen}");

    // A container that starts again has its image anew.
    main("kill -QUIT -- -1");
    machine.wait("it runs again, without what it wrote", SETTLE_TIMEOUT, || {
        main("[[ -e /web/a ]] || echo anew") == "anew\n"
    });
    let log = machine.run(&["logs", "app/real", "-c", "main"]);
    assert!(log.matches("up\n").count() >= 2 && log.contains("quit"), "{log}");
    machine.down();
}

#[test]
fn a_container_that_cannot_start_says_why() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let image = format!("shop/web=docker-archive:{}", archive(directory.path()).display());
    let machine = Machine::none("noroot");
    let (start, _) = PODS.split_once("---\n").expect("the namespace comes first");
    let said = machine.ambit_with(&["up", "-", "--detach", "--no-mesh"], start);
    assert!(said.status.success(), "ambit up: {}", said.err);
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: app}, spec: \
               {containers: [{name: c, image: shop/web, workingDir: /bin/bash}]}}";
    let said = machine.ambit_with(&["apply", "-", "--image", &image], pod);
    assert!(said.status.success(), "ambit apply: {}", said.err);
    machine.wait("the pod's status has the reason", SETTLE_TIMEOUT, || {
        machine.run(&["get", "pods"]).contains("workingDir /bin/bash cannot be entered")
    });
    machine.down();
}
