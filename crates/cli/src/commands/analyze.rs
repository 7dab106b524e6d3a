//! `ambit analyze`: what is wrong or doubtful with manifests, or with the objects of a mesh that
//! runs.
//!
//! Nothing is judged here. Manifests are judged as `ambit apply` judges them, beside the objects of
//! the machine if one runs; of a mesh that runs, control's findings are printed.

use std::fmt::Write;
use std::process::ExitCode;

use ambit_machine::{Client, Record};
use ambit_manifest::{Errors, Typed, Unenforced};
use ambit_wire::admin::{ApiVersion, Severity};
use anyhow::Result;
use serde::Serialize;

use super::{change, mesh};
use crate::args::{AnalyzeArgs, Report};

/// What `ambit analyze -o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Analysis {
    /// The version of this form.
    api_version: ApiVersion,
    /// What was looked at.
    of: String,
    /// What is found, errors first.
    findings: Vec<Found>,
}

/// One finding.
#[derive(Debug, PartialEq, Serialize)]
struct Found {
    /// How bad it is.
    severity: Severity,
    /// The file and line, of a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    /// Which object: `Kind NAMESPACE/NAME`.
    object: String,
    /// The field, of a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The problem.
    what: String,
    /// What to do.
    remedy: String,
}

/// Prints what is found; fails if any of it is an error.
pub(super) async fn analyze(args: AnalyzeArgs) -> Result<ExitCode> {
    let inputs = args.inputs.inputs();
    let mut analysis = if inputs.is_empty() {
        of_mesh(&args).await?
    } else {
        let (of, existing) = surroundings(&args).await?;
        let findings = of_manifests(&inputs, args.namespace.asked(), &existing);
        Analysis { api_version: ApiVersion, of, findings }
    };
    analysis.findings.sort_by_key(|it| it.severity);
    match args.output {
        Report::Json => super::print_json(&analysis)?,
        Report::Text => super::print_text(&text(&analysis))?,
    }
    let has_error = analysis.findings.iter().any(|it| it.severity == Severity::Error);
    Ok(if has_error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The findings of a mesh that runs.
async fn of_mesh(args: &AnalyzeArgs) -> Result<Analysis> {
    let status = mesh::find(&args.state, &args.kube).await?.status().await?;
    let findings = status.findings.into_iter().map(|it| Found {
        severity: it.severity,
        location: None,
        object: it.object,
        field: None,
        what: it.what,
        remedy: it.remedy,
    });
    let of = "the running mesh".to_owned();
    Ok(Analysis { api_version: ApiVersion, of, findings: findings.collect() })
}

/// The objects of the machine, if one runs: manifests may refer to them.
async fn surroundings(args: &AnalyzeArgs) -> Result<(String, Vec<Typed>)> {
    let layout = super::layout(&args.state);
    let is_asked = args.state.state.is_some();
    if !is_asked && Record::read(&layout).is_err() {
        return Ok(("the manifests alone".to_owned(), Vec::new()));
    }
    let existing = change::existing(&Client::new(layout)).await?;
    Ok(("the manifests beside the objects of the machine".to_owned(), existing))
}

fn of_manifests(
    inputs: &[ambit_manifest::Input],
    namespace: Option<&str>,
    existing: &[Typed],
) -> Vec<Found> {
    let found = |severity| {
        move |it: ambit_manifest::Finding| Found {
            severity,
            location: Some(it.location.to_string()),
            object: it.object,
            field: Some(it.field).filter(|it| !it.is_empty()),
            what: it.what,
            remedy: it.remedy,
        }
    };
    let (errors, warnings) = match ambit_manifest::load_in(inputs, namespace, Unenforced::Refused) {
        Err(Errors(errors)) => (errors, Vec::new()),
        Ok(manifests) => {
            let (errors, surprises) = match manifests.check(existing) {
                Ok(surprises) => (Vec::new(), surprises),
                Err(Errors(errors)) => (errors, Vec::new()),
            };
            (errors, manifests.warnings.into_iter().chain(surprises).collect())
        }
    };
    let errors = errors.into_iter().map(found(Severity::Error));
    errors.chain(warnings.into_iter().map(found(Severity::Warning))).collect()
}

fn text(analysis: &Analysis) -> String {
    let mut text = String::new();
    for Found { severity, location, object, field, what, remedy } in &analysis.findings {
        let place = [location.as_deref(), Some(object.as_str()), field.as_deref()];
        let place: Vec<&str> = place.into_iter().flatten().filter(|it| !it.is_empty()).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{severity}: {}: {what}; {remedy}", place.join(": "));
    }
    let count = |severity| analysis.findings.iter().filter(|it| it.severity == severity).count();
    let of = &analysis.of;
    let _ = match (count(Severity::Error), count(Severity::Warning)) {
        (0, 0) => writeln!(text, "{of}: nothing is found"),
        (errors, warnings) => {
            let (errors, warnings) = (counted(errors, "error"), counted(warnings, "warning"));
            writeln!(text, "{of}: {errors}, {warnings}")
        }
    };
    text
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use ambit_manifest::Input;

    use super::*;

    #[test]
    fn manifests_are_judged_without_a_mesh() {
        let check = |manifest: &str, expected: &[(Severity, &str, &str)]| {
            let input = Input::Text { name: "a.yaml".to_owned(), text: manifest.to_owned() };
            let found = of_manifests(&[input], None, &[]);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, (severity, field, what)) in found.iter().zip(expected) {
                assert_eq!((found.severity, found.field.as_deref()), (*severity, Some(*field)));
                assert!(found.what.contains(what), "{found:?}");
                assert!(found.location.as_ref().is_some_and(|it| it.starts_with("a.yaml:")));
            }
        };
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                       spec: {selector: {app: nobody}, ports: [{port: 80}]}\n";
        check(service, &[(Severity::Warning, "spec.selector", "")]);
        check(
            &service.replace("port: 80", "port: 0"),
            &[(Severity::Error, "spec.ports[0].port", "")],
        );
    }

    #[test]
    fn findings_are_lines_with_a_sum() {
        let found = |severity, location: Option<&str>, field: Option<&str>| Found {
            severity,
            location: location.map(str::to_owned),
            object: "Service app/web".to_owned(),
            field: field.map(str::to_owned),
            what: "w".to_owned(),
            remedy: "r".to_owned(),
        };
        let mut analysis = Analysis {
            api_version: ApiVersion,
            of: "the manifests alone".to_owned(),
            findings: vec![
                found(Severity::Error, Some("a.yaml:1"), Some("spec")),
                found(Severity::Warning, None, None),
            ],
        };
        let expected = "error: a.yaml:1: Service app/web: spec: w; r\n\
                        warning: Service app/web: w; r\n\
                        the manifests alone: 1 error, 1 warning\n";
        assert_eq!(text(&analysis), expected);
        insta::assert_snapshot!(serde_json::to_string_pretty(&analysis).expect("JSON"));
        analysis.findings.clear();
        assert_eq!(text(&analysis), "the manifests alone: nothing is found\n");
    }
}
