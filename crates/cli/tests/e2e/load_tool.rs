//! `ambit load` as a user calls it, also under the names of other tools; no machine, only loopback.

#![expect(clippy::unwrap_used, reason = "every function here is part of a test")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ambit_load::Report;
use serde_json::Value;

use crate::machine::binary;

/// A sample that answers after one to three milliseconds.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let words = ["sample", "timed", "--delay", "1ms..3ms", "--listen", "127.0.0.1:0"];
        let mut child = Command::new(binary()).args(words).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, address }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn load(words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("load").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a load says that is interrupted after a second and a half.
fn interrupted(words: &[&str]) -> Output {
    let child = load(words).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let pid = child.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    output
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A directory with the binary under other names.
fn names() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("load-names");
    std::fs::create_dir_all(&directory).unwrap();
    for name in ["vegeta", "fortio"] {
        let link = directory.join(name);
        let _none_yet = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(binary(), link).unwrap();
    }
    directory
}

#[test]
fn a_run_prints_what_was_asked_for() {
    let server = Server::start();
    let words = [&server.url(), "--rate", "200/s", "--duration", "500ms", "--output"];
    let print = |output| {
        let printed = load(&[&words[..], &[output]].concat()).output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        String::from_utf8(printed.stdout).unwrap()
    };
    let report: Report = serde_json::from_str(&print("json")).unwrap();
    assert_eq!((report.requests, report.failed), (100, 0));
    assert_eq!(report.latency.histogram().len(), 100);
    assert!(report.latency.p50_us > 1000.0, "{report:?}");
    let fortio: Value = serde_json::from_str(&print("fortio")).unwrap();
    assert_eq!(fortio["RetCodes"]["200"], 100);
    assert!(print("vegeta").starts_with("Requests      [total, rate, throughput]         100, "));
    assert!(print("hdr").contains("Tag=latency,"));
    assert!(print("text").contains("requests      100 in 0.5"));
}

#[test]
fn attack_and_report_are_joined_by_a_pipe() {
    let server = Server::start();
    let path = format!("{}:{}", names().display(), std::env::var("PATH").unwrap());
    let script = format!(
        "echo 'GET {}' | vegeta attack -dns-ttl=0 -keepalive -http2=false -max-connections=25 \
         -rate 200/1s -duration=500ms | vegeta report -type=text",
        server.url()
    );
    let output = Command::new("sh").args(["-c", &script]).env("PATH", path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Status Codes  [code:count]                      200:100"), "{text}");
}

#[test]
fn fortio_keeps_its_json() {
    let server = Server::start();
    let mut fortio = Command::new(names().join("fortio"));
    let words = ["load", "-quiet", "-qps", "200", "-c", "4", "-n", "50", "-json", "-"];
    let output = fortio.args(words).arg(server.url()).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["DurationHistogram"]["Count"], &json["Exactly"]), (&50.into(), &50.into()));
    let told = String::from_utf8_lossy(&output.stderr);
    let percentile = told.lines().find_map(|line| line.strip_prefix("# target 99% "));
    let seconds: f64 = percentile.unwrap_or_else(|| panic!("{output:?}")).parse().unwrap();
    assert!((0.001..60.0).contains(&seconds), "{output:?}");
}

#[test]
fn what_is_interrupted_is_kept_and_marked() {
    let server = Server::start();
    let output = interrupted(&[&server.url(), "--duration", "60s", "--output", "json"]);
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.interrupted && report.requests > 50 && report.failed == 0, "{report:?}");
}

#[test]
fn formats_without_a_place_for_doubts_have_them_on_standard_error() {
    let server = Server::start();
    for format in ["vegeta", "fortio", "hdr"] {
        let output = interrupted(&[&server.url(), "--duration", "60s", "--output", format]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("PARTIAL: interrupted after "), "{format}: {said}");
    }
}

#[test]
fn what_is_wrong_is_one_error_with_its_remedy() {
    let server = Server::start();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = error(&load(&[&format!("http://{gone}/")]).output().unwrap());
    assert!(said.contains("connection refused; is the server up") && said.lines().count() == 1);
    assert!(said.contains("--keep-going counts failures instead"), "{said}");
    let mut fortio = Command::new(names().join("fortio"));
    let said = error(&fortio.args(["load", &format!("http://{gone}/")]).output().unwrap());
    assert!(said.contains("-allow-initial-errors counts failures instead"), "{said}");
    let said = error(&load(&["https://127.0.0.1/"]).output().unwrap());
    assert!(said.contains("write http://"), "{said}");
    let url = server.url();
    let short = [url.as_str(), "--duration", "100ms"];
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let said = error(&load(&short).stdout(full).output().unwrap());
    assert!(said.contains("make room") && said.contains("No space left"), "{said}");
    let saving = [&short[..], &["--save", "/dev/full"]].concat();
    let said = error(&load(&saving).output().unwrap());
    assert!(said.contains("make room, or name another file with --save"), "{said}");
    // The measurement is not lost with the disk.
    assert!(said.contains("latency       mean"), "{said}");
    let output = load(&[&url, "--rate", "fast"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("write 450/s"));
}
