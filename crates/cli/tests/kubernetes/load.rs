//! The everyday load by which every disturbance is judged, from a client's pod.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ambit_load::{LongResult, Report};
use serde::de::DeserializeOwned;

use crate::cluster::{Cluster, Namespace, until};

/// Connections that last.
pub(crate) const LONG: usize = 100;
/// Connections that carry requests one after another.
pub(crate) const KEPT: usize = 10;

/// The client on the server's node.
const NEAR: &str = "near";

/// Failures further apart than this have different causes.
const SPELL_GAP_MS: u64 = 500;

/// 200 requests per second on 10 connections, 10 new connections per second, and 100 connections
/// that last, from another node; and 200 requests per second on 10 connections of the server's own
/// node, whose bytes the kernel may move past the proxy.
pub(crate) struct Everyday {
    kept: Running,
    near: Running,
    fresh: Running,
    long: Running,
}

/// What became of [`Everyday`].
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) kept: Report,
    pub(crate) near: Report,
    pub(crate) fresh: Report,
    pub(crate) long: LongResult,
}

impl Everyday {
    /// The programs that it needs: a client on each node, the servers on one.
    pub(crate) fn deploy(namespace: &Namespace) {
        namespace.run("web", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
        namespace.run("echo", "n2", &["sample", "tcp-echo", "--listen", "[::]:8080"]);
        for (client, node) in [("load", "n1"), (NEAR, "n2")] {
            namespace.run(client, node, &["sample", "sleep"]);
            namespace.await_served(client, "http://web:8080/");
        }
    }

    /// Starts it, and returns when all connections are open.
    pub(crate) fn start(cluster: &Cluster, namespace: &Namespace, seconds: u32) -> Self {
        let start_in =
            |client: &str, words: String| Running::start_in(cluster, namespace, client, &words);
        let start = |words: String| start_in("load", words);
        let web = "load http://web:8080/?size=200 --keep-going --output json";
        let long =
            start(format!("lab-load long echo:8080 --connections {LONG} --seconds {seconds}"));
        let steady = format!("{web} --rate 200 --connections {KEPT} --duration {seconds}s");
        let (kept, near) = (start(steady.clone()), start_in(NEAR, steady));
        let fresh = start(format!("{web} --rate 10 --connections 2 --close --duration {seconds}s"));
        until("the load's connections stand", || {
            let established = namespace.established("load", 8080);
            established >= LONG + KEPT && namespace.established(NEAR, 8080) >= KEPT
        });
        Self { kept, near, fresh, long }
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Outcome {
        let (kept, near) = (self.kept.end(), self.near.end());
        Outcome { kept, near, fresh: self.fresh.end(), long: self.long.end() }
    }
}

impl Outcome {
    /// Nothing was lost.
    pub(crate) fn assert_whole(&self, what: &str) {
        for load in [&self.kept, &self.near] {
            assert!(load.requests > 0, "{what}: {self:?}");
            assert_eq!((load.failed, load.connections_lost_idle), (0, 0), "{what}: {self:#?}");
        }
        assert!(self.fresh.requests > 0, "{what}: {self:?}");
        let lost = (self.fresh.failed, self.long.failed_to_open, self.long.cut);
        assert_eq!(lost, (0, 0, 0), "{what}: {self:#?}");
    }

    /// For how long new connections failed at a time, from the first failure to the last.
    pub(crate) fn dark(&self) -> Duration {
        let mut at = self.fresh.failed_at_ms.clone();
        at.sort_unstable();
        let spells = at.chunk_by(|one, next| next - one < SPELL_GAP_MS);
        let longest = spells.map(|spell| spell[spell.len() - 1] - spell[0]).max();
        Duration::from_millis(longest.unwrap_or(0))
    }

    /// One line of the table of events.
    pub(crate) fn summary(&self) -> String {
        format!(
            "long {} of {} cut; keep-alive {} of {} failed; near {} of {} failed; fresh {} of {} \
             failed, for {} ms, at {:?} ms; slowest fresh {} ms",
            self.long.cut,
            self.long.opened,
            self.kept.failed,
            self.kept.requests,
            self.near.failed,
            self.near.requests,
            self.fresh.failed,
            self.fresh.requests,
            self.dark().as_millis(),
            self.fresh.failed_at_ms,
            self.fresh.latency.max_us as u64 / 1000,
        )
    }
}

/// A load generator that runs in a client's pod.
pub(crate) struct Running {
    child: Option<Child>,
    words: String,
}

impl Running {
    pub(crate) fn start(cluster: &Cluster, namespace: &Namespace, words: &str) -> Self {
        Self::start_in(cluster, namespace, "load", words)
    }

    fn start_in(cluster: &Cluster, namespace: &Namespace, client: &str, words: &str) -> Self {
        let mut kubectl: Command = cluster.command();
        let pod = format!("deployment/{client}");
        kubectl.args(["-n", namespace.name, "exec", &pod, "--", "/ambit"]);
        kubectl.args(words.split_whitespace());
        // Over a WebSocket kubectl gives up after a minute without a word from the API server.
        kubectl.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false");
        let child = kubectl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child: Some(child), words: words.to_owned() }
    }

    pub(crate) fn end<T: DeserializeOwned>(mut self) -> T {
        let child = self.child.take().expect("it is waited for once");
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|wrong| panic!("{}: {wrong}: {error}", self.words))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ended = child.kill();
            let _ended = child.wait();
        }
    }
}
