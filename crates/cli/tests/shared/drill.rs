//! The load of the drills, and what became of it: requests of HTTP/1.1 and HTTP/2, new connections,
//! WebSockets and gRPC streams, all through a waypoint.
//!
//! A waypoint that leaves asks its clients to connect again and waits for what is under way. What
//! has not ended at the end of its drain is cut: of the load here, WebSockets and gRPC streams.

use std::time::Duration;

use ambit_load::Report;

/// How long the load runs around an event that is over soon.
pub(crate) const SHORT_S: u32 = 8;
/// A waypoint's drain, with a moment for it to begin and to end.
pub(crate) const DRAIN_S: u32 = 35;
/// Nothing that lasts is cut earlier than this after its waypoint was told to end.
const DRAIN: Duration = Duration::from_secs(24);

/// Connections of the load, by what they carry.
const HTTP2: usize = 4;
const STREAMS_OF_HTTP2: usize = 4;
const HTTP1: usize = 5;
const FRESH: usize = 2;
const SOCKETS: usize = 100;
const GRPC: usize = 2;
const STREAMS_OF_GRPC: usize = 5;
/// Connections that the load keeps to the port of HTTP/1.1; those of gRPC have a port of their own,
/// because a waypoint speaks to a port's endpoints what the port declares.
pub(crate) const CONNECTIONS: usize = HTTP2 + HTTP1 + SOCKETS;
/// Loads at the same time.
pub(crate) const LOADS: usize = 5;

/// What became of the load.
#[derive(Debug)]
pub(crate) struct Outcome {
    http2: Report,
    http1: Report,
    fresh: Report,
    sockets: Report,
    grpc: Report,
}

/// The words of `ambit load` for each part of the load.
pub(crate) fn loads(web: &str, grpc: &str, seconds: u32) -> [String; LOADS] {
    let url = format!("http://{web}/?size=200");
    let all = [
        format!("{url} --http2 --connections {HTTP2} --streams {STREAMS_OF_HTTP2} --rate 200/s"),
        format!("{url} --connections {HTTP1} --rate 50/s"),
        format!("{url} --connections {FRESH} --close --rate 10/s"),
        format!("ws://{web}/ --connections {SOCKETS} --rate 100/s"),
        format!(
            "http://{grpc}/drill.Echo/Both --protocol grpc-stream --connections {GRPC} --streams \
             {STREAMS_OF_GRPC} --rate 50/s"
        ),
    ];
    all.map(|words| format!("load {words} --duration {seconds}s"))
}

impl Outcome {
    /// Of the reports, in the order of [`loads`].
    pub(crate) fn new([http2, http1, fresh, sockets, grpc]: [Report; LOADS]) -> Self {
        Self { http2, http1, fresh, sockets, grpc }
    }

    fn requests(&self) -> [&Report; 3] {
        [&self.http2, &self.http1, &self.fresh]
    }

    fn lasting(&self) -> [&Report; 2] {
        [&self.sockets, &self.grpc]
    }

    /// No request failed.
    fn assert_answered(&self, what: &str) {
        for report in self.requests() {
            assert!(report.requests > 0, "{what}: {report:#?}");
            assert_eq!((report.failed, report.unsent), (0, 0), "{what}: {report:#?}");
        }
    }

    /// Nothing was lost or cut.
    pub(crate) fn assert_whole(&self, what: &str) {
        self.assert_answered(what);
        for report in self.lasting() {
            assert!(report.requests > 0 && report.streams_opened > 0, "{what}: {report:#?}");
            assert_eq!((report.failed, report.streams_cut), (0, 0), "{what}: {report:#?}");
        }
    }

    /// No request failed. What lasts was cut at the end of a drain, as often as `pods` left one
    /// after the other.
    pub(crate) fn assert_drained(&self, pods: u64, what: &str) {
        self.assert_answered(what);
        self.assert_cut_at_most(pods, what);
        let lost = self.lasting().into_iter().flat_map(|report| &report.failed_at_ms).min();
        let lost = lost.map(|ms| Duration::from_millis(*ms));
        assert!(lost.is_none_or(|at| at >= DRAIN), "{what}: {self:#?}");
    }

    /// What was under way in one pod was lost with it, and nothing else.
    pub(crate) fn assert_lost_with_one(&self, what: &str) {
        let under_way = [HTTP2 * STREAMS_OF_HTTP2, HTTP1, FRESH];
        for (report, under_way) in self.requests().into_iter().zip(under_way) {
            assert!(report.failed <= under_way as u64, "{what}: {report:#?}");
        }
        let spread = |report: &Report| {
            let at = &report.failed_at_ms;
            at.iter().max().zip(at.iter().min()).map(|(last, first)| last - first)
        };
        let spread = self.requests().into_iter().filter_map(spread).max().unwrap_or(0);
        eprintln!("drill | {what} | first and last failure of a load {spread} ms apart");
        self.assert_cut_at_most(1, what);
        assert!(self.sockets.streams_cut > 0, "{what}: it carried nothing: {self:#?}");
    }

    /// Each thing that lasts was cut so often at most, and lost no message but one under way.
    fn assert_cut_at_most(&self, times: u64, what: &str) {
        let counts = [SOCKETS, GRPC * STREAMS_OF_GRPC];
        for (report, count) in self.lasting().into_iter().zip(counts) {
            assert!(report.streams_cut <= times * count as u64, "{what}: {report:#?}");
            assert!(report.failed <= report.streams_cut, "{what}: {report:#?}");
        }
    }

    /// A row of the table in docs/guide/tested.md, and the reasons of what failed.
    pub(crate) fn row(&self, what: &str) -> String {
        let requests: u64 = self.requests().iter().map(|it| it.requests).sum();
        let [http2, http1, fresh] = self.requests().map(|it| it.failed);
        let [sockets, grpc] = self.lasting().map(|it| {
            format!("{} cut, {} of {} messages lost", it.streams_cut, it.failed, it.requests)
        });
        let failed = |it: &&Report| it.failed > 0;
        let failed = self.requests().into_iter().chain(self.lasting()).filter(failed);
        let reasons: String = failed
            .map(|it| format!(" | {:?}: {:?} at {:?} ms", it.protocol, it.errors, it.failed_at_ms))
            .collect();
        format!(
            "drill | {what} | of {requests} requests {http2} of HTTP/2, {http1} of HTTP/1.1, \
             {fresh} on new connections failed | WebSockets: {sockets} | gRPC streams: {grpc}\
             {reasons}"
        )
    }
}
