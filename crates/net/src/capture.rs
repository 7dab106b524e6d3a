//! Packet captures as evidence: what really went over a wire between two nodes.
//!
//! [`Capture`] writes a classic pcap file that any tool reads; [`Trace`] reads it back, puts the TCP streams together
//! and says which bytes were TLS. It decrypts nothing and changes nothing.

use std::io;
use std::path::Path;

use crate::namespace::NetNs;

/// How a capture went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureSummary {
    /// Frames in the file.
    pub frames: u64,
    /// Size of the file.
    pub size_bytes: u64,
    /// Frames that the kernel dropped because the writer was too slow. Evidence needs 0.
    pub dropped: u64,
    /// Frames left out because the file had reached its limit. Evidence needs 0.
    pub over_limit: u64,
}

/// A running capture of one interface.
#[derive(Debug)]
pub struct Capture {}

impl Capture {
    /// Starts to write every frame of `interface` (in and out; for a bridge, every frame it forwards) to `path`.
    pub fn start(
        _namespace: &NetNs,
        _interface: &str,
        _path: &Path,
        _limit_bytes: u64,
    ) -> io::Result<Self> {
        unimplemented!()
    }

    /// Writes what has arrived, ends the capture and syncs the file.
    pub fn stop(self) -> io::Result<CaptureSummary> {
        unimplemented!()
    }
}

/// A capture read back.
#[derive(Debug)]
pub struct Trace {}

/// What went over one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSummary {
    /// Streams (one per direction) that carried payload.
    pub streams: usize,
    /// TCP payload in total.
    pub payload_bytes: u64,
    /// Bytes inside complete or started TLS records, headers included.
    pub tls_bytes: u64,
    /// Bytes that are not TLS, of streams captured from their start.
    pub other_bytes: u64,
    /// Streams whose start was not captured, so that nothing can be said of them. Evidence needs 0.
    pub partial_streams: usize,
    /// Application protocols that clients offered, each once.
    pub alpn: Vec<String>,
}

impl Trace {
    /// Reads a classic pcap file of Ethernet frames.
    pub fn read(_path: &Path) -> io::Result<Self> {
        unimplemented!()
    }

    /// How often `marker` occurs in the TCP payload, across segment borders.
    pub fn count_marker(&self, _marker: &[u8]) -> usize {
        unimplemented!()
    }

    /// TCP payload bytes by destination-or-source port pair's lower... service port.
    pub fn payload_by_port(&self) -> std::collections::BTreeMap<u16, u64> {
        unimplemented!()
    }

    /// What the streams from and to `port` consist of.
    pub fn tls_summary(&self, _port: u16) -> TlsSummary {
        unimplemented!()
    }
}
