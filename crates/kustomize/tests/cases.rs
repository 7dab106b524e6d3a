//! Builds every directory of `cases` and compares it with what kustomize made of it.
//!
//! `expected.yaml` is the output of `kustomize build input`, unchanged. To add a case, write its
//! `input` and run kustomize.

use std::fs;
use std::path::Path;

use serde_json::Value;

fn check(case: &Path) {
    let name = case.display();
    let text = fs::read_to_string(case.join("expected.yaml")).expect("an expected output");
    let options = serde_saphyr::options! { strict_booleans: true };
    let expected: Vec<Value> =
        serde_saphyr::from_multiple_with_options(&text, options).expect("YAML of kustomize");
    let built = ambit_kustomize::build(&case.join("input")).unwrap_or_else(|it| panic!("{it}"));
    let names = |values: &[Value]| -> Vec<String> {
        values.iter().map(|it| format!("{} {}", it["kind"], it["metadata"]["name"])).collect()
    };
    let found: Vec<Value> = built.resources.into_iter().map(|it| it.value).collect();
    assert_eq!(names(&found), names(&expected), "{name}");
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_build_is_what_kustomize_makes() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut count = 0;
    for case in fs::read_dir(cases).expect("the directory of cases") {
        check(&case.expect("a case").path());
        count += 1;
    }
    assert!(count >= 12, "only {count} cases were found");
}
