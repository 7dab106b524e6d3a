//! What users get for what they write, right and wrong.

use super::*;

fn load_text(text: &str) -> Result<Manifests, Errors> {
    load(&[Input::Text { name: "t.yaml".to_owned(), text: text.to_owned() }])
}

/// `text` must be refused with exactly these errors, one per line.
#[track_caller]
fn wrong(text: &str, expected: &[&str]) {
    let errors = match load_text(text) {
        Ok(loaded) => panic!("not refused: {:?}", loaded.objects),
        Err(errors) => errors.to_string(),
    };
    assert_eq!(errors.lines().collect::<Vec<_>>(), expected);
}

/// `text` must be accepted with exactly these warnings.
#[track_caller]
fn right(text: &str, warnings: &[&str]) -> Manifests {
    let loaded = load_text(text).unwrap_or_else(|errors| panic!("refused:\n{errors}"));
    let got: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(got, warnings);
    loaded
}

const SERVICE: &str =
    "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec:\n";
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec:\n";
const DEPLOYMENT: &str =
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec:\n";
const POLICY: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                      metadata: {name: web, namespace: shop}\nspec:\n";
const PEER: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                    metadata: {name: web, namespace: shop}\nspec:\n";
const ENTRY: &str = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
                     metadata: {name: ext, namespace: shop}\nspec:\n";

fn with(head: &str, spec: &str) -> String {
    format!("{head}{spec}")
}

#[test]
fn text_that_is_no_object() {
    wrong(
        "a: [1\n",
        &[
            "t.yaml:1: not YAML: unclosed bracket '[' at line 1, column 4; correct the syntax at this place",
        ],
    );
    wrong(
        "kind: Pod\n",
        &[
            "t.yaml:1: Pod: apiVersion: not a Kubernetes object: the field is missing or no text; start the document with `apiVersion:` and `kind:`",
        ],
    );
    wrong(
        "- just\n- a list\n",
        &[
            "t.yaml:1: object: apiVersion: not a Kubernetes object: the field is missing or no text; start the document with `apiVersion:` and `kind:`",
        ],
    );
    wrong(
        "apiVersion: apps/v1beta2\nkind: Deployment\nmetadata: {name: a}\n",
        &[
            "t.yaml:1: Deployment a: apiVersion: Deployment has no version `apps/v1beta2`; use apps/v1",
        ],
    );
}

#[test]
fn unknown_fields_and_wrong_types() {
    wrong(
        &with(SERVICE, "  selectors: {app: web}\n  ports:\n  - port: 80\n    targetport: 8080\n"),
        &[
            "t.yaml:5: Service shop/web: spec.selectors: the field `selectors` does not exist here; remove it, or correct its spelling, case and indentation",
            "t.yaml:8: Service shop/web: spec.ports[0].targetport: the field `targetport` does not exist here; remove it, or correct its spelling, case and indentation",
        ],
    );
    wrong(
        &with(SERVICE, "  ports:\n  - port: eighty\n"),
        &[
            "t.yaml:6: Service shop/web: spec.ports[0].port: invalid type: string \"eighty\", expected i32; write the value without quotes and in the expected type",
        ],
    );
    wrong(
        &with(
            POD,
            "  containers:\n  - name: c\n    image: i\n    env:\n    - name: A\n      value: 1\n",
        ),
        &[
            "t.yaml:10: Pod shop/web: spec.containers[0].env[0].value: invalid type: integer `1`, expected a string; put the value in quotes",
        ],
    );
    wrong(
        &with(POLICY, "  action: REFUSE\n"),
        &[
            "t.yaml:5: AuthorizationPolicy shop/web: spec.action: unknown variant `REFUSE`, expected one of `ALLOW`, `DENY`, `AUDIT`, `CUSTOM`; use one of the listed values",
        ],
    );
    wrong(
        &with(POLICY, "  selector:\n    matchLables: {app: web}\n"),
        &[
            "t.yaml:6: AuthorizationPolicy shop/web: spec.selector.matchLables: the field `matchLables` does not exist here; remove it, or correct its spelling, case and indentation",
        ],
    );
}

#[test]
fn names_and_labels() {
    wrong(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: Shop\n",
        &[
            "t.yaml:4: Namespace Shop: metadata.name: `Shop` must consist of lower case letters, digits and `-`, and start and end with a letter or digit (RFC 1123 label); correct it",
        ],
    );
    wrong(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  namespace: shop\n",
        &["t.yaml:3: ServiceAccount: metadata.name: the object has no name; add metadata.name"],
    );
    wrong(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  namespace: shop\n",
        &[
            "t.yaml:5: Namespace shop/shop: metadata.namespace: a Namespace does not live in a namespace; remove metadata.namespace",
        ],
    );
    wrong(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels:\n    istio.io/dataplane-mode: ambiant\n",
        &[
            "t.yaml:6: Namespace shop: metadata.labels.istio.io/dataplane-mode: the mode `ambiant` does not exist; use `ambient` or `none`",
        ],
    );
    wrong(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {\"-x\": \"a b\"}}\n",
        &[
            "t.yaml:3: Namespace a: metadata.labels.-x: the key `-x` must be `name` or `prefix/name`, where name has 1 to 63 letters, digits, `-`, `_` or `.` and starts and ends with a letter or digit; correct it",
            "t.yaml:3: Namespace a: metadata.labels.-x: the label value `a b` must have at most 63 letters, digits, `-`, `_` or `.`, and start and end with a letter or digit; correct it",
        ],
    );
}

#[test]
fn services() {
    wrong(
        &with(SERVICE, "  ports:\n  - port: 0\n  - port: 70000\n    targetPort: Web\n"),
        &[
            "t.yaml:6: Service shop/web: spec.ports[0].port: 0 is not between 1 and 65535; write a port number in that range",
            "t.yaml:6: Service shop/web: spec.ports[0].name: a Service with several ports must name each of them; add a name",
            "t.yaml:7: Service shop/web: spec.ports[1].port: 70000 is not between 1 and 65535; write a port number in that range",
            "t.yaml:7: Service shop/web: spec.ports[1].name: a Service with several ports must name each of them; add a name",
            "t.yaml:8: Service shop/web: spec.ports[1].targetPort: the port name `Web` must have 1 to 15 lower case letters, digits or single `-`, with at least one letter; correct it",
        ],
    );
    wrong(
        &with(SERVICE, "  type: ExternalName\n  externalName: example.com\n"),
        &[
            "t.yaml:5: Service shop/web: spec.type: an ExternalName is a DNS alias: its traffic has no Service address that the mesh could carry; use a ServiceEntry with `resolution: DNS`, or let clients use the name itself",
        ],
    );
    wrong(
        &with(
            SERVICE,
            "  clusterIP: somewhere\n  sessionAffinity: Cookie\n  trafficDistribution: Near\n  ports: [{port: 80}]\n",
        ),
        &[
            "t.yaml:5: Service shop/web: spec.clusterIP: `somewhere` is not an IP address; use an address, `None` for a headless Service, or leave it out",
            "t.yaml:6: Service shop/web: spec.sessionAffinity: `Cookie` is not a known value; use one of None, ClientIP",
            "t.yaml:7: Service shop/web: spec.trafficDistribution: `Near` is not a known value; use one of PreferClose, PreferSameZone, PreferSameNode",
        ],
    );
    wrong(
        &with(SERVICE, "  selector: {app: web}\n"),
        &[
            "t.yaml:4: Service shop/web: spec.ports: a Service with an address needs a port; list at least one port",
        ],
    );
    right(&with(SERVICE, "  clusterIP: None\n  selector: {app: web}\n"), &[]);
    right(
        &with(SERVICE, "  type: LoadBalancer\n  ports: [{port: 80}]\n"),
        &[
            "t.yaml:5: Service shop/web: spec.type: there is nothing outside of this machine that could reach a node port or load balancer; the Service works inside the mesh as a ClusterIP",
        ],
    );
}

#[test]
fn pods_and_deployments() {
    wrong(
        &with(POD, "  containers: []\n"),
        &["t.yaml:5: Pod shop/web: spec.containers: a pod needs a container; list at least one"],
    );
    wrong(
        &with(POD, "  containers:\n  - {name: c, image: i}\n  - {name: c, image: \"\"}\n"),
        &[
            "t.yaml:7: Pod shop/web: spec.containers[1].image: the container has no image; add an image",
            "t.yaml:7: Pod shop/web: spec.containers[1].name: two containers are called `c`; give each container its own name",
        ],
    );
    wrong(
        &with(
            POD,
            "  containers:\n  - name: c\n    image: i\n    readinessProbe: {httpGet: {port: web}}\n    env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]\n",
        ),
        &[
            "t.yaml:8: Pod shop/web: spec.containers[0].readinessProbe.httpGet.port: the container has no port called `web`; use the number, or name the port in `ports`",
            "t.yaml:9: Pod shop/web: spec.containers[0].env[0].valueFrom: must name exactly one source, and no `value` beside it; keep one of value, configMapKeyRef, secretKeyRef, fieldRef",
        ],
    );
    wrong(
        &with(
            DEPLOYMENT,
            "  replicas: -1\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: wep}}\n    spec:\n      restartPolicy: Never\n      containers: [{name: c, image: i}]\n",
        ),
        &[
            "t.yaml:5: Deployment shop/web: spec.replicas: -1 is negative; write 0 or a positive number",
            "t.yaml:6: Deployment shop/web: spec.selector.matchLabels.app: the selector wants `app: web`, the template's label is `wep`; make spec.selector.matchLabels and spec.template.metadata.labels agree",
            "t.yaml:10: Deployment shop/web: spec.template.spec.restartPolicy: a Deployment's pods always restart, `Never` is impossible; remove it, or use a Pod",
        ],
    );
    right(
        &with(POD, "  containers: [{name: c, image: i}]\n  volumes: [{name: v, emptyDir: {}}]\n"),
        &[
            "t.yaml:6: Pod shop/web: spec.volumes: the field has no effect on one machine; remove it if you can: pods see the host's files",
        ],
    );
}

#[test]
fn authorization_policies() {
    let from =
        |source: &str| with(POLICY, &format!("  rules:\n  - from:\n    - source: {source}\n"));
    let at = "t.yaml:7: AuthorizationPolicy shop/web: spec.rules[0].from[0].source";
    for (source, rest) in [
        ("{}", ": a source must ask for something; add a field, or leave `from` away"),
        (
            "{principals: [\"spiffe://cluster.local/ns/a/sa/b\"]}",
            ".principals[0]: `spiffe://cluster.local/ns/a/sa/b` never matches: principals are compared without their scheme; write it without `spiffe://`",
        ),
        (
            "{principals: [a/b]}",
            ".principals[0]: `a/b` is not an identity and never matches; write `<trust domain>/ns/<namespace>/sa/<service account>`",
        ),
        (
            "{principals: [\"cluster.local/ns/*/sa/b\"]}",
            ".principals[0]: in `cluster.local/ns/*/sa/b` a `*` is compared literally and never matches; use `*` alone, as the first or as the last character",
        ),
        (
            "{ipBlocks: [10.0.0.0/40]}",
            ".ipBlocks[0]: `10.0.0.0/40` is neither an IP address nor a CIDR block; write it as in `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`",
        ),
        (
            "{namespaces: []}",
            ".namespaces: the list is empty, which could mean all or none; fill it or remove it",
        ),
        (
            "{serviceAccounts: [a], namespaces: [b]}",
            ".serviceAccounts: service accounts cannot be combined with principals or namespaces; write the service account as `namespace/name`",
        ),
    ] {
        wrong(&from(source), &[&format!("{at}{rest}")]);
    }
    wrong(
        &with(
            POLICY,
            "  rules:\n  - from: []\n    to:\n    - operation: {ports: [http]}\n    when:\n    - {key: source.host, values: [a]}\n    - {key: source.ip}\n",
        ),
        &[
            "t.yaml:6: AuthorizationPolicy shop/web: spec.rules[0].from: the list is empty, which could mean all or none; fill it or remove it",
            "t.yaml:8: AuthorizationPolicy shop/web: spec.rules[0].to[0].operation.ports[0]: `http` is not a port number; write a number from 1 to 65535",
            "t.yaml:10: AuthorizationPolicy shop/web: spec.rules[0].when[0].key: the attribute `source.host` does not exist; use one of source.ip, source.namespace, source.principal, remote.ip, destination.ip, destination.port, connection.sni, request.auth.principal, request.auth.audiences, request.auth.presenter, request.headers[..], request.auth.claims[..]",
            "t.yaml:11: AuthorizationPolicy shop/web: spec.rules[0].when[1]: a condition needs values; add `values` or `notValues`",
        ],
    );
    wrong(
        &with(
            POLICY,
            "  action: CUSTOM\n  selector: {matchLabels: {app: \"*\"}}\n  targetRefs: [{kind: Service, name: web}]\n",
        ),
        &[
            "t.yaml:4: AuthorizationPolicy shop/web: spec: only one of selector, targetRef and targetRefs may say what the policy holds for; keep one of them",
            "t.yaml:4: AuthorizationPolicy shop/web: spec.rules: a CUSTOM policy without rules never asks its provider; add a rule; `- {}` matches everything",
            "t.yaml:4: AuthorizationPolicy shop/web: spec.provider: exactly the CUSTOM policies have a provider; set `action: CUSTOM` and `provider.name` together, or remove both",
            "t.yaml:6: AuthorizationPolicy shop/web: spec.selector.matchLabels.app: selectors compare labels literally, `*` has no meaning; write the label out, or leave the selector away to select the namespace",
        ],
    );
    right(
        &with(POLICY, "  action: DENY\n"),
        &[
            "t.yaml:4: AuthorizationPolicy shop/web: spec.rules: a DENY policy without rules never matches; add a rule; `- {}` matches everything",
        ],
    );
    right(
        "apiVersion: security.istio.io/v1beta1\nkind: AuthorizationPolicy\nmetadata: {name: deny-all}\nspec: {}\n",
        &[],
    );
}

#[test]
fn peer_authentications() {
    wrong(
        &with(PEER, "  mtls: {mode: STRICTLY}\n"),
        &[
            "t.yaml:5: PeerAuthentication shop/web: spec.mtls.mode: unknown variant `STRICTLY`, expected one of `UNSET`, `DISABLE`, `PERMISSIVE`, `STRICT`; use one of the listed values",
        ],
    );
    wrong(
        &with(PEER, "  portLevelMtls:\n    70000: {mode: STRICT}\n"),
        &[
            "t.yaml:5: PeerAuthentication shop/web: spec.portLevelMtls: ports can only be told apart for selected workloads; add a selector with matchLabels",
            "t.yaml:6: PeerAuthentication shop/web: spec.portLevelMtls.70000: 70000 is not between 1 and 65535; write a port number in that range",
        ],
    );
    let loaded = right(
        &with(
            PEER,
            "  selector: {matchLabels: {app: web}}\n  portLevelMtls:\n    8080: {mode: PERMISSIVE}\n",
        ),
        &[],
    );
    assert_eq!(loaded.objects[0].json["spec"]["portLevelMtls"]["8080"]["mode"], "PERMISSIVE");
}

#[test]
fn service_entries() {
    wrong(
        &with(ENTRY, "  hosts: [\"*\", \"*.a.com\"]\n  resolution: DNS\n"),
        &[
            "t.yaml:4: ServiceEntry shop/ext: spec.ports: a ServiceEntry needs a port; list number, name and protocol",
            "t.yaml:5: ServiceEntry shop/ext: spec.hosts[0]: `*` alone would match every host; correct it",
            "t.yaml:5: ServiceEntry shop/ext: spec.hosts[1]: the endpoints of the wildcard `*.a.com` cannot be known; use `resolution: NONE`, or list the hosts",
        ],
    );
    wrong(
        &with(
            ENTRY,
            "  hosts: [a.com]\n  addresses: [10.0.0.0/8]\n  resolution: STATIC\n  ports: [{number: 443, name: tls, protocol: QUIC}]\n",
        ),
        &[
            "t.yaml:4: ServiceEntry shop/ext: spec.endpoints: with `resolution: STATIC` there must be endpoints; list them, or add a workloadSelector",
            "t.yaml:6: ServiceEntry shop/ext: spec.addresses[0]: a whole block of addresses has no endpoints of its own; use `resolution: NONE`, or name single addresses",
            "t.yaml:8: ServiceEntry shop/ext: spec.ports[0].protocol: `QUIC` is not a known value; use one of TCP, TLS, HTTP, HTTP2, HTTPS, GRPC, GRPC-WEB, MONGO, MYSQL, REDIS, UDP",
        ],
    );
    wrong(
        &with(
            ENTRY,
            "  hosts: [a.com]\n  resolution: STATIC\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  endpoints:\n  - {address: b.com, ports: {web: 8080}}\n",
        ),
        &[
            "t.yaml:9: ServiceEntry shop/ext: spec.endpoints[0].address: `b.com` is not an IP address; write an IP address, or use `resolution: DNS`",
            "t.yaml:9: ServiceEntry shop/ext: spec.endpoints[0].ports.web: the ServiceEntry has no port called `web`; use a name from spec.ports",
        ],
    );
    wrong(
        "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm}\nspec: {address: unix:///run/x, weight: 0}\n",
        &[
            "t.yaml:4: WorkloadEntry vm: spec.address: a unix socket cannot be reached from another network namespace; write an IP address",
            "t.yaml:4: WorkloadEntry vm: spec.weight: a weight of 0 takes no traffic; use 1 or more, or remove the endpoint",
        ],
    );
}

#[test]
fn config_maps_and_secrets() {
    wrong(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {\"a/b\": x, c: y}\nbinaryData: {c: \"AA==\"}\n",
        &[
            "t.yaml:4: ConfigMap c: data.c: invalid type: boolean `true`, expected a string; put the value in quotes",
        ],
    );
    wrong(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {\"a/b\": x, c: z}\nbinaryData: {c: \"AA==\"}\n",
        &[
            "t.yaml:4: ConfigMap c: data.a/b: the key `a/b` must consist of letters, digits, `-`, `_` and `.`; correct it",
            "t.yaml:5: ConfigMap c: binaryData.c: the key `c` is in `data` too; remove one of the two",
        ],
    );
    let loaded = right(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: eA==}\nstringData: {b: y1}\n",
        &[],
    );
    assert_eq!(loaded.objects[0].json["data"], serde_json::json!({"a": "eA==", "b": "eTE="}));
    assert!(loaded.objects[0].json.get("stringData").is_none());
}

#[test]
fn the_same_object_twice() {
    wrong(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n",
        &[
            "t.yaml:5: ConfigMap default/a: the same object is at t.yaml:1; remove one of the two, or rename it",
        ],
    );
}

#[test]
fn other_kinds_are_named() {
    right(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: shop}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n",
        &[
            "t.yaml:2: Gateway shop/g: kind: Gateway (gateway.networking.k8s.io/v1) is not read by Ambit, the object is left out; remove it: layer 7 is not available yet",
            "t.yaml:6: Node n1: kind: nodes come from the machine, the object is left out; use `--nodes`",
        ],
    );
}

#[test]
fn lists_and_canonical_json() {
    let loaded = right(
        "kind: List\napiVersion: v1\nitems:\n- apiVersion: networking.istio.io/v1alpha3\n  kind: WorkloadEntry\n  metadata: {name: vm}\n  spec: {address: 10.0.0.1}\n  status: {x: 1}\n- apiVersion: v1\n  kind: ServiceAccount\n  metadata: {name: vm, namespace: shop, creationTimestamp: null}\n",
        &[],
    );
    let json: Vec<String> = loaded.objects.iter().map(|object| object.json.to_string()).collect();
    assert_eq!(
        json,
        [
            r#"{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"vm","namespace":"default"},"spec":{"address":"10.0.0.1"}}"#,
            r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"vm","namespace":"shop"}}"#,
        ]
    );
    assert_eq!(loaded.objects[1].location.to_string(), "t.yaml:9");
    let again = stored(Kind::WorkloadEntry, json[0].as_bytes()).unwrap();
    assert_eq!(again, loaded.objects[0].typed);
}

#[test]
fn files_directories_and_what_cannot_be_read() {
    let root = std::env::temp_dir().join(format!("ambit-manifests-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
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
    let cases = [
        (
            Input::Path(root.join("none.yaml")),
            "none.yaml: cannot be read: No such file or directory (os error 2); check the path",
        ),
        (
            Input::Path(root.join("empty")),
            "empty: the directory holds no *.yaml, *.yml or *.json; name a directory or file with manifests",
        ),
    ];
    for (input, expected) in cases {
        let error = load(&[input]).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
    std::fs::remove_dir_all(root).unwrap();
}

/// What `check` says to `text`, with `existing` objects already there.
#[track_caller]
fn references(text: &str, existing: &str, expected: Result<&[&str], &[&str]>) {
    let loaded = load_text(text).unwrap_or_else(|errors| panic!("refused:\n{errors}"));
    let existing = load_text(existing).unwrap_or_else(|errors| panic!("refused:\n{errors}"));
    let existing: Vec<Typed> = existing.objects.into_iter().map(|object| object.typed).collect();
    let texts = |findings: &[Finding]| findings.iter().map(ToString::to_string).collect::<Vec<_>>();
    match (loaded.check(&existing, "istio-system"), expected) {
        (Ok(got), Ok(expected)) => assert_eq!(texts(&got), expected),
        (Err(got), Err(expected)) => assert_eq!(texts(&got.0), expected),
        (got, _) => panic!("{got:?}"),
    }
}

#[test]
fn references_must_lead_somewhere() {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
    let pod = with(POD, "  serviceAccountName: web\n  containers: [{name: c, image: i}]\n");
    references(
        &pod,
        "",
        Err(&[
            "t.yaml:3: Pod shop/web: metadata.namespace: the namespace `shop` does not exist; add a Namespace called `shop` to the input",
            "t.yaml:5: Pod shop/web: spec.serviceAccountName: the service account `web` does not exist in namespace `shop`; add a ServiceAccount called `web`, or correct the name",
        ]),
    );
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: shop}\n";
    references(&pod, &format!("{namespace}---\n{account}"), Ok(&[]));
}

#[test]
fn surprises_are_told_beforehand() {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {app: web}}\n\
               spec: {containers: [{name: c, image: i}]}\n";
    let existing = format!("{namespace}---\n{pod}");
    references(
        &with(SERVICE, "  selector: {app: wep}\n  ports: [{port: 80}]\n"),
        &existing,
        Ok(&[
            "t.yaml:5: Service shop/web: spec.selector: no pod of the namespace has these labels: the Service has no endpoints; make the selector and the pods' labels agree",
        ]),
    );
    references(
        &with(SERVICE, "  selector: {app: web}\n  ports: [{port: 80, targetPort: http}]\n"),
        &existing,
        Ok(&[
            "t.yaml:6: Service shop/web: spec.ports[0].targetPort: web has no port called `http`; name the container's port, or use its number",
        ]),
    );
    references(
        &with(
            POLICY,
            "  selector: {matchLabels: {app: web}}\n  rules:\n  - to:\n    - operation: {methods: [GET]}\n",
        ),
        &existing,
        Ok(&[
            "t.yaml:4: AuthorizationPolicy shop/web: spec: will be Accepted=False (UnsupportedValue): methods can only be judged by a layer-7 proxy: what depends on it is not allowed; it holds for shop/web; write it with source and destination.port only, or attach it to a waypoint once there is one",
        ]),
    );
    references(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank, labels: {istio.io/use-waypoint: wp}}\n",
        "",
        Ok(&[
            "t.yaml:3: Namespace bank: metadata.labels.istio.io/use-waypoint: the waypoint `wp` does not exist: layer 7 is not available yet; remove the label, or traffic that must pass the waypoint is refused",
        ]),
    );
}
