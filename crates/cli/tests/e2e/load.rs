//! Load that runs in a pod while a test does something, and its report.

use std::process::Child;

use ambit_load::{BulkResult, LongResult, Report, SeenResult};
use serde::de::DeserializeOwned;

use crate::machine::Machine;

/// A load generator that runs.
pub(crate) struct Load {
    child: Option<Child>,
    what: String,
}

impl Load {
    pub(crate) fn new(child: Child, what: String) -> Self {
        Self { child: Some(child), what }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("it is waited for once");
        child.try_wait().expect("a child can be waited for").is_some()
    }

    fn end<T: DeserializeOwned>(mut self) -> T {
        let child = self.child.take().expect("it is waited for once");
        let output = child.wait_with_output().expect("a child can be waited for");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}", self.what);
        let result = serde_json::from_slice(&output.stdout);
        result.unwrap_or_else(|wrong| panic!("{}: {wrong}: {error}", self.what))
    }

    /// What came of requests.
    pub(crate) fn http(self) -> Report {
        self.end()
    }

    /// What came of connections that last.
    pub(crate) fn long(self) -> LongResult {
        self.end()
    }

    /// What came of looking for changes.
    pub(crate) fn seen(self) -> SeenResult {
        self.end()
    }

    /// What came of a transfer.
    pub(crate) fn bulk(self) -> BulkResult {
        self.end()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The machine's end is the load's end; only the command that waits for it has to go.
        if let Some(mut child) = self.child.take() {
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// The load of the proof: 200 requests per second on 10 connections, 10 new connections per second,
/// and 100 connections that last.
pub(crate) struct Everyday {
    kept: Load,
    fresh: Load,
    long: Load,
}

/// Connections of [`Everyday`] that last.
pub(crate) const LONG: usize = 100;
/// Connections of [`Everyday`] that carry requests one after another.
pub(crate) const KEPT: usize = 10;

/// What became of [`Everyday`].
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) kept: Report,
    pub(crate) fresh: Report,
    pub(crate) long: LongResult,
}

impl Everyday {
    /// Starts it, and returns when all connections are open.
    pub(crate) fn start(machine: &Machine, seconds: f64) -> Self {
        let load = |words: &str| machine.load("client/load", words);
        let web = "load http://web.app/?size=200";
        let long = load(&format!("long echo.app:9000 --connections {LONG} --seconds {seconds}"));
        let kept = load(&format!("{web} --rate 200 --connections {KEPT} --duration {seconds}s"));
        let fresh = load(&format!("{web} --rate 10 --connections 2 --close --duration {seconds}s"));
        machine.wait("the load runs", crate::machine::SETTLE_TIMEOUT, || {
            machine.established("client/load", 9000) == LONG
                && machine.established("client/load", 80) >= KEPT
        });
        Self { kept, fresh, long }
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Outcome {
        Outcome { kept: self.kept.http(), fresh: self.fresh.http(), long: self.long.long() }
    }
}

impl Outcome {
    /// Nothing was lost.
    pub(crate) fn assert_whole(&self, what: &str) {
        assert!(self.kept.requests > 0 && self.fresh.requests > 0, "{what}: {self:?}");
        let kept = self.kept.failed + self.kept.connections_lost_idle;
        let lost = (kept, self.fresh.failed, self.long.failed_to_open, self.long.cut);
        assert_eq!(lost, (0, 0, 0, 0), "{what}: {self:#?}");
    }

    /// One line for the reader of the run.
    pub(crate) fn summary(&self) -> String {
        format!(
            "kept {}/{} failed, slowest {} ms; fresh {}/{} failed, slowest {} ms; long {} cut, \
             slowest ping {} ms",
            self.kept.failed,
            self.kept.requests,
            self.kept.latency.max_us as u64 / 1000,
            self.fresh.failed,
            self.fresh.requests,
            self.fresh.latency.max_us as u64 / 1000,
            self.long.cut,
            self.long.slowest_ping_us / 1000
        )
    }
}
