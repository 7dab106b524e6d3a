//! Waits until a change is in effect in the mesh.
//!
//! A change is in effect once control has read it, every connected proxy has acknowledged the
//! resulting resources, and every pod is captured or released as its labels say. The change is
//! already stored: if it takes too long, that is a warning here, never an error.

use std::path::Path;
use std::time::{Duration, Instant};

use ambit_wire::admin::{Mark, Status, control};
use http::Method;

use super::ask::{self, Role};

/// How long the mesh may take.
const LIMIT: Duration = Duration::from_secs(15);
/// How often it is asked.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// A wait that is shorter is not worth a word.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Names that a message lists; the rest is counted.
const NAMES_MAX: usize = 3;

/// Waits until everything that is stored is in effect, and reports what is missing when that
/// changes. Answers whether it is.
pub(super) async fn wait(socket: &Path, mut tell: impl FnMut(&str)) -> bool {
    let control = Role { name: "control", socket };
    let start = Instant::now();
    let mut mark = None;
    let mut told = String::new();
    loop {
        let left = LIMIT.saturating_sub(start.elapsed()).max(ASK_INTERVAL);
        let missing = match missing(control, &mut mark, left).await {
            Ok(None) => return true,
            Ok(Some(missing)) => missing,
            Err(error) => {
                // A restarted control does not know an old mark.
                mark = None;
                format!("{error:#}")
            }
        };
        if start.elapsed() > LIMIT {
            let seconds = LIMIT.as_secs();
            ambit_load::tell(format_args!(
                "warning: the change is stored, but not in effect after {seconds} s: {missing}; \
                 see `ambit status`"
            ));
            return false;
        }
        if start.elapsed() > TELL_AFTER && missing != told {
            tell(&missing);
            told = missing;
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

/// What is missing still, by an answer that comes in time. The first question sets the mark that
/// control has to reach.
async fn missing(
    control: Role<'_>,
    mark: &mut Option<u64>,
    left: Duration,
) -> anyhow::Result<Option<String>> {
    let wanted = match *mark {
        Some(mark) => mark,
        None => {
            let set: Mark = ask::request(control, Method::POST, control::MARK, left).await?;
            *mark.insert(set.mark)
        }
    };
    let status: Status = ask::request(control, Method::GET, control::STATUS, left).await?;
    if status.registry.mark < wanted {
        return Ok(Some("control has not read the change yet".to_owned()));
    }
    Ok(unsettled(&status))
}

/// What of the mesh is not as control wants it, by control's own words.
fn unsettled(status: &Status) -> Option<String> {
    let lists = [
        (&status.discovery.behind, "node"),
        (&status.pods.waiting_for_capture, "waiting for capture:"),
        (&status.pods.waiting_for_release, "waiting for release:"),
    ];
    let told = lists.into_iter().find(|(names, _)| !names.is_empty());
    told.map(|(names, what)| {
        let shown = names[..names.len().min(NAMES_MAX)].join(", ");
        let more = match names.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{what} {shown}{more}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let check =
            |behind: &[&str], capture: &[&str], release: &[&str], expected: Option<&str>| {
                let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect();
                let mut status = Status::default();
                status.discovery.behind = texts(behind);
                status.pods.waiting_for_capture = texts(capture);
                status.pods.waiting_for_release = texts(release);
                assert_eq!(unsettled(&status).as_deref(), expected, "{status:?}");
            };
        check(&[], &[], &[], None);
        check(
            &["node-1: its proxy has not acknowledged"],
            &["a/b"],
            &[],
            Some("node node-1: its proxy has not acknowledged"),
        );
        check(
            &[],
            &["a/b", "a/c", "a/d", "a/e"],
            &[],
            Some("waiting for capture: a/b, a/c, a/d and 1 more"),
        );
        check(&[], &[], &["a/b"], Some("waiting for release: a/b"));
    }
}
