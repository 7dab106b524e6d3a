//! `ambit diff`: what `ambit apply` would change, with kubectl's exit codes.

use std::process::ExitCode;

use ambit_machine::{Client, Difference, Differences};
use ambit_model::printable::printable_lines;
use ambit_words::annotations::LAST_APPLIED;
use anyhow::Result;
use serde_json::{Value, json};
use similar::TextDiff;

use super::change;
use crate::args::DiffArgs;
use crate::{colour, progress};

/// Exits with this where something would change.
const DIFFERENT: u8 = 1;
/// Exits with this where that cannot be said.
const TROUBLE: u8 = 2;
/// Lines around a change.
const AROUND: usize = 3;
/// Fields of metadata that the machine sets.
const OF_MACHINE: [&str; 4] = ["resourceVersion", "generation", "uid", "creationTimestamp"];

/// Prints the differences.
pub(super) async fn diff(args: DiffArgs) -> Result<ExitCode> {
    match differences(args).await {
        Ok(text) if text.is_empty() => Ok(ExitCode::SUCCESS),
        Ok(text) => {
            super::print_coloured(&text, colour::difference)?;
            Ok(ExitCode::from(DIFFERENT))
        }
        Err(error) => {
            let reason = format!("{error:#}");
            ambit_load::tell(format_args!("ambit: {}", printable_lines(&reason)));
            Ok(ExitCode::from(TROUBLE))
        }
    }
}

async fn differences(args: DiffArgs) -> Result<String> {
    let images = args.images.read()?;
    let (inputs, ignored) = (args.inputs.inputs(), args.ignored.unenforced());
    let manifests = change::load(&inputs, args.namespace.asked(), ignored)?;
    let client = Client::new(super::layout(&args.state));
    let existing = change::existing(&client).await?;
    change::check(&manifests, &existing, &change::known(&client, &images)?)?;
    let objects = manifests.objects.into_iter().map(|object| object.named).collect();
    let images = change::import(&client, images, true).await?;
    let shown = progress::shown("comparing");
    let Differences { differences, warnings } = client.differences(objects, images).await?;
    drop(shown);
    change::tell_warnings(&warnings);
    for note in differences.iter().filter_map(memory_alone) {
        eprintln!("note: {note}");
    }
    differences.iter().map(text).collect()
}

/// A difference in the form of `diff -u`; empty where a person would see none.
fn text(difference: &Difference) -> Result<String> {
    let Difference { object, before, after } = difference;
    let (mut before, mut after) = (before.clone().map(shown), shown(after.clone()));
    if object.plural == "secrets" {
        mask(before.as_mut(), &mut after);
    }
    let before = before.map_or(Ok(String::new()), |it| serde_saphyr::to_string(&it))?;
    let after = serde_saphyr::to_string(&after)?;
    let name = object.to_string();
    let diff = TextDiff::from_lines(&before, &after);
    let mut diff = diff.unified_diff();
    diff.context_radius(AROUND).header(&format!("live {name}"), &format!("applied {name}"));
    Ok(diff.to_string())
}

/// What apply would change of an object where no difference is shown: a note of it.
fn memory_alone(difference: &Difference) -> Option<String> {
    let Difference { object, before, after } = difference;
    let before = before.as_ref()?;
    let memory = |object: &Value| {
        let annotations = object.pointer("/metadata/annotations");
        annotations.and_then(|it| it.get(LAST_APPLIED)).cloned()
    };
    let is_it = memory(before) != memory(after) && shown(before.clone()) == shown(after.clone());
    is_it.then(|| format!("of {object} apply would change only which manifest it remembers"))
}

/// An object without what the machine writes into it.
fn shown(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        OF_MACHINE.iter().for_each(|field| drop(metadata.remove(*field)));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            // The object once more, with all values of a Secret.
            annotations.remove(LAST_APPLIED);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    object
}

/// Hides the values of a Secret, but not which of them change.
fn mask(mut before: Option<&mut Value>, after: &mut Value) {
    for field in ["data", "stringData"] {
        let new = after.get(field).cloned();
        let old = before.as_ref().and_then(|it| it.get(field)).cloned();
        if let Some(it) = before.as_mut().and_then(|it| it.get_mut(field)) {
            hide(it, new.as_ref(), "*** (before)");
        }
        if let Some(it) = after.get_mut(field) {
            hide(it, old.as_ref(), "*** (after)");
        }
    }
}

/// Hides values; `word` stands for those that the other has, too, and has otherwise.
fn hide(values: &mut Value, other: Option<&Value>, word: &str) {
    let Some(fields) = values.as_object_mut() else {
        *values = json!("***");
        return;
    };
    for (key, value) in fields {
        let other = other.and_then(|it| it.get(key));
        *value = json!(if other.is_some_and(|it| it != value) { word } else { "***" });
    }
}

#[cfg(test)]
mod tests {
    use ambit_machine::objects::ObjectRef;
    use ambit_manifest::Kind;

    use super::*;

    fn check(kind: Kind, before: Option<Value>, after: Value, expected: &str) {
        let object = ObjectRef::new(kind, Some("app"), "web");
        let difference = Difference { object, before, after };
        assert_eq!(text(&difference).expect("text"), expected);
    }

    #[test]
    fn what_changes_is_shown_and_the_machines_own_is_not() {
        let web = |replicas: u64, version: &str| {
            json!({
                "metadata": {"name": "web", "resourceVersion": version},
                "spec": {"replicas": replicas}, "status": {"replicas": 1},
            })
        };
        check(Kind::Deployment, Some(web(1, "1")), web(1, "2"), "");
        let expected = "--- live Deployment app/web\n+++ applied Deployment app/web\n\
                        @@ -1,4 +1,4 @@\n metadata:\n   name: web\n spec:\n-  replicas: 1\n\
                        +  replicas: 2\n";
        check(Kind::Deployment, Some(web(1, "1")), web(2, "2"), expected);
        let expected = "--- live Deployment app/web\n+++ applied Deployment app/web\n\
                        @@ -0,0 +1,4 @@\n+metadata:\n+  name: web\n+spec:\n+  replicas: 2\n";
        check(Kind::Deployment, None, web(2, "2"), expected);
        let mut applied = web(1, "1");
        applied["metadata"]["annotations"] = json!({LAST_APPLIED: "{}"});
        check(Kind::Deployment, Some(applied.clone()), web(1, "1"), "");
        check(Kind::Deployment, Some(web(1, "1")), applied, "");
    }

    #[test]
    fn that_another_manifest_is_remembered_is_a_note() {
        let of = |memory: &str, replicas: u64| {
            let annotations = json!({LAST_APPLIED: memory});
            json!({"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}})
        };
        let check = |before: Option<Value>, after: Value, expected: Option<&str>| {
            let object = ObjectRef::new(Kind::Deployment, Some("app"), "web");
            let found = memory_alone(&Difference { object, before, after });
            assert_eq!(found.as_deref(), expected);
        };
        let note = "of Deployment app/web apply would change only which manifest it remembers";
        check(Some(of("a", 1)), of("b", 1), Some(note));
        check(Some(json!({"metadata": {}, "spec": {"replicas": 1}})), of("b", 1), Some(note));
        check(Some(of("a", 1)), of("a", 1), None);
        check(Some(of("a", 1)), of("b", 2), None);
        check(None, of("b", 1), None);
    }

    #[test]
    fn a_secret_stays_one() {
        let before = json!({"data": {"a": "c2FtZQ==", "b": "b2xk", "c": "Z29uZQ=="}});
        let after = json!({"data": {"a": "c2FtZQ==", "b": "bmV3", "d": "YWRkZWQ="}});
        let expected = "--- live Secret app/web\n+++ applied Secret app/web\n@@ -1,4 +1,4 @@\n \
                        data:\n   a: \"***\"\n-  b: \"*** (before)\"\n-  c: \"***\"\n\
                        +  b: \"*** (after)\"\n+  d: \"***\"\n";
        check(Kind::Secret, Some(before), after, expected);
    }
    #[test]
    fn a_secret_stays_one_where_its_fields_move_or_go() {
        let annotations = json!({LAST_APPLIED: "{\"data\": {\"a\": \"b2xk\"}}"});
        let before = json!({
            "metadata": {"annotations": annotations},
            "stringData": {"password": "*** plain"}, "data": {"a": "b2xk"},
        });
        let after = json!({"metadata": {}, "data": {"password": "cGxhaW4="}});
        let object = ObjectRef::new(Kind::Secret, Some("app"), "web");
        for (before, after) in [(Some(before.clone()), after.clone()), (Some(after), before)] {
            let text = text(&Difference { object: object.clone(), before, after }).expect("text");
            assert!(text.contains("password: \"***\""), "{text}");
            let words = ["plain", "b2xk", "cGxhaW4", "last-applied"];
            assert!(!words.iter().any(|it| text.contains(it)), "{text}");
        }
    }
}
