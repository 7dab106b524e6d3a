//! `vegeta attack` and `vegeta report`.
//!
//! The pipe between them carries the JSON of `ambit load`, so both ends must be this program. An
//! attack has one target.

use std::fs::File;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use super::go_flags::{Flags, Takes};
use crate::flags::MAX_CONNECTIONS;
use crate::plan::{self, Extent, Pace, Plan, Protocol, Request, Target};
use crate::report::Report;
use crate::{command, output, terminal};

/// Vegeta's defaults.
const RATE: &str = "50/1s";
const WORKERS: usize = 10;
const TIMEOUT: &str = "30s";
/// The largest result that is read.
const MAX_RESULT_BYTES: u64 = 64 << 20;

const ATTACK: [(&str, Takes); 20] = [
    ("rate", Takes::Value),
    ("duration", Takes::Value),
    ("connections", Takes::Value),
    ("max-connections", Takes::Value),
    ("workers", Takes::Value),
    ("max-workers", Takes::Value),
    ("keepalive", Takes::Switch),
    ("timeout", Takes::Value),
    ("header", Takes::Value),
    ("body", Takes::Value),
    ("targets", Takes::Value),
    ("format", Takes::Value),
    ("output", Takes::Value),
    ("name", Takes::Value),
    ("http2", Takes::Switch),
    ("h2c", Takes::Switch),
    ("dns-ttl", Takes::Value),
    ("insecure", Takes::Switch),
    ("lazy", Takes::Switch),
    ("max-body", Takes::Value),
];
const REPORT: [(&str, Takes); 3] =
    [("type", Takes::Value), ("output", Takes::Value), ("every", Takes::Value)];

/// Runs the words behind the name.
pub(super) async fn run(words: &[&str]) -> Result<ExitCode> {
    match words.split_first() {
        Some((&"attack", words)) => attack(words).await,
        Some((&"report", words)) => report(words),
        _ => bail!("write vegeta attack or vegeta report; no other command is offered"),
    }
}

async fn attack(words: &[&str]) -> Result<ExitCode> {
    let flags = Flags::read(&ATTACK, words)?;
    if let Some(word) = flags.rest.first() {
        bail!("{word:?} is no flag; targets come from standard input or -targets FILE");
    }
    let targets = read(flags.value("targets").unwrap_or("stdin"))?;
    let targets = String::from_utf8(targets).context("the targets are not text")?;
    let plan = plan(&flags, &targets)?;
    let path = flags.value("output").filter(|path| *path != "stdout");
    let file = path.map(|path| command::create(path.as_ref())).transpose()?;
    // The terminal may belong to the reader of the pipe: progress would only disturb it.
    let measured = command::measure(plan, true).await?;
    let text = output::write(&measured, output::Output::Json)?;
    match file {
        Some(mut file) => file.write_all(text.as_bytes()).context("save the result")?,
        None => terminal::print(&text)?,
    }
    Ok(command::exit_code(&measured))
}

/// The plan that the flags and targets make.
fn plan(flags: &Flags<'_>, targets: &str) -> Result<Plan> {
    let (method, url, mut headers, body_file) = one_target(targets)?;
    for header in flags.all("header") {
        headers.push(plan::header(header)?);
    }
    let protocol = flags.is_on("h2c", false)?.then_some(Protocol::H2c);
    let body = match body_file.or(flags.value("body")) {
        Some(path) => read(path)?,
        None => Vec::new(),
    };
    let pace = plan::pace(flags.value("rate").unwrap_or(RATE))?;
    let most = |name| -> Result<usize> {
        let unlimited = |most: usize| if most == 0 { MAX_CONNECTIONS } else { most };
        flags.parsed(name, 0).map(|most| unlimited(most).min(MAX_CONNECTIONS))
    };
    if pace == Pace::Max && flags.value("max-workers").is_none() {
        bail!("-rate=0 needs -max-workers: so many requests are under way at once");
    }
    let max_connections = most("max-workers")?.min(most("max-connections")?);
    let connections = match pace {
        Pace::Max => max_connections,
        Pace::Rate(_) => flags.parsed("workers", WORKERS)?.clamp(1, max_connections),
    };
    let time: Duration = plan::duration(flags.value("duration").unwrap_or("0s"))?;
    let plan = Plan {
        target: Target::parse(url, protocol)?,
        request: Request { method: method.to_owned(), headers, body, response_bytes: 0 },
        pace,
        extent: Extent::until(time),
        warm_up: Duration::ZERO,
        connections,
        max_connections,
        streams: 1,
        close: !flags.is_on("keepalive", true)?,
        threads: 1,
        timeout: plan::duration(flags.value("timeout").unwrap_or(TIMEOUT))?,
        // Vegeta reports failures, whatever they are.
        keep_going: true,
    };
    Ok(plan.check()?)
}

/// A target: method, URL, headers, the file of its body.
type Parts<'a> = (&'a str, &'a str, Vec<(String, String)>, Option<&'a str>);

/// Reads `GET http://...`, its headers and `@body`.
fn one_target(targets: &str) -> Result<Parts<'_>> {
    let mut lines = targets.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let first = lines.find(|line| !line.is_empty());
    let first = first.context("there is no target; write one as: echo GET URL | vegeta attack")?;
    let (method, url) = first
        .split_once(' ')
        .with_context(|| format!("{first:?} is no target; write it as GET http://HOST/PATH"))?;
    let mut parts = (method, url.trim(), Vec::new(), None);
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        match line.strip_prefix('@') {
            Some(path) => parts.3 = Some(path),
            None if line.contains("://") && line.split(' ').count() == 2 && !is_field(line) => {
                bail!("only one target is attacked at a time; start one attack for each")
            }
            None => parts.2.push(plan::header(line)?),
        }
    }
    if lines.any(|line| !line.is_empty()) {
        bail!("only one target is attacked at a time; start one attack for each");
    }
    Ok(parts)
}

fn is_field(line: &str) -> bool {
    line.split(' ').next().is_some_and(|first| first.ends_with(':'))
}

fn report(words: &[&str]) -> Result<ExitCode> {
    let flags = Flags::read(&REPORT, words)?;
    // The attack before the pipe ends at Ctrl-C and still says what it measured.
    let _interrupts = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let path = flags.rest.first().copied().unwrap_or("stdin");
    let text = read(path)?;
    let measured: Report = serde_json::from_slice(&text).with_context(|| {
        format!("{path} is no result of this program's attack; Vegeta's own format is not read")
    })?;
    command::tell_doubts(&measured);
    let text = match flags.value("type").unwrap_or("text") {
        "text" => output::vegeta::text(&measured),
        "json" => format!("{}\n", output::vegeta::json(&measured)),
        other => bail!("-type={other} is not offered; write text or json"),
    };
    match flags.value("output").filter(|path| *path != "stdout") {
        Some(path) => {
            command::create(path.as_ref())?
                .write_all(text.as_bytes())
                .context("save the report")?;
        }
        None => terminal::print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A file's bytes, or standard input's.
fn read(path: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = match path {
        "stdin" | "-" => Box::new(std::io::stdin().lock()),
        path => Box::new(File::open(path).with_context(|| format!("open {path}"))?),
    };
    let read = source.take(MAX_RESULT_BYTES).read_to_end(&mut bytes);
    read.with_context(|| format!("read {path}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(words: &str, targets: &str) -> Result<Plan, String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let flags = Flags::read(&ATTACK, &words).map_err(|error| error.to_string())?;
        plan(&flags, targets).map_err(|error| error.to_string())
    }

    #[test]
    fn the_words_of_the_experiments() {
        let words = "-dns-ttl=0 -keepalive -http2=false -name=ns-1 -rate 450/1s -duration 600s \
                     -connections 100 -max-connections 100 -workers 100 -max-workers 100";
        let plan = made(words, "GET http://tier-1-app-a.ns-1.svc.cluster.local:8080\n").unwrap();
        assert_eq!(plan.pace, Pace::Rate(450.0));
        assert_eq!(plan.extent, Extent::Time(Duration::from_secs(600)));
        assert_eq!((plan.connections, plan.max_connections, plan.close), (100, 100, false));
        assert_eq!(plan.target.address, "tier-1-app-a.ns-1.svc.cluster.local:8080");
        assert!(plan.keep_going);
    }

    #[test]
    fn targets_have_headers_and_flags_have_limits() {
        let target = "# a comment\nPOST http://a/x\nX-A: http://b\n\n";
        let plan = made("-rate=0 -max-workers=7 -keepalive=false -duration=1s", target).unwrap();
        assert_eq!((plan.pace, plan.connections, plan.close), (Pace::Max, 7, true));
        assert_eq!(plan.request.method, "POST");
        assert_eq!(plan.request.headers, [("X-A".to_owned(), "http://b".to_owned())]);
        let default = made("", "GET http://a").unwrap();
        assert_eq!((default.connections, default.max_connections), (WORKERS, MAX_CONNECTIONS));
    }

    #[test]
    fn what_is_wrong_is_said_with_a_remedy() {
        for (words, targets, part) in [
            ("", "", "echo GET URL | vegeta attack"),
            ("", "http://a", "write it as GET http://"),
            ("", "GET http://a\nGET http://b", "one target"),
            ("", "GET http://a\n\nGET http://b", "one target"),
            ("", "GET https://a", "write http://"),
            ("-rate 0", "GET http://a", "-max-workers"),
            ("-rate fast", "GET http://a", "write 450/s"),
            ("-proxy-header x", "GET http://a", "is not offered"),
        ] {
            let error = made(words, targets).unwrap_err();
            assert!(error.contains(part), "{words} {targets:?}: {error}");
        }
    }
}
