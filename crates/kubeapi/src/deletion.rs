//! What a deletion depends on, and what it asks for.

use serde_json::Value;

use crate::query::{self, Query};
use crate::request::text;
use crate::status::Status;

/// What the deletion of an object depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    /// Only looks what would happen.
    pub is_dry_run: bool,
    /// How long a pod may take to end, if the client says so.
    pub grace_period_seconds: Option<i64>,
    /// Whether the client wants what the object owns to go first.
    pub is_foreground: bool,
}

impl Deletion {
    /// What the body says counts, or what the parameters say if there is none.
    pub(crate) fn read(body: Option<Value>, query: &Query<'_>) -> Result<Self, Status> {
        let Some(body) = body else {
            let grace = query.text("gracePeriodSeconds");
            let wrong = |_| Status::bad_request("gracePeriodSeconds is not a number");
            let grace = grace.map(|it| it.parse().map_err(wrong)).transpose()?;
            if query.text("orphanDependents").is_some() {
                check_propagation(query.flag("orphanDependents").then_some("Orphan"))?;
            }
            let is_foreground = check_propagation(query.text("propagationPolicy"))?;
            return Ok(Self { grace_period_seconds: grace, is_foreground, ..Self::default() });
        };
        let kind = text(&body, "/kind").unwrap_or("DeleteOptions");
        if !body.is_object() || kind != "DeleteOptions" {
            return Err(Status::bad_request("the body of the request is no DeleteOptions"));
        }
        let is_foreground = check_propagation(text(&body, "/propagationPolicy"))?;
        check_propagation((body["orphanDependents"] == true).then_some("Orphan"))?;
        let asked = body["dryRun"].as_array().into_iter().flatten();
        let asked: Vec<&str> = asked.map(|it| it.as_str().unwrap_or_default()).collect();
        let owned = |pointer| text(&body, pointer).map(str::to_owned);
        Ok(Self {
            uid: owned("/preconditions/uid"),
            version: owned("/preconditions/resourceVersion"),
            is_dry_run: query::is_dry_run(asked)?,
            grace_period_seconds: body["gracePeriodSeconds"].as_i64(),
            is_foreground,
        })
    }
}

/// Whether what an object owns is to go before it.
fn check_propagation(policy: Option<&str>) -> Result<bool, Status> {
    match policy {
        None | Some("Background") => Ok(false),
        Some("Foreground") => Ok(true),
        Some("Orphan") => Err(Status::bad_request(
            "propagationPolicy: Orphan is not served, what an object owns goes with it; use \
             Background",
        )),
        Some(other) => Err(Status::bad_request(format!(
            "propagationPolicy: {other:?} is none of Background and Foreground"
        ))),
    }
}
