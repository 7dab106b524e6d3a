//! Waiting until the mesh has taken a change up.
//!
//! A change is in effect once control has read it, every connected proxy has acknowledged what
//! control made of it, and every pod is captured or released as its labels say. The change is
//! stored before this file is asked: what takes too long is a warning here, never an error.

use std::path::Path;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::Value;

use super::get::{ask, request};

/// How long the mesh may take.
const LIMIT: Duration = Duration::from_secs(15);
/// How often it is asked.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// A wait that is shorter is not worth a word.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Names that a message lists; the rest is counted.
const NAMES_MAX: usize = 3;

/// Waits until everything that is stored is in effect, and tells what is missing as that changes.
pub(super) async fn wait(control: &Path, mut tell: impl FnMut(&str)) {
    let start = Instant::now();
    let mut mark = None;
    let mut told = String::new();
    loop {
        let missing = match missing(control, &mut mark).await {
            Ok(None) => return,
            Ok(Some(missing)) => missing,
            Err(error) => {
                // A control that is started anew knows nothing of an old mark.
                mark = None;
                format!("control does not answer: {error:#}")
            }
        };
        if start.elapsed() > LIMIT {
            let seconds = LIMIT.as_secs();
            eprintln!(
                "warning: the change is stored, but not in effect after {seconds} s: {missing}; \
                 see `ambit status`"
            );
            return;
        }
        if start.elapsed() > TELL_AFTER && missing != told {
            tell(&missing);
            told = missing;
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

/// What is missing still. The first question sets the mark that control has to reach.
async fn missing(control: &Path, mark: &mut Option<u64>) -> anyhow::Result<Option<String>> {
    let wanted = match *mark {
        Some(mark) => mark,
        None => {
            let set = request(control, Method::POST, "/mark").await?;
            *mark.insert(set["mark"].as_u64().unwrap_or_default())
        }
    };
    let status = ask(control, "/status").await?;
    let reached = status.pointer("/registry/mark").and_then(Value::as_u64).unwrap_or_default();
    if reached < wanted {
        return Ok(Some("control has not read the change yet".to_owned()));
    }
    Ok(unsettled(&status))
}

/// What of the mesh is not as control wants it, by control's own words.
fn unsettled(status: &Value) -> Option<String> {
    let lists = [
        ("/discovery/behind", "node"),
        ("/pods/waitingForCapture", "waiting for capture:"),
        ("/pods/waitingForRelease", "waiting for release:"),
    ];
    lists.into_iter().find_map(|(pointer, what)| {
        let items = status.pointer(pointer)?.as_array().filter(|items| !items.is_empty())?;
        let names: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
        let shown = names[..names.len().min(NAMES_MAX)].join(", ");
        let more = match names.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("{what} {shown}{more}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let check = |status: Value, expected: Option<&str>| {
            assert_eq!(unsettled(&status).as_deref(), expected, "{status}");
        };
        check(json!({}), None);
        check(json!({"discovery": {"behind": []}, "pods": {"waitingForCapture": []}}), None);
        let behind = json!({"behind": ["node-1: its proxy has not acknowledged"]});
        check(
            json!({"discovery": behind, "pods": {"waitingForCapture": ["a/b"]}}),
            Some("node node-1: its proxy has not acknowledged"),
        );
        check(
            json!({"pods": {"waitingForCapture": ["a/b", "a/c", "a/d", "a/e"]}}),
            Some("waiting for capture: a/b, a/c, a/d and 1 more"),
        );
        check(json!({"pods": {"waitingForRelease": ["a/b"]}}), Some("waiting for release: a/b"));
    }
}
