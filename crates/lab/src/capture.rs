//! `ambit lab-capture`: a packet capture of one of a machine's own interfaces.
//!
//! It enters the namespaces of the machine's first process, says `started`, captures until its
//! standard input closes, and prints a summary. It sees the machine's fabric and nothing else.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use ambit_net::capture::Capture;
use ambit_net::namespace::NetNs;
use ambit_net::sys::process::{self, Namespaces};
use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::{Deserialize, Serialize};

/// The largest file a capture may write.
const LIMIT_BYTES: u64 = 1 << 30;
/// What the child says once frames are being written.
const STARTED: &str = "started";

#[derive(Debug, Parser)]
#[command(name = "ambit lab-capture", about = "Captures packets inside a machine")]
struct Args {
    /// A process in the namespaces to enter.
    #[arg(long)]
    pid: i32,
    /// Enter its user namespace first.
    #[arg(long)]
    rootless: bool,
    /// The interface to listen at.
    #[arg(long)]
    interface: String,
    /// The file to write.
    #[arg(long)]
    file: PathBuf,
}

/// How a capture went. Evidence needs both counts of missing frames to be 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// Frames in the file.
    pub frames: u64,
    /// Frames that came too fast.
    pub dropped: u64,
    /// Frames beyond the largest size of the file.
    pub over_limit: u64,
}

/// Runs the hidden subcommand.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    let name = OsString::from("ambit lab-capture");
    let args = Args::try_parse_from(std::iter::once(&name).chain(words))?;
    if args.rootless {
        let user = std::fs::File::open(format!("/proc/{}/ns/user", args.pid));
        let user = user.context("open the machine's user namespace")?;
        process::enter(&user, Namespaces::USER).context("enter the machine's user namespace")?;
    }
    let namespace = NetNs::of_pid(args.pid).context("open the machine's network namespace")?;
    let capture = Capture::start(&namespace, &args.interface, &args.file, LIMIT_BYTES);
    let capture = capture.with_context(|| format!("capture at {}", args.interface))?;
    println!("{STARTED}");
    std::io::stdout().flush().context("say that it started")?;
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).context("wait for the end")?;
    let summary = capture.stop().context("end the capture")?;
    let report = CaptureReport {
        frames: summary.frames,
        dropped: summary.dropped,
        over_limit: summary.over_limit,
    };
    println!("{}", serde_json::to_string(&report).context("write the summary")?);
    Ok(ExitCode::SUCCESS)
}

/// A capture that runs in a process of its own; ends with [`RunningCapture::stop`].
#[derive(Debug)]
pub struct RunningCapture {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl RunningCapture {
    /// Starts `binary lab-capture` at an interface of the machine whose first process is `pid`.
    pub fn start(
        binary: &Path,
        pid: i32,
        rootless: bool,
        interface: &str,
        file: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        command.arg("lab-capture").args(["--pid", &pid.to_string(), "--interface", interface]);
        command.arg("--file").arg(file);
        if rootless {
            command.arg("--rootless");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start the packet capture")?;
        let output = child.stdout.take().context("the capture's output is a pipe")?;
        let mut running = Self { child, output: BufReader::new(output) };
        if running.line()?.trim_end() != STARTED {
            bail!("the packet capture did not start");
        }
        Ok(running)
    }

    /// Ends the capture; the file is complete afterwards.
    pub fn stop(mut self) -> Result<CaptureReport> {
        drop(self.child.stdin.take());
        let summary = self.line()?;
        let status = self.child.wait().context("wait for the packet capture")?;
        if !status.success() {
            bail!("the packet capture failed: {status}");
        }
        serde_json::from_str(&summary).context("read the capture's summary")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("read what the packet capture says")?;
        Ok(line)
    }
}

impl Drop for RunningCapture {
    fn drop(&mut self) {
        // Closing its input ends it; whoever dropped it early is not interested in the summary.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
