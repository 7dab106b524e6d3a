//! Packet captures as evidence: what was really sent between two nodes.
//!
//! [`Capture`] writes a classic pcap file that any tool reads; [`Trace`] reads it back, puts the
//! TCP streams together and says which bytes were TLS. It decrypts nothing and changes nothing.

mod pcap;
mod stream;
mod tls_records;
mod trace;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use stream::Stream;
pub use tls_records::TlsSummary;
pub use trace::Trace;

use crate::namespace::NetNs;
use crate::netlink::RouteSocket;
use crate::sys::{packet_socket, socket_option};

/// Frames wait here until they are written.
const QUEUE_BYTES: i32 = 64 << 20;

/// How long [`Capture::stop`] may take to be noticed.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// How a capture went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A running capture of one interface. Dropping it ends it as well, without a summary.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<io::Result<CaptureSummary>>>,
}

impl Capture {
    /// Starts to write every frame of `interface` (in and out; for a bridge, every frame it
    /// forwards) to `path`, which grows to at most `limit_bytes`.
    pub fn start(
        namespace: &NetNs,
        interface: &str,
        path: &Path,
        limit_bytes: u64,
    ) -> io::Result<Self> {
        let socket = namespace.run(|| open(interface))??;
        let file = File::create(path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let writer = std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || write_frames(&socket, file, limit_bytes, &stopped))?;
        Ok(Self { stop, writer: Some(writer) })
    }

    /// Writes what has arrived, ends the capture and syncs the file.
    pub fn stop(mut self) -> io::Result<CaptureSummary> {
        self.finish().expect("a capture ends once, by stop or by drop")
    }

    fn finish(&mut self) -> Option<io::Result<CaptureSummary>> {
        self.stop.store(true, Ordering::Relaxed);
        let writer = self.writer.take()?;
        Some(writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.finish() {
            tracing::warn!(%error, "an abandoned packet capture could not be written");
        }
    }
}

fn open(interface: &str) -> io::Result<OwnedFd> {
    let link = RouteSocket::open()
        .and_then(|mut netlink| netlink.require(interface, "capture packets"))
        .map_err(io::Error::other)?;
    let socket = packet_socket::open(link.index)?;
    socket_option::grow_receive_buffer(&socket, QUEUE_BYTES)?;
    packet_socket::set_receive_timeout(&socket, STOP_CHECK)?;
    Ok(socket)
}

fn write_frames(
    socket: &OwnedFd,
    file: File,
    limit_bytes: u64,
    stop: &AtomicBool,
) -> io::Result<CaptureSummary> {
    let mut summary = CaptureSummary::default();
    let mut out = BufWriter::new(file);
    let header = pcap::file_header();
    out.write_all(&header)?;
    summary.size_bytes = header.len() as u64;
    let mut buffer = vec![0; pcap::MAX_FRAME_BYTES];
    loop {
        // Read before the last look at the queue, so that nothing that came before stop is lost.
        let last = stop.load(Ordering::Relaxed);
        let length = match packet_socket::receive(socket, &mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && last => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let frame = &buffer[..length.min(buffer.len())];
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = pcap::frame_header(now, frame.len(), length);
        let size_bytes = summary.size_bytes + (header.len() + frame.len()) as u64;
        if size_bytes > limit_bytes {
            summary.over_limit += 1;
            continue;
        }
        out.write_all(&header)?;
        out.write_all(frame)?;
        summary.frames += 1;
        summary.size_bytes = size_bytes;
    }
    summary.dropped = packet_socket::dropped(socket)?.into();
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(summary)
}
