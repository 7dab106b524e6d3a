//! The examples are read like a user's manifests: without an error or a warning.

use std::path::PathBuf;

use ambit_machine::image::ImageMap;
use ambit_machine::{ImageSources, unknown_images};
use ambit_manifest::{Input, Manifests, load};

fn example(names: &[&str]) -> Manifests {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let inputs: Vec<Input> = names.iter().map(|name| Input::Path(directory.join(name))).collect();
    load(&inputs).unwrap_or_else(|errors| panic!("{errors}"))
}

/// What is applied to an application after it is up, and what must have been applied before.
const STEPS: [(&str, &[&str], &[&str]); 4] = [
    ("tiered-app", &[], &["mesh-on.yaml", "policies.yaml", "strict.yaml", "deny.yaml"]),
    ("bookinfo", &[], &["old.yaml", "mesh-on.yaml", "policies.yaml"]),
    ("bookinfo", &["waypoint.yaml"], &["waypoint.yaml", "canary.yaml"]),
    (
        "bookinfo",
        &["waypoint.yaml", "canary.yaml"],
        &[
            "by-user.yaml",
            "mirror.yaml",
            "fault.yaml",
            "retries.yaml",
            "breaker.yaml",
            "admin.yaml",
            "rate-limit.yaml",
        ],
    ),
];

#[test]
fn every_example_is_read_without_a_doubt() {
    let step = |app: &str, step: &&str| format!("{app}-steps/{step}");
    let files = STEPS.iter().flat_map(|(app, _, steps)| {
        // The directory as it is, which `ambit up` takes.
        std::iter::once((*app).to_owned()).chain(steps.iter().map(|it| step(app, it)))
    });
    for name in files {
        let manifests = example(&[&name]);
        assert!(!manifests.objects.is_empty(), "{name} is empty");
        assert_eq!(manifests.warnings, [], "{name}");
    }
}

#[test]
fn each_file_refers_to_what_the_application_brings() {
    for (name, before, steps) in STEPS {
        let app = example(&[name]);
        assert_eq!(app.check(&[]).unwrap(), []);
        assert_eq!(unknown_images(&app, Some(&ImageMap::default()), &ImageSources::default()), []);
        let before =
            before.iter().flat_map(|step| example(&[&format!("{name}-steps/{step}")]).objects);
        let existing: Vec<_> = app.objects.into_iter().chain(before).map(|it| it.typed).collect();
        for step in steps {
            let step = format!("{name}-steps/{step}");
            let checked = example(&[&step]).check(&existing);
            assert_eq!(checked.unwrap_or_else(|errors| panic!("{step}: {errors}")), [], "{step}");
        }
    }
}
