//! How long each step took: printed when it ends, in a table at the end, and as JSON.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Where the table is written as JSON, below the target directory.
const REPORT: &str = "ci-steps.json";

/// The steps of one run, in the order in which they ended.
#[derive(Debug)]
pub(crate) struct Steps {
    start: Instant,
    ended: Mutex<Vec<Step>>,
}

#[derive(Clone, Debug)]
struct Step {
    name: String,
    /// Seconds from the start of the run.
    began_s: f64,
    took_s: f64,
    is_good: bool,
}

impl Default for Steps {
    fn default() -> Self {
        Self { start: Instant::now(), ended: Mutex::default() }
    }
}

impl Steps {
    /// Runs one step and keeps how long it took.
    pub(crate) fn timed<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("== {name}");
        let began_s = self.start.elapsed().as_secs_f64();
        let outcome = work();
        let took_s = self.start.elapsed().as_secs_f64() - began_s;
        let verdict = if outcome.is_ok() { "" } else { ", failed" };
        println!("== {name}: {took_s:.0} s{verdict}");
        let step = Step { name: name.to_owned(), began_s, took_s, is_good: outcome.is_ok() };
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(step);
        outcome.with_context(|| name.to_owned())
    }

    /// Prints the table, and writes it as JSON.
    pub(super) fn report(&self, is_good: bool) -> Result<()> {
        let mut steps = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        steps.sort_by(|one, other| one.began_s.total_cmp(&other.began_s));
        let all_s = self.start.elapsed().as_secs_f64();
        print!("{}", table(&steps, all_s));
        let path = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        std::fs::create_dir_all(&path).context("make the target directory")?;
        let text = format!("{:#}\n", report(&steps, all_s, is_good));
        std::fs::write(path.join(REPORT), text).context("write the seconds of the steps")
    }
}

fn table(steps: &[Step], all_s: f64) -> String {
    let mut text = String::from("\n  from s   took s   step\n");
    for Step { name, began_s, took_s, is_good } in steps {
        let verdict = if *is_good { "" } else { " (failed)" };
        text.push_str(&format!("{began_s:8.0} {took_s:8.0}   {name}{verdict}\n"));
    }
    text.push_str(&format!("         {all_s:8.0}   all\n\n"));
    text
}

fn report(steps: &[Step], all_s: f64, is_good: bool) -> Value {
    let steps = steps.iter().map(|step| {
        json!({
            "name": step.name,
            "began_s": rounded(step.began_s),
            "took_s": rounded(step.took_s),
            "passed": step.is_good,
        })
    });
    json!({ "passed": is_good, "seconds": rounded(all_s), "steps": steps.collect::<Vec<_>>() })
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_kept_and_named() {
        let steps = Steps::default();
        assert!(steps.timed("lint", || Ok(1)).is_ok_and(|it| it == 1));
        let error = steps
            .timed("docs", || Err::<(), _>(anyhow::anyhow!("no")))
            .map_err(|it| format!("{it:#}"));
        assert_eq!(error, Err("docs: no".to_owned()));
        let ended = steps.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(table(&ended, 2.0).contains("docs (failed)"));
        let value = report(&ended, 2.04, false);
        assert_eq!(value["steps"][1]["passed"], false);
        assert_eq!(value["seconds"], 2.0);
    }
}
