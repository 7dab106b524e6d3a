//! What users get for what they write, right and wrong. Most of it is data: `cases.txt`.

use super::*;

fn input(text: &str) -> [Input; 1] {
    [Input::Text { name: "t.yaml".to_owned(), text: text.to_owned() }]
}

/// One case of `cases.txt`.
struct Case<'a> {
    title: &'a str,
    text: &'a str,
    beside: Option<&'a str>,
    is_accepted: bool,
    findings: Vec<&'a str>,
}

impl<'a> Case<'a> {
    fn parse(case: &'a str) -> Self {
        let (title, rest) = case.split_once('\n').expect("a title and a body");
        let mut sections = rest.split("=== ");
        let text = sections.next().expect("manifests");
        let (mut beside, mut outcome) = (None, None);
        for section in sections {
            let (name, body) = section.split_once('\n').unwrap_or((section, ""));
            match name {
                "beside" => beside = Some(body),
                "accepted" | "refused" => outcome = Some((name == "accepted", body)),
                _ => panic!("{title}: unknown section {name}"),
            }
        }
        let (is_accepted, findings) = outcome.unwrap_or_else(|| panic!("{title}: no outcome"));
        let findings = findings.lines().filter(|line| !line.is_empty()).collect();
        Self { title, text, beside, is_accepted, findings }
    }

    fn check(&self) {
        let loaded = load(&input(self.text));
        let outcome = match (loaded, self.beside) {
            (Ok(loaded), Some(beside)) => {
                let beside = existing(beside);
                loaded
                    .check(&beside)
                    .map(|surprises| loaded.warnings.iter().cloned().chain(surprises).collect())
            }
            (Ok(loaded), None) => Ok(loaded.warnings),
            (Err(errors), _) => Err(errors),
        };
        let is_accepted = outcome.is_ok();
        let findings = outcome.unwrap_or_else(|errors| errors.0);
        let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(findings, self.findings, "{}", self.title);
        assert_eq!(is_accepted, self.is_accepted, "{}", self.title);
    }
}

/// Objects that are there: manifests, and those that the machine makes in words of their own.
fn existing(text: &str) -> Vec<Typed> {
    let (mut made, mut written) = (Vec::new(), String::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (kind, json) = match (words[..].get(..2), words.get(2)) {
            (Some(["Node", name]), None) => {
                (Kind::Node, serde_json::json!({"metadata": {"name": name}}))
            }
            (Some(["Pod", name]), Some(ip)) => {
                let (namespace, name) = name.split_once('/').expect("NAMESPACE/NAME");
                let metadata = serde_json::json!({"namespace": namespace, "name": name});
                let status = serde_json::json!({"podIPs": [{"ip": ip}]});
                (Kind::Pod, serde_json::json!({"metadata": metadata, "status": status}))
            }
            _ => {
                written.push_str(line);
                written.push('\n');
                continue;
            }
        };
        made.push(stored(kind, json.to_string().as_bytes()).expect("an object"));
    }
    let written = load(&input(&written)).expect("valid objects").objects;
    made.into_iter().chain(written.into_iter().map(|object| object.typed)).collect()
}

#[test]
fn every_case_has_its_outcome() {
    let cases: Vec<Case<'_>> =
        include_str!("cases.txt").split("### ").skip(1).map(Case::parse).collect();
    let refused = cases.iter().filter(|case| !case.is_accepted).count();
    assert!(refused >= 40, "only {refused} wrong inputs are tried");
    cases.iter().for_each(Case::check);
}

#[test]
fn a_name_is_enough_to_delete() {
    let check = |text: &str, expected: Result<&[&str], &str>| {
        let names = load_names(&input(text), None);
        let names = names.map(|names| names.keys.iter().map(ToString::to_string).collect());
        let names = names.map_err(|errors| errors.to_string());
        let expected = expected.map(|names| names.iter().map(ToString::to_string).collect());
        let expected: Result<Vec<String>, String> = expected.map_err(str::to_owned);
        assert_eq!(names, expected, "{text}");
    };
    check(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {nonsense: 1}\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n",
        Ok(&["Service shop/web", "Deployment default/web", "Namespace shop"]),
    );
    check(
        "apiVersion: v1\nkind: Service\nspec: {}\n",
        Err("t.yaml:1: Service: metadata.name: the object has no name; add metadata.name"),
    );
    check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: 5}\n",
        Err("t.yaml:3: Pod: metadata.name: the value is no text; put the value in quotes"),
    );
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n";
    check(node, Ok(&[]));
    let warned = load_names(&input(node), None).expect("it is passed over").warnings;
    assert!(warned[0].to_string().contains("nodes are the machine's own and stay"), "{warned:?}");
    let path = load_names(&input("apiVersion: v1\nkind: Pod\nmetadata: {name: ../a}\n"), None);
    assert!(path.is_err(), "a name is never a path");
}

#[test]
fn a_namespace_is_that_of_objects_that_name_none() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 1}]}\n\
                ---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, namespace: shop}\n---\n\
                apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n\
                apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: null}\n";
    let check = |namespace, expected: Result<&[&str], &str>| {
        let read = load_in(&input(text), namespace, Unenforced::Refused);
        let names = read.map(|it| it.objects.iter().map(|it| it.key.to_string()).collect());
        let deleted = load_names(&input(text), namespace);
        let deleted = deleted.map(|it| it.keys.iter().map(ToString::to_string).collect());
        assert_eq!(names, deleted, "{namespace:?}");
        let expected = expected.map(|it| it.iter().map(ToString::to_string).collect());
        let expected: Result<Vec<String>, String> = expected.map_err(str::to_owned);
        assert_eq!(names.map_err(|errors| errors.to_string()), expected, "{namespace:?}");
    };
    let placed = ["Service shop/a", "ConfigMap shop/b", "Namespace shop", "ConfigMap shop/c"];
    check(Some("shop"), Ok(&placed));
    let other = "t.yaml:8: ConfigMap shop/b: metadata.namespace: the object is of namespace \
                 `shop`, and -n says `app`; leave -n out, write -n shop, or remove \
                 metadata.namespace";
    check(Some("app"), Err(other));
}

#[test]
fn lists_become_canonical_json() {
    let text = "kind: List\napiVersion: v1\nitems:\n\
                - apiVersion: networking.istio.io/v1alpha3\n  kind: WorkloadEntry\n  \
                metadata: {name: vm}\n  spec: {address: 10.0.0.1}\n  status: {x: 1}\n\
                - apiVersion: v1\n  kind: Secret\n  metadata: {name: s,
                    creationTimestamp: null}\n  \
                data: {a: eA==}\n  stringData: {b: y1}\n";
    let loaded = load(&input(text)).expect("valid objects");
    let json: Vec<&Value> = loaded.objects.iter().map(|object| &object.json).collect();
    let expected = [
        serde_json::json!({
            "apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry",
            "metadata": {"name": "vm", "namespace": "default"}, "spec": {"address": "10.0.0.1"},
        }),
        serde_json::json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "namespace": "default"}, "data": {"a": "eA==", "b": "eTE="},
        }),
    ];
    assert_eq!(json, expected.iter().collect::<Vec<_>>());
    assert_eq!(loaded.objects[1].location.to_string(), "t.yaml:9");
    let again = stored(Kind::WorkloadEntry, expected[0].to_string().as_bytes());
    assert_eq!(again.expect("what was written"), loaded.objects[0].typed);
}

#[test]
fn what_a_manifest_names_is_kept_beside_what_it_means() {
    let check = |text: &str, expected: Value| {
        let loaded = load(&input(text)).expect("a valid object");
        let mut named = loaded.objects[0].named.clone();
        let fields = named.as_object_mut().expect("fields");
        fields.retain(|field, _| !["apiVersion", "kind", "metadata"].contains(&&**field));
        assert_eq!(named, expected, "{text}");
        let object = &loaded.objects[0];
        let whole = whole(object.key.kind, object.named.clone()).expect("it has its shape");
        assert_eq!(whole, object.json, "{text}");
    };
    let istio = "apiVersion: security.istio.io/v1beta1\nkind: AuthorizationPolicy\n\
                 metadata: {name: p}\nspec: {rules: []}\nstatus: {x: 1}\n";
    check(istio, serde_json::json!({"spec": {"rules": []}}));
    assert_eq!(load(&input(istio)).expect("valid").objects[0].json["spec"]["action"], "ALLOW");
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: eA==}\n\
                  stringData: {b: y1}\n";
    check(secret, serde_json::json!({"data": {"a": "eA==", "b": "eTE="}}));
    let scaler = |version: &str, more: &str| {
        format!(
            "apiVersion: autoscaling/{version}\nkind: HorizontalPodAutoscaler\n\
             metadata: {{name: h}}\nspec: {{scaleTargetRef: {{kind: Deployment, name: web, \
             apiVersion: apps/v1}}, maxReplicas: 3{more}}}\n"
        )
    };
    let of = serde_json::json!({"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"});
    let unset = serde_json::json!({"spec": {"scaleTargetRef": of, "maxReplicas": 3}});
    check(&scaler("v2", ""), unset.clone());
    check(&scaler("v1", ""), unset.clone());
    let mut set = unset;
    let target = serde_json::json!({"type": "Utilization", "averageUtilization": 40});
    set["spec"]["metrics"] =
        serde_json::json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]);
    check(&scaler("v1", ", targetCPUUtilizationPercentage: 40"), set);
}

#[test]
fn line_breaks_in_base64_are_passed_over() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  a: |\n    eH\n    g=\n";
    let loaded = load(&input(text)).expect("Kubernetes takes it");
    assert_eq!(loaded.objects[0].json["data"], serde_json::json!({"a": "eHg="}));
    assert_eq!(loaded.objects[0].named["data"], loaded.objects[0].json["data"]);
}

#[test]
fn a_directory_with_a_kustomization_is_built() {
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let kustomization = "namespace: shop\nnamePrefix: dev-\nresources: [web.yaml]\n\
                         secretGenerator:\n- {name: s, literals: [a=b]}\n";
    write("in/overlay/kustomization.yaml", kustomization);
    write("in/overlay/web.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web}\n");
    write("in/plain.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n");
    let names = |input: Input| {
        let loaded = load(&[input]).unwrap();
        loaded.objects.iter().map(|it| it.key.to_string()).collect::<Vec<_>>()
    };
    let overlay = directory.path().join("in/overlay");
    let built = names(Input::Kustomization(overlay.clone()));
    assert_eq!(built[0], "ServiceAccount shop/dev-web");
    assert!(built[1].starts_with("Secret shop/dev-s-"), "{built:?}");
    assert_eq!(names(Input::Path(overlay.clone())), built, "it need not be said");
    let below = names(Input::Path(directory.path().join("in")));
    assert_eq!(below, [built, vec!["Namespace shop".to_owned()]].concat(), "nor for one below");

    let check = |input: Input, expected: &str| {
        let error = load(&[input]).unwrap_err().to_string();
        let root = directory.path().display().to_string();
        assert_eq!(error.replace(&root, ""), expected);
    };
    check(
        Input::Kustomization(directory.path().join("in")),
        "/in: no kustomization.yaml, kustomization.yml or Kustomization; name a directory that has \
         one",
    );
    check(
        Input::Path(directory.path().join("in/overlay/kustomization.yaml")),
        "/in/overlay/kustomization.yaml: a kustomization is built with the files that it names; \
         name its directory: -k /in/overlay",
    );
    write("two/one/kustomization.yaml", "resources: [../../in/overlay]\n");
    write("two/other/kustomization.yaml", "bases: [../../in/overlay]\n");
    let other = load(&[Input::Path(directory.path().join("two/other"))]).unwrap();
    let place = directory.path().join("two/other/kustomization.yaml").display().to_string();
    let warnings = other.warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(warnings, [format!("{place}: `bases` is deprecated; use `resources`")]);
    write("none/kustomization.yaml", "namePrefix: a\n");
    assert!(names(Input::Path(directory.path().join("none"))).is_empty(), "nothing is left out");
    write("in/overlay/kustomization.yaml", "namespace: shop\nresources: [web.yaml]\n");
    check(
        Input::Path(directory.path().join("two")),
        "/in/overlay/web.yaml: ServiceAccount shop/web: the same object is at \
         /in/overlay/web.yaml; remove or rename one of the two, or name one kustomization alone, \
         with -k",
    );
    write("in/overlay/web.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: W}\n");
    check(
        Input::Kustomization(overlay),
        "/in/overlay/web.yaml: ServiceAccount shop/W: metadata.name: `W` must consist of \
         lower case letters, digits, `-` and `.`, and start and end with a letter or digit \
         (RFC 1123 subdomain); correct it",
    );
}

#[test]
fn files_directories_and_what_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    std::fs::create_dir_all(root.join("b")).unwrap();
    let write = |path: &str, name: &str| {
        let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n");
        std::fs::write(root.join(path), text).unwrap();
    };
    write("c.yml", "third");
    write("a.yaml", "first");
    write("b/x.json", "second");
    write("b/readme.md", "fourth");
    let loaded = load(&[Input::Path(root.clone())]).unwrap();
    let names: Vec<&str> = loaded.objects.iter().map(|object| &*object.key.name).collect();
    assert_eq!(names, ["first", "second", "third"]);
    std::fs::create_dir(root.join("empty")).unwrap();
    let missing = "none.yaml: cannot be read: No such file or directory (os error 2); \
                   check the path";
    let empty = "empty: the directory holds no *.yaml, *.yml or *.json; \
                 name a directory or file with manifests";
    for (name, expected) in [("none.yaml", missing), ("empty", empty)] {
        let error = load(&[Input::Path(root.join(name))]).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
    // Whoever opened a pipe that nobody writes to would wait for ever.
    let _socket = std::os::unix::net::UnixListener::bind(root.join("b/y.yaml")).unwrap();
    let error = load(&[Input::Path(root)]).unwrap_err().to_string();
    assert!(error.contains("b/y.yaml: cannot be read: it is not a regular file"), "{error}");
}

#[test]
fn the_examples_are_right() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let read = |file: &str| {
        let loaded = load(&[Input::Path(format!("{examples}/{file}").into())]);
        loaded.unwrap_or_else(|errors| panic!("{errors}"))
    };
    // The directory as it is, which `ambit up` takes.
    let app = read("tiered-app");
    assert_eq!(app.check(&[]).map(|surprises| surprises.len()), Ok(0));
    let there: Vec<Typed> = app.objects.into_iter().map(|object| object.typed).collect();
    for file in ["mesh-on.yaml", "policies.yaml", "deny.yaml", "strict.yaml"] {
        let loaded = read(&format!("tiered-app-steps/{file}"));
        assert_eq!(loaded.warnings, [], "{file}");
        assert_eq!(loaded.check(&there).map(|surprises| surprises.len()), Ok(0), "{file}");
    }
}
