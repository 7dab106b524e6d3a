//! Istio's samples run by the images that their manifests name, in the mesh.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

const SAMPLES: &str = "
apiVersion: v1
kind: Pod
metadata: {name: go-httpbin, namespace: app, labels: {app: go-httpbin}}
spec:
  containers: [{name: main, image: 'docker.io/mccutchen/go-httpbin:v2.15.0'}]
---
apiVersion: v1
kind: Service
metadata: {name: go-httpbin, namespace: app}
spec: {selector: {app: go-httpbin}, ports: [{name: http, port: 8000, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: httpbin, namespace: app, labels: {app: httpbin}}
spec:
  containers: [{name: main, image: docker.io/kennethreitz/httpbin}]
---
apiVersion: v1
kind: Service
metadata: {name: httpbin, namespace: app}
spec: {selector: {app: httpbin}, ports: [{name: http, port: 8000, targetPort: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: hello, namespace: app, labels: {app: hello}}
spec:
  containers: [{name: main, image: 'registry.istio.io/release/examples-helloworld-v2:1.0'}]
---
apiVersion: v1
kind: Service
metadata: {name: helloworld, namespace: app}
spec: {selector: {app: hello}, ports: [{name: http, port: 5000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: tcp-echo, namespace: app, labels: {app: tcp-echo}}
spec:
  containers:
  - name: main
    image: docker.io/istio/tcp-echo-server:1.2
    args: ['9000,9001,9002', one]
---
apiVersion: v1
kind: Service
metadata: {name: tcp-echo, namespace: app}
spec: {selector: {app: tcp-echo}, ports: [{name: tcp, port: 9000}, {name: other, port: 9001}]}
";

#[test]
fn istios_samples_answer_by_the_images_of_their_manifests() {
    let machine = Machine::up_with("samples", Mesh::On, &[], SAMPLES);
    let says = |command: &str, part: &str| {
        let says = || {
            let said = machine.ambit(&["exec", "client/load", "--", "sh", "-c", command]);
            said.out.contains(part)
        };
        machine.wait(&format!("{command} says {part}"), SETTLE_TIMEOUT, says);
    };
    says("curl -sm5 http://go-httpbin.app:8000/headers", "\"Host\": [");
    says("curl -sm5 http://httpbin.app:8000/headers", "\"Host\": \"httpbin.app:8000\"");
    says("curl -sm5 -o /dev/null -w '%{http_code}' http://httpbin.app:8000/status/418", "418");
    says("curl -sm5 http://helloworld.app:5000/hello", "Hello version: v2, instance: hello\n");
    for port in [9000, 9001] {
        let line = format!("echo world | curl -sm1 telnet://tcp-echo.app:{port}");
        says(&line, "one world\n");
    }
    let said = machine.run(&["logs", "app/httpbin"]);
    assert!(said.contains("\"GET /status/418 HTTP/1.1\" 418"), "{said}");
    machine.down();
}
