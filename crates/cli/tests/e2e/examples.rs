//! The examples are read like a user's manifests: without an error or a warning.

use std::path::PathBuf;

use ambit_manifest::{Input, Manifests, load};

fn example(names: &[&str]) -> Manifests {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiered-app");
    let inputs: Vec<Input> = names.iter().map(|name| Input::Path(directory.join(name))).collect();
    load(&inputs).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn every_example_is_read_without_a_doubt() {
    for name in ["app.yaml", "mesh-on.yaml", "policies.yaml", "strict.yaml", "deny.yaml"] {
        let manifests = example(&[name]);
        assert!(!manifests.objects.is_empty(), "{name} is empty");
        assert_eq!(manifests.warnings, [], "{name}");
    }
}

#[test]
fn each_file_refers_to_what_the_application_brings() {
    let app = example(&["app.yaml"]);
    assert_eq!(app.check(&[]).unwrap(), []);
    let existing: Vec<_> = app.objects.into_iter().map(|object| object.typed).collect();
    for name in ["mesh-on.yaml", "policies.yaml", "strict.yaml", "deny.yaml"] {
        let checked = example(&[name]).check(&existing);
        assert_eq!(checked.unwrap_or_else(|errors| panic!("{name}: {errors}")), [], "{name}");
    }
}
