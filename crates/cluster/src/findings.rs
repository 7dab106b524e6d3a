//! What is wrong with a cluster: rules over [`Facts`], each a pure function.
//!
//! A rule names the object, says what is wrong with it and what to do. What it does not know it
//! does not judge; what could not be read is a finding of its own.

use ambit_words::labels::{AMBIENT, DATAPLANE_MODE};

mod health;
mod istio;
mod leaving;
mod members;
mod network_policy;
mod platform;
mod selector;
#[cfg(test)]
mod tests;
mod trust;

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::Facts;
use crate::facts::Stage;
use crate::json::{label, name, namespace};

/// Names that a finding lists; the rest is counted.
const NAMES_MAX: usize = 5;
/// Findings of one rule; the rest is counted in one more.
const SAME_RULE_MAX: usize = 20;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work, or will not.
    Error,
    /// Something may not work, or soon not.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Something that a user should know of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the rule, which stays the same over versions.
    pub rule: &'static str,
    /// Which object: `Kind namespace/name`.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
    /// What to do; empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.severity.name(), self.object, self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        write!(f, " [{}]", self.rule)
    }
}

/// Findings as rules report them.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add(
        &mut self,
        severity: Severity,
        rule: &'static str,
        object: impl Into<String>,
    ) -> &mut Self {
        let (what, remedy) = (String::new(), String::new());
        self.0.push(Finding { severity, rule, object: object.into(), what, remedy });
        self
    }

    fn error(&mut self, rule: &'static str, object: impl Into<String>) -> &mut Self {
        self.add(Severity::Error, rule, object)
    }

    fn warning(&mut self, rule: &'static str, object: impl Into<String>) -> &mut Self {
        self.add(Severity::Warning, rule, object)
    }

    fn info(&mut self, rule: &'static str, object: impl Into<String>) -> &mut Self {
        self.add(Severity::Info, rule, object)
    }

    /// What is wrong, and what to do.
    fn says(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        let last = self.0.last_mut().expect("a finding was added before");
        (last.what, last.remedy) = (what.into(), remedy.into());
    }
}

/// Judges a cluster; the worst comes first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut report = Report::default();
    // What is gone after an uninstall cannot be looked at again.
    let unknown = match facts.stage {
        Stage::Leaving => Severity::Error,
        Stage::Before | Stage::Running => Severity::Warning,
    };
    for (what, why) in &facts.unknown {
        report.add(unknown, "not-looked-at", what.clone()).says(why.clone(), "");
    }
    if facts.stage == Stage::Leaving {
        leaving::check(facts, &mut report);
    } else {
        facts.outdated.iter().for_each(|it| outdated(it, &mut report));
        platform::check(facts, &mut report);
        istio::check(facts, &mut report);
        network_policy::check(facts, &mut report);
    }
    if facts.stage == Stage::Running && health::is_installed(facts, &mut report) {
        health::check(facts, &mut report);
        trust::check(facts, &mut report);
        members::check(facts, &mut report);
    }
    let mut findings = bounded(report.0);
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// A definition whose objects cannot be read.
fn outdated((definition, versions): &(String, String), report: &mut Report) {
    report.error("old-definition", format!("CustomResourceDefinition {definition}")).says(
        format!("is served as {versions} only: its objects cannot be read, and control waits"),
        "kubectl apply --server-side --force-conflicts -f deploy/chart/crds/ (Helm leaves \
         definitions that it finds as they are)",
    );
}

/// Keeps of each rule as many findings as a person reads, and counts the rest.
fn bounded(findings: Vec<Finding>) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::new();
    let mut counts: Vec<(&'static str, Severity, usize)> = Vec::new();
    for finding in findings {
        let of_rule = |it: &&mut (&'static str, Severity, usize)| {
            (it.0, it.1) == (finding.rule, finding.severity)
        };
        match counts.iter_mut().find(of_rule) {
            Some((_, _, count)) => {
                *count += 1;
                if *count > SAME_RULE_MAX {
                    continue;
                }
            }
            None => counts.push((finding.rule, finding.severity, 1)),
        }
        kept.push(finding);
    }
    for (rule, severity, count) in counts {
        if let Some(more) = count.checked_sub(SAME_RULE_MAX).filter(|more| *more > 0) {
            let what = format!("{more} more findings of this rule");
            let object = String::from("others");
            kept.push(Finding { severity, rule, object, what, remedy: String::new() });
        }
    }
    kept
}

/// The first few names, and how many more there are.
pub(crate) fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_MAX).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// `Kind namespace/name` of an object.
fn object(kind: &str, object: &Value) -> String {
    match namespace(object) {
        "" => format!("{kind} {}", name(object)),
        namespace => format!("{kind} {namespace}/{}", name(object)),
    }
}

/// The namespaces whose label takes their pods into the mesh.
fn labelled_namespaces(facts: &Facts) -> Vec<&str> {
    let namespaces = facts.known(crate::facts::List::Namespaces).iter();
    let labelled = namespaces.filter(|it| label(it, DATAPLANE_MODE) == Some(AMBIENT));
    labelled.map(name).collect()
}

/// Whether a pod's labels, or its namespace's, take it into the mesh. Pods on their node's network
/// are left alone.
fn is_member(pod: &Value, labelled: &[&str]) -> bool {
    let is_meant = match label(pod, DATAPLANE_MODE) {
        Some(mode) => mode == AMBIENT,
        None => labelled.contains(&namespace(pod)),
    };
    is_meant && pod.pointer("/spec/hostNetwork") != Some(&Value::Bool(true))
}
