//! Real images: a container in its own root, which ends with it and cannot be left.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ambit_image::Digest;
use serde_json::json;

use crate::machine::{Machine, SETTLE_TIMEOUT, binary};

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

/// Pods that try more than they may: one that shows its own processes other users, one that runs
/// what is not there, and one whose first container leaves processes behind.
const PODS_THAT_TRY: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: app}
---
apiVersion: v1
kind: Pod
metadata: {name: users, namespace: app}
spec:
  initContainers:
  - name: first
    image: shop/web:1
    command: [bash, -c, 'exit 0']
  - name: beside
    image: shop/web:1
    restartPolicy: Always
    env: [{name: WHO, value: sidecar}]
  containers:
  - name: main
    image: shop/web:1
    env: [{name: _RJEM_MALLOC_CONF, value: 'nonsense:true'}]
    command:
    - bash
    - -c
    - echo 'web:x:0:0::/:/bin/bash' > /tmp/passwd; exec unshare -Urm
      bash -c 'mount --bind /tmp/passwd /conf/passwd && echo bound; exec sleep infinity'
---
apiVersion: v1
kind: Pod
metadata: {name: absent, namespace: app}
spec: {containers: [{name: main, image: shop/web:1, command: [ambit, --version]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: leaver, namespace: app}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: shop/web:1
    command:
    - bash
    - -c
    - setsid sleep 98765 & a=$!; unshare -Urm setsid sleep 98765 & b=$!;
      for p in $a $b; do
        until mapfile -d '' words < /proc/$p/cmdline && [[ $words = sleep ]]; do :; done;
      done; echo both
  - {name: watch, image: shop/web:1, securityContext: {runAsUser: 0}}
";

/// An archive as `docker save` writes it, of an image with bash and what its tests need.
/// Its `/etc` and `/etc/hosts`
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
         for file in $(type -P bash sleep setsid unshare mount); do
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
    // Where pods see what is beside the state directory.
    let machine = Machine::none_in("/var/lib", "images");
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
    // Root in the container, too.
    let strict = |script: &str| {
        let said = machine.ambit(&["exec", "app/real", "-c", "strict", "--", "bash", "-c", script]);
        said.out + &said.err
    };
    for secret in ["/proc/1/root/", "/proc/1/fd/0", "/proc/1/environ"] {
        assert!(strict(&format!("< {secret}")).contains("denied"), "{secret}");
    }
    let devices = "/dev/fd /dev/full /dev/null /dev/ptmx /dev/pts /dev/random /dev/shm \
                   /dev/stderr /dev/stdin /dev/stdout /dev/tty /dev/urandom /dev/zero\n";
    assert_eq!(main("echo /dev/*"), devices);
    let said = strict("echo $UID ${GROUPS[*]}; [[ -e /web/a ]] || > /web/b");
    assert!(said.starts_with("0 0\n") && said.contains("Read-only"), "{said}");
    let state = machine.layout.root().display().to_string();
    let seen = machine.bash("app/local", &format!("ls -A {state} && ls -d {state}"));
    assert_eq!(seen, format!("{state}\n"), "the store is not for pods");

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
fn a_container_gets_no_more_than_its_image_and_manifest_say() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let image = format!("shop/web=docker-archive:{}", archive(directory.path()).display());
    let machine = Machine::none("tries");
    let (start, pods) = PODS_THAT_TRY.split_once("---\n").expect("the namespace comes first");
    let said = machine.ambit_with(&["up", "-", "--detach", "--no-mesh"], start);
    assert!(said.status.success(), "ambit up: {}", said.err);
    let said = machine.ambit_with(&["apply", "-", "--image", &image], pods);
    assert!(said.status.success(), "ambit apply: {}", said.err);

    let log = |pod: &str, name: &str| machine.ambit(&["logs", pod, "-c", name]).out;
    let exec = |pod: &str, name: &str, script: &str| {
        let said = machine.ambit(&["exec", pod, "-c", name, "--", "bash", "-c", script]);
        said.out + &said.err
    };
    machine.wait("the container has its own list of users", SETTLE_TIMEOUT, || {
        log("app/users", "main").contains("bound")
    });
    // The command's user is the image's, and it sees the container's own tree.
    let users = "echo $UID; [[ $(</conf/passwd) = *:71:72:* ]] && echo as it was";
    assert_eq!(exec("app/users", "main", users), "71\nas it was\n");
    let said = exec("app/users", "main", "echo $_RJEM_MALLOC_CONF");
    assert_eq!(said, "nonsense:true\n", "the launcher has none of its variables");
    assert!(!log("app/users", "main").contains("jemalloc"), "{}", log("app/users", "main"));
    assert_eq!(exec("app/users", "beside", "echo $WHO"), "sidecar\n");
    let said = exec("app/users", "first", "echo");
    assert!(said.contains("the container does not run"), "{said}");

    machine.wait("the status says what is not there", SETTLE_TIMEOUT, || {
        machine.run(&["get", "pods"]).contains("cannot run ambit: No such file")
    });
    let absent = machine.pods().into_iter().find(|pod| pod.name == "absent").expect("it is there");
    assert!(!absent.ready && absent.containers[0].last_exit == Some(127), "{absent:?}");

    machine.wait("the container has ended", SETTLE_TIMEOUT, || {
        let pods = machine.pods();
        let leaver = pods.iter().find(|pod| pod.name == "leaver").expect("it is there");
        leaver.containers.iter().any(|it| it.name == "main" && it.last_exit == Some(0))
    });
    assert!(log("app/leaver", "main").contains("both"), "{}", log("app/leaver", "main"));
    let left = "for p in /proc/[0-9]*; do mapfile -d '' words < $p/cmdline; \
                [[ ${words[1]} = 98765 ]] && echo $p; done 2> /dev/null; echo looked";
    assert_eq!(exec("app/leaver", "watch", left), "looked\n");
    machine.down();
}

#[test]
fn a_command_typed_at_a_terminal_gets_one_of_its_own() {
    let machine = Machine::none("terminal");
    let (_, pod) = PODS.rsplit_once("---\n").expect("the pod comes last");
    let pod = pod.replace(", namespace: app", "");
    let said = machine.ambit_with(&["up", "-", "--detach", "--no-mesh"], &pod);
    assert!(said.status.success(), "ambit up: {}", said.err);
    // What `script` runs has a terminal.
    let typed = |line: &str, keys: &str| {
        let mut command = Command::new("script");
        command.args(["-qec", line, "/dev/null"]).env("AMBIT_STATE", machine.layout.root());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = command.spawn().expect("script runs");
        let mut input = running.stdin.take().expect("a pipe");
        input.write_all(keys.as_bytes()).expect("it reads");
        let said = running.wait_with_output().expect("script ends");
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let exec =
        |script: &str| format!("{} exec default/local -- bash -c '{script}'", binary().display());
    let look = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal; chmod 666 /proc/self/fd/1; \
                stty size; read -r word; echo got $word; sleep 100 & disown; exit 3";
    let line = format!("stty rows 33 cols 99; {}; echo ended $?", exec(look));
    let said = typed(&line, "typed\n");
    for expected in ["terminal\r\n", "Read-only", "33 99\r\n", "got typed\r\n", "ended 3\r\n"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // Its number in the container and the caller's.
    let number = "stat -Lc at-%T /proc/self/fd/0";
    let said = typed(&format!("{number}; {}", exec(number)), "");
    let numbers: Vec<&str> = said.lines().filter(|line| line.starts_with("at-")).collect();
    assert!(numbers.len() == 2 && numbers[0] != numbers[1], "{said}");
    // What is typed while the output goes elsewhere may be for who reads that.
    let echo = "read -r word; echo got $word";
    let line = format!("{} | {{ read -r word < /dev/tty; echo kept $word; cat; }}", exec(echo));
    let said = typed(&line, "typed\n");
    assert!(said.contains("kept typed\r\n") && said.contains("got\r\n"), "{said}");
    let said = typed(&format!("{} | cat", exec(echo).replace(" exec ", " exec -i ")), "typed\n");
    assert!(said.contains("got typed\r\n"), "{said}");
    // Neither is it there where only a part of the files is a terminal.
    for files in ["< /dev/null", "| cat", "> /dev/null"] {
        let look = "ls -l /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 >&2";
        let said = typed(&format!("{} {files}", exec(look)), "");
        assert!(said.contains("/proc/self/fd/2") && !said.contains("/dev/pts"), "{files}: {said}");
    }
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
