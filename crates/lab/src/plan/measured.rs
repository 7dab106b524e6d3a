//! The node proxies' CPU as a bench run measured it, in place of a guess.
//!
//! A run's `raw.json` (below `bench/runs`) says what one request costs both nodes' proxies
//! together. Times the requests a second that the whole mesh is expected to carry, that is the CPU
//! of all node proxies. Nothing here may take a number for what it is not: without the exact metric
//! there is an error.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// The metric that is read.
const METRIC: &str = "proxy CPU µs/request";
/// Fields of a comparison that are no side.
const NOT_SIDES: [&str; 5] = ["row", "metric", "interval", "ratio", "no mesh"];
/// Most requests a second that are planned for.
pub const RATE_MAX: u64 = 1_000_000_000;
/// Most that one request may cost, a second.
const COST_MAX_US: f64 = 1e6;

/// What a request costs, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Which file.
    pub file: String,
    /// Which row of the run.
    pub row: String,
    /// Whose proxies.
    pub side: String,
    /// Median CPU of both proxies for one request.
    pub cpu_per_request_ns: u64,
    /// Requests a second in the whole mesh.
    pub requests_per_second: u64,
}

/// Why a run says nothing of use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasuredError {
    /// It holds no such comparison.
    #[error(
        "holds no comparison of `{METRIC}`; give the raw.json that `cargo xtask bench peers` \
         wrote below bench/runs"
    )]
    NoMetric,
    /// Another row was asked for than there is.
    #[error("has no row `{0}` with `{METRIC}`; it has {rows}", rows = .1.join(", "))]
    NoRow(String, Vec<String>),
    /// Another side was asked for than there is.
    #[error("measured no side `{0}`; it has {sides}", sides = .1.join(", "))]
    NoSide(String, Vec<String>),
    /// Not a time.
    #[error("says that a request costs {0} µs; that is no measurement")]
    NotATime(String),
}

impl Measured {
    /// Reads a run: the median of `side` in `row`, or in its first row.
    pub fn read(
        file: &str,
        raw: &Value,
        row: Option<&str>,
        side: &str,
        requests_per_second: u64,
    ) -> Result<Self, MeasuredError> {
        let comparisons = raw["comparison"].as_array().into_iter().flatten();
        let rows: Vec<&Value> = comparisons.filter(|it| it["metric"] == METRIC).collect();
        let name = |it: &Value| it["row"].as_str().unwrap_or_default().to_owned();
        let first = rows.first().ok_or(MeasuredError::NoMetric)?;
        let found = match row {
            None => first,
            Some(row) => rows.iter().find(|it| it["row"] == row).ok_or_else(|| {
                let names = rows.iter().map(|it| format!("`{}`", name(it))).collect();
                MeasuredError::NoRow(row.to_owned(), names)
            })?,
        };
        let spread = found[side].as_array().filter(|_| !NOT_SIDES.contains(&side));
        let median = spread.and_then(|it| it.get(1)).ok_or_else(|| {
            let fields = found.as_object().into_iter().flatten();
            let sides = fields
                .filter(|(key, value)| value.is_array() && !NOT_SIDES.contains(&key.as_str()));
            let sides = sides.map(|(key, _)| key.clone()).collect();
            MeasuredError::NoSide(side.to_owned(), sides)
        })?;
        let microseconds = median.as_f64().filter(|it| (0.0..=COST_MAX_US).contains(it));
        let microseconds =
            microseconds.ok_or_else(|| MeasuredError::NotATime(median.to_string()))?;
        Ok(Self {
            file: file.to_owned(),
            row: name(found),
            side: side.to_owned(),
            cpu_per_request_ns: (microseconds * 1000.0).round() as u64,
            requests_per_second,
        })
    }

    /// CPU of all node proxies together.
    pub fn millicores(&self) -> u64 {
        // A millicore is a million nanoseconds a second.
        (self.cpu_per_request_ns * self.requests_per_second).div_ceil(1_000_000)
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, row, side, cpu_per_request_ns: ns, requests_per_second: rps } = self;
        let (whole, tenth) = (ns / 1000, ns % 1000 / 100);
        let millicores = self.millicores();
        write!(f, "{whole}.{tenth} µs of CPU per request for both proxies (median of {side} in ")?;
        write!(f, "\"{row}\", {file}) x {rps} requests/s in the whole mesh = {millicores}m for ")?;
        f.write_str("all ztunnels together, taken to be spread evenly over the nodes")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Value {
        let line = |row: &str, metric: &str, ambit: f64| {
            json!({
                "row": row, "judged": true, "metric": metric, "no mesh": [0.0, 0.0, 0.0],
                "ambit": [50.0, ambit, 70.0], "ztunnel": [100.0, 110.0, 120.0],
                "ratio": 0.5, "interval": [0.4, 0.6], "verdict": "better",
            })
        };
        json!({"comparison": [
            line("1000 rps", "p50 µs", 300.0),
            line("1000 rps", METRIC, 62.14),
            line("saturation", METRIC, 40.0),
        ]})
    }

    #[test]
    fn cpu_is_cost_times_rate() {
        let check = |row, side, cost_ns, millicores| {
            let read = Measured::read("raw.json", &run(), row, side, 112_500).unwrap();
            assert_eq!((read.cpu_per_request_ns, read.millicores()), (cost_ns, millicores));
        };
        check(None, "ambit", 62_140, 6991);
        check(Some("saturation"), "ambit", 40_000, 4500);
        check(None, "ztunnel", 110_000, 12_375);
    }

    #[test]
    fn a_run_that_does_not_say_is_an_error() {
        let check = |raw: &Value, row, side, expected: &str| {
            let error = Measured::read("raw.json", raw, row, side, 1).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&json!({}), None, "ambit", "holds no comparison of `proxy CPU µs/request`");
        check(&run(), Some("x"), "ambit", "no row `x` with `proxy CPU µs/request`; it has `1000");
        check(&run(), None, "no mesh", "no side `no mesh`; it has ambit, ztunnel");
        let odd = json!({"comparison": [{"row": "r", "metric": METRIC, "ambit": [1, -2, 3]}]});
        check(&odd, None, "ambit", "costs -2 µs");
    }
}
