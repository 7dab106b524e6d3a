//! The manifests of the experiments are read as a user's manifests are: without an error, and with
//! no other warning than the one that is expected.

use ambit_bench::manifest::{
    Bookinfo, bookinfo, bookinfo_policies, details, details_policies, path, path_policies, ratings,
    ratings_policies, tiered, tiered_policies,
};
use ambit_manifest::{Input, Manifests, Typed, load};

fn read(name: &str, text: String) -> Manifests {
    let loaded = load(&[Input::Text { name: name.to_owned(), text }]);
    let loaded = loaded.unwrap_or_else(|errors| panic!("{name}: {errors}"));
    assert_eq!(loaded.warnings, [], "{name}");
    loaded
}

/// Reads an application, then its policies beside it. `expected` are the parts of what is said
/// against the policies.
fn check(
    name: &str,
    application: String,
    policies: String,
    objects: (usize, usize),
    expected: &[&str],
) {
    let application = read(name, application);
    let surprises = application.check(&[]).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    assert_eq!(surprises, [], "{name}");
    let policies = read(name, policies);
    assert_eq!((application.objects.len(), policies.objects.len()), objects, "{name}");
    let there: Vec<Typed> = application.objects.into_iter().map(|object| object.typed).collect();
    let surprises = policies.check(&there).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let said: Vec<String> = surprises.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), expected.len(), "{name}: {said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn every_experiment_is_read_without_a_doubt() {
    for mesh in [false, true] {
        for namespaces in [1, 50] {
            let of_each = 1 + 4 * 3 + 2;
            let objects = (1 + namespaces as usize * of_each, 4);
            // The published policies admit a client that is not part of the experiment.
            let expected = ["the namespace `client` of `cluster.local/ns/client/sa/sleep`"];
            let policies = tiered_policies(namespaces);
            check("tiered", tiered(namespaces, mesh), policies, objects, &expected);
        }
        for release in [Bookinfo::Old, Bookinfo::New] {
            check("details", details(release, mesh), details_policies(), (8, 1), &[]);
            check("bookinfo", bookinfo(release, mesh), bookinfo_policies(), (17, 4), &[]);
        }
        check("ratings", ratings(mesh), ratings_policies(), (8, 1), &[]);
        check("path", path(mesh), path_policies(), (10, 1), &[]);
    }
}

#[test]
fn the_old_release_goes_over_the_new_one() {
    let example = |name: &str| {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/bookinfo/");
        std::fs::read_to_string(format!("{directory}{name}")).unwrap()
    };
    let there: Vec<Typed> =
        read("app", example("app.yaml")).objects.into_iter().map(|object| object.typed).collect();
    for name in ["old.yaml", "mesh-on.yaml", "policies.yaml"] {
        assert_eq!(read(name, example(name)).check(&there).unwrap(), [], "{name}");
    }
}
