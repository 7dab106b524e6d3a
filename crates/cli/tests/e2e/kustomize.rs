//! A kustomization on a machine: applied, changed, and taken away, as `kubectl -k` would.

use std::fs;
use std::path::Path;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::policy::connects;

const BASE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers: [{name: shop, image: shop, args: [echo, --listen, '[::]:8080']}]
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{name: http, port: 80, targetPort: 8080}]}
";
const OVERLAY: &str = "
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: app
namePrefix: staging-
resources: [../base]
images: [{name: shop, newName: ambit/sample, newTag: '1'}]
replicas: [{name: shop, count: 2}]
configMapGenerator: [{name: settings, literals: [colour=blue]}]
";

#[test]
fn a_kustomization_is_applied_changed_and_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let overlay = directory.path().join("overlay");
    for (name, text) in [("base/all.yaml", BASE), ("overlay/kustomization.yaml", OVERLAY)] {
        write(&directory.path().join(name), text);
    }
    write(&directory.path().join("base/kustomization.yaml"), "resources: [all.yaml]\n");
    let path = overlay.to_str().expect("UTF-8");
    let machine = Machine::up("kustomize", Mesh::On, &[]);
    machine.run(&["apply", "-k", path]);
    let serving = || {
        let pods = machine.pods();
        pods.iter().filter(|it| it.owner == "staging-shop" && it.ready && !it.terminating).count()
    };
    machine.wait("two pods serve", SETTLE_TIMEOUT, || serving() == 2);
    machine.wait("they are reached", SETTLE_TIMEOUT, || {
        connects(&machine, "client/load", "staging-shop.app")
    });
    // A directory that has a kustomization is one, without a flag too.
    write(&overlay.join("kustomization.yaml"), &OVERLAY.replace("count: 2", "count: 1"));
    machine.run(&["apply", path]);
    machine.wait("one pod serves", SETTLE_TIMEOUT, || serving() == 1);
    write(&overlay.join("kustomization.yaml"), &OVERLAY.replace("../base", "../bass"));
    let said = machine.ambit(&["apply", "-k", path]);
    assert!(!said.status.success() && said.err.contains("bass"), "{}", said.err);
    assert_eq!(serving(), 1, "an error changes nothing");
    write(&overlay.join("kustomization.yaml"), OVERLAY);
    machine.run(&["delete", "-k", path]);
    machine.wait("they are gone", SETTLE_TIMEOUT, || {
        machine.pods().iter().all(|it| it.owner != "staging-shop")
    });
    machine.down();
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, text).expect("written");
}
