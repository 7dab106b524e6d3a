//! Wrong inputs: each gets one clear error that names the place and the remedy, and changes
//! nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, app};

/// What a command exits with when it was understood and could not be done.
const FAILED: i32 = 1;
/// What a command exits with when its words make no sense.
const USAGE: i32 = 2;

/// A wrong manifest (fields after `apiVersion` and `kind`) and the one error that it gets.
struct Manifest {
    of: &'static str,
    text: &'static str,
    error: &'static str,
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\n";
const POD: &str = "apiVersion: v1\nkind: Pod\n";
const ACCOUNT: &str = "apiVersion: v1\nkind: ServiceAccount\n";
const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\n";
const POLICY: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n";
const PEER: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n";

const MANIFESTS: &[Manifest] = &[
    Manifest {
        of: "",
        text: "kind: [Service\n",
        error: "<stdin>:1: not YAML: unclosed bracket '[' at line 1, column 7; correct the syntax \
                at this place",
    },
    Manifest {
        of: "",
        text: "a: b\n",
        error: "<stdin>:1: object: apiVersion: not a Kubernetes object: the field is missing or no \
                text; start the document with `apiVersion:` and `kind:`",
    },
    Manifest {
        of: "",
        text: "apiVersion: v2\nkind: Service\nmetadata: {name: a, namespace: app}\n",
        error: "<stdin>:1: Service app/a: apiVersion: Service has no version `v2`; use v1",
    },
    Manifest {
        of: SERVICE,
        text: "metadata: {name: a, namespace: app}\nspec: {ports: [{port: 80}], selektor: {}}\n",
        error: "<stdin>:4: Service app/a: spec.selektor: the field `selektor` does not exist here; \
                remove it, or correct its spelling, case and indentation",
    },
    Manifest {
        of: ACCOUNT,
        text: "metadata: {name: \"\\e[31ma\\nerror: b\", namespace: app}\n",
        error: "<stdin>:3: ServiceAccount app/\\u{1b}[31ma\\u{a}error: b: metadata.name: \
                `\\u{1b}[31ma\\u{a}error: b` must consist of lower case letters, digits, `-` and \
                `.`, and start and end with a letter or digit (RFC 1123 subdomain); correct it",
    },
    Manifest {
        of: SERVICE,
        text: "metadata: {name: a, namespace: app}\nspec: {ports: [{port: 70000}]}\n",
        error: "<stdin>:4: Service app/a: spec.ports[0].port: 70000 is not between 1 and 65535; \
                write a port number in that range",
    },
    Manifest {
        of: SERVICE,
        text: "metadata: {name: a, namespace: app}\nspec: {ports: [{port: eighty}]}\n",
        error: "<stdin>:4: Service app/a: spec.ports[0].port: is the text \"eighty\", and \
                must be a whole number; write the value without quotes and in the expected type",
    },
    Manifest {
        of: SERVICE,
        text: "metadata: {name: a, namespace: app}\nspec: {ports: [{port: {{ .Values.port }}}]}\n",
        error: "<stdin>:4: not YAML: a list or a map is where the name of a field must be; put a \
                value with braces in quotes, and render a template such as {{ .Values.port }} \
                before; correct the syntax at this place",
    },
    Manifest {
        of: SERVICE,
        text: "metadata: {name: a, namespace: app}\n\
               spec: {type: ExternalName, externalName: example.com}\n",
        error: "<stdin>:4: Service app/a: spec.type: an ExternalName is a DNS alias: its traffic \
                has no Service address that the mesh could carry; use a ServiceEntry with \
                `resolution: DNS`, or let clients use the name itself",
    },
    Manifest {
        of: ACCOUNT,
        text: "metadata: {namespace: app}\n",
        error: "<stdin>:3: ServiceAccount: metadata.name: the object has no name; add \
                metadata.name",
    },
    Manifest {
        of: ACCOUNT,
        text: "metadata: {name: a, namespace: app}\n---\n\
               apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: app}\n",
        error: "<stdin>:5: ServiceAccount app/a: the same object is at <stdin>:1; remove one of \
                the two, or rename it",
    },
    Manifest {
        of: NAMESPACE,
        text: "metadata: {name: app, labels: {istio.io/dataplane-mode: \"yes\"}}\n",
        error: "<stdin>:3: Namespace app: metadata.labels.istio.io/dataplane-mode: the mode `yes` \
                does not exist; use `ambient` or `none`",
    },
    Manifest {
        of: POLICY,
        text: "metadata: {name: a, namespace: app}\nspec: {action: PERMIT, rules: [{}]}\n",
        error: "<stdin>:4: AuthorizationPolicy app/a: spec.action: is `PERMIT`, and must be \
                one of `ALLOW`, `DENY`, `AUDIT`, `CUSTOM`; use one of the listed values",
    },
    Manifest {
        of: POLICY,
        text: "metadata: {name: a, namespace: app}\n\
               spec: {rules: [{from: [{source: {ipBlocks: [10.0.0/8]}}]}]}\n",
        error: "<stdin>:4: AuthorizationPolicy app/a: spec.rules[0].from[0].source.ipBlocks[0]: \
                `10.0.0/8` is neither an IP address nor a CIDR block; write it as in `10.0.0.1`, \
                `10.0.0.0/8` or `fd00::/8`",
    },
    Manifest {
        of: PEER,
        text: "metadata: {name: a, namespace: app}\nspec: {mtls: {mode: STRIKT}}\n",
        error: "<stdin>:4: PeerAuthentication app/a: spec.mtls.mode: is `STRIKT`, and must be \
                one of `UNSET`, `DISABLE`, `PERMISSIVE`, `STRICT`; use one of the listed \
                values",
    },
    Manifest {
        of: PEER,
        text: "metadata: {name: a, namespace: app}\n\
               spec: {portLevelMtls: {8080: {mode: STRICT}}}\n",
        error: "<stdin>:4: PeerAuthentication app/a: spec.portLevelMtls: ports can only be told \
                apart for selected workloads; add a selector with matchLabels",
    },
    Manifest {
        of: POD,
        text: "metadata: {name: a, namespace: app}\nspec: {containers: []}\n",
        error: "<stdin>:4: Pod app/a: spec.containers: a pod needs a container; list at least one",
    },
    Manifest {
        of: POD,
        text: "metadata: {name: a, namespace: nowhere}\n\
               spec: {containers: [{name: c, image: busybox, command: [sleep]}]}\n",
        error: "<stdin>:3: Pod nowhere/a: metadata.namespace: the namespace `nowhere` does not \
                exist; add a Namespace called `nowhere` to the input",
    },
    Manifest {
        of: POD,
        text: "metadata: {name: a, namespace: app}\nspec: {serviceAccountName: ghost, \
               containers: [{name: c, image: busybox, command: [sleep]}]}\n",
        error: "<stdin>:4: Pod app/a: spec.serviceAccountName: the service account `ghost` does \
                not exist in namespace `app`; add a ServiceAccount called `ghost`, or \
                correct the name",
    },
    Manifest {
        of: POD,
        text: "metadata: {name: a, namespace: app}\n\
               spec: {containers: [{name: c, image: postgres}]}\n",
        error: "<stdin>:4: Pod app/a: spec.containers[0].image: \"postgres\" means nothing on this \
                machine; import it with --image postgres= and one of oci:PATH, \
                docker-archive:FILE, docker-daemon:postgres, containerd:postgres and \
                registry:postgres; or run a program of this computer, by a `command` or with \
                --image postgres=COMMAND; images that need none of it are busybox, alpine, \
                curlimages/curl and those of the samples (`ambit sample --help`)",
    },
];

/// Manifests that only the running machine can refuse.
const REFUSED: &[Manifest] = &[
    Manifest {
        of: POD,
        text: "metadata: {name: load, namespace: client, labels: {app: load}}\nspec: {nodeName: \
               node-2, serviceAccountName: load, containers: [{name: load, image: \
               \"ambit/sample:1\", args: [sleep]}]}\n",
        error: "Pod client/load: spec of a Pod cannot change on a live object; delete it first, \
                then apply again",
    },
    Manifest {
        of: SERVICE,
        text: "metadata: {name: a, namespace: app}\n\
               spec: {clusterIP: 192.0.2.1, ports: [{port: 80}]}\n",
        error: "Service app/a: address 192.0.2.1 is not in 10.96.0.0/16 or fd00:10:96::/112; leave \
                spec.clusterIP out to be given one",
    },
];

/// Runs a command that must fail like this.
fn check(machine: &Machine, words: &[&str], input: &str, code: i32, error: &str) {
    let said = machine.ambit_with(words, input);
    let call = format!("ambit {}", words.join(" "));
    assert_eq!(said.status.code(), Some(code), "{call}: {}{}", said.out, said.err);
    assert!(said.err.contains(error), "{call}:\n{}\nwhere this was expected:\n{error}", said.err);
    assert!(!said.err.contains("panicked"), "{call}: {}", said.err);
}

#[test]
fn wrong_words_are_refused_before_anything_starts() {
    let machine = Machine::none("words");
    let app = app(Mesh::Off);
    let missing = "/tmp/ambit-e2e-no-such-file.yaml";
    let long = "/tmp/a-state-directory-whose-name-is-much-too-long-for-a-socket";
    let up = |more: &[&'static str]| [&["up", "-", "--detach"], more].concat();
    let error =
        "required arguments were not provided:\n  <PATH|--filename <PATH>|--kustomize <DIR>>";
    check(&machine, &["up"], "", USAGE, error);
    check(&machine, &["fly"], "", USAGE, "unrecognized subcommand 'fly'");
    check(&machine, &up(&["--nodes", "0"]), &app, USAGE, "0 is not in 1..=200");
    let error = format!("error: {missing}: cannot be read: No such file or directory");
    check(&machine, &["up", missing], "", FAILED, &error);
    let error = "a proxy is given for \"node-9\", but the nodes are node-1 to node-2";
    check(&machine, &up(&["--proxy", "node-9=/bin/true"]), &app, FAILED, error);
    let error = "--proxy \"nonsense\": write it as NODE=PATH";
    check(&machine, &up(&["--proxy", "nonsense"]), &app, FAILED, error);
    let error = "--proxy node-1=/no-such: find the program /no-such: No such file";
    check(&machine, &up(&["--proxy", "node-1=/no-such"]), &app, FAILED, error);
    let error = "--proxy node-1=/usr: find the program /usr: it is not a file";
    check(&machine, &up(&["--proxy", "node-1=/usr"]), &app, FAILED, error);
    check(&machine, &up(&[]), "", FAILED, "the input holds no objects that Ambit reads");
    let error = "--image \"foo\" is neither NAME=COMMAND nor NAME= with one of oci:PATH, \
                 oci-archive:FILE, docker-archive:FILE, docker-daemon:REFERENCE, \
                 containerd:REFERENCE and registry:REFERENCE";
    check(&machine, &up(&["--image", "foo"]), &app, FAILED, error);
    let error = "--image \"foo=oci:\" cannot be used: \"oci:\" does not say where an image is";
    check(&machine, &up(&["--image", "foo=oci:"]), &app, FAILED, error);
    let error = "--image foo: nothing was imported: cannot load oci:/no-such: cannot open /no-such";
    check(&machine, &up(&["--image", "foo=oci:/no-such"]), &app, FAILED, error);
    let error = "has a quote that is not closed";
    check(&machine, &up(&["--image", "a='x"]), &app, FAILED, error);
    let error = format!("the state directory {long} must be absolute and at most 43 bytes long");
    check(&machine, &up(&["--state", long]), &app, FAILED, &error);
    let error = "/usr is not empty and holds no machine; choose another directory with --state";
    check(&machine, &up(&["--state", "/usr"]), &app, FAILED, error);
    for words in [&["down"][..], &["status"], &["apply", "-"], &["get", "pods"]] {
        check(&machine, words, &app, FAILED, "no machine");
    }
    let error = "--registry nonsense: unknown source; write kubernetes";
    check(&machine, &["control", "--registry", "nonsense"], "", FAILED, error);
    let node = ["node", "--node-name", "x", "--registry", "nonsense"];
    check(&machine, &node, "", FAILED, error);
    check(&machine, &["proxy", "--nonsense"], "", USAGE, "unexpected argument '--nonsense' found");
    assert!(!machine.layout.record().exists(), "no machine was started");
}

/// A role that ends at once, here for a flag that it does not know, is not waited for.
#[test]
fn a_wrong_flag_for_a_role_ends_up_soon() {
    let machine = Machine::none("flag");
    let words = ["up", "-", "--detach", "--control-flag=--nonsense"];
    let start = Instant::now();
    check(&machine, &words, &app(Mesh::Off), FAILED, "control ends again and again (exit 2)");
    assert!(start.elapsed() < SETTLE_TIMEOUT, "it took {:?}", start.elapsed());
    assert!(machine.log("control", None).contains("unexpected argument '--nonsense' found"));
    let said = machine.ambit(&["status"]);
    assert!(said.err.contains("no machine"), "{}", said.err);
}

#[test]
fn wrong_inputs_change_nothing_of_a_running_machine() {
    let machine = Machine::up("inputs", Mesh::Off, &[]);
    let before = files(&machine.layout.objects());
    assert!(!before.is_empty());
    for Manifest { of, text, error } in MANIFESTS {
        let errors =
            format!("error: {error}\nambit: 1 error in the manifests; nothing was applied\n");
        check(&machine, &["apply", "-"], &format!("{of}{text}"), FAILED, &errors);
        assert_eq!(files(&machine.layout.objects()), before, "{text} changed something");
    }
    for Manifest { of, text, error } in REFUSED {
        let error = format!("ambit: {error}\n");
        check(&machine, &["apply", "-"], &format!("{of}{text}"), FAILED, &error);
        assert_eq!(files(&machine.layout.objects()), before, "{text} changed something");
    }
    let ghost = format!("{ACCOUNT}metadata: {{name: ghost, namespace: app}}\n");
    let error = "ServiceAccount app/ghost does not exist";
    check(&machine, &["delete", "-"], &ghost, FAILED, error);
    assert_eq!(files(&machine.layout.objects()), before, "a failed delete changed something");
    questions(&machine);
    machine.down();
}

/// Questions about what is not there.
fn questions(machine: &Machine) {
    let fails = |words: &[&str], error: &str| check(machine, words, "", FAILED, error);
    check(machine, &["get", "ingresses"], "", USAGE, "invalid value 'ingresses' for '<KIND>'");
    check(machine, &["get", "pods", "-o", "xml"], "", USAGE, "there are table, wide");
    fails(&["exec", "load", "--", "true"], "\"load\": name the pod as NAMESPACE/POD");
    fails(&["exec", "client/nosuch", "--", "true"], "there is no pod client/nosuch");
    fails(&["exec", "client/load", "-c", "side", "--", "true"], "no container \"side\"");
    let words = ["exec", "client/load", "--", "nosuchcommand"];
    check(machine, &words, "", 127, "cannot run nosuchcommand: No such file or directory");
    fails(&["logs", "x"], "\"x\": write NS/POD, proxy/NODE, node/NODE or control");
    fails(&["logs", "client/nosuch"], "no pod client/nosuch");
    fails(&["logs", "proxy/node-9"], "proxy/node-9 has no log");
    fails(&["logs", "client/load", "-c", "side"], "client/load has no log");
    fails(&["why", "client/nosuch", "app/web"], "there is no running pod client/nosuch");
    let error = "there is no service, pod or workload app/nosuch";
    fails(&["why", "client/load", "app/nosuch:80"], error);
    let error = "there is no service, pod or workload app/sevrer; did you mean app/server?";
    fails(&["why", "client/load", "app/sevrer:8080", "--exit-code"], error);
    let error = "app/server has the ports [8080, 9000, 9001]; say which, as in app/server:8080";
    fails(&["why", "client/load", "app/server"], error);
    fails(&["why", "client/load", "nonsense"], "no service is called \"nonsense\"");
    fails(&["why", "client/load", "10.0.0.1"], "say which port of 10.0.0.1");
    fails(&["why", "client/load", "::1"], "say which port of ::1, as in [::1]:8080");
    let socket = machine.layout.control_socket();
    for (body, error) in [
        ("{\"pod\": \"client/nosuch\"}", "there is no pod client/nosuch"),
        ("{}", "exactly one thing can be revoked at a time"),
        ("{\"serial\": \"xyz\"}", "serial"),
    ] {
        let (status, answer) = machine.post(&socket, http::Method::POST, "/ca/revoke", body);
        assert!(status == 400 && answer.contains(error), "{body}: {status} {answer}");
    }
}

/// Every file below a directory, with what it holds.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("the file can be read"));
        }
    }
    found
}
