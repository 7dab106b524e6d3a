//! `ambit load`: runs the plan, shows its progress, prints or saves the report.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use ambit_net::sys::process::raise_open_files_limit;
use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::args::{LoadArgs, RunArgs, Serve};
use super::engine::{LoadError, Run, Stop};
use super::plan::Plan;
use super::report::Report;
use super::terminal::print;
use super::{output, progress, serve};

/// What a shell reports for a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// A second signal within this time counts as the first again.
const SECOND_THOUGHT: Duration = Duration::from_millis(500);

/// Runs what the words ask for.
pub async fn run(args: LoadArgs) -> Result<ExitCode> {
    match args {
        LoadArgs { serve: Some(Serve::Serve(args)), .. } => serve::serve(args).await,
        LoadArgs { run: Some(args), .. } => load(&args).await,
        LoadArgs { .. } => anyhow::bail!("name a URL to load: ambit load http://HOST[:PORT]/PATH"),
    }
}

async fn load(args: &RunArgs) -> Result<ExitCode> {
    let plan = args.plan()?;
    // A place that cannot be written is better known before ten minutes of load than after.
    let mut file = args.save.as_deref().map(create).transpose()?;
    let measured = measure(plan, args.quiet).await;
    let report = measured.map_err(|error| or_keep_going(error, "--keep-going"))?;
    let text = output::write(&report, args.output)?;
    if !args.output.tells_doubts() {
        tell_doubts(&report);
    }
    match (&mut file, &args.save) {
        (Some(file), Some(path)) => {
            let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
            if written.is_err() {
                // The measurement is not lost with the disk.
                eprint!("{}", output::text::write(&report));
            }
            written.with_context(|| {
                let path = path.display();
                format!(
                    "the result could not be saved to {path}; make room, or name another file \
                     with --save"
                )
            })?;
        }
        _ => print(&text)?,
    }
    Ok(exit_code(&report))
}

/// Makes a run, with progress on the terminal; SIGINT and SIGTERM end it and keep what it has.
pub(super) async fn measure(plan: Plan, quiet: bool) -> Result<Report> {
    raise_open_files_limit().context("raise the limit of open files")?;
    let is_watched = progress::is_watched(quiet);
    let mut first = pin!(end_wished()?);
    let stop = Stop::default();
    let mut run = tokio::select! {
        run = Run::start(plan, stop.clone(), is_watched) => run?,
        () = &mut first => {
            eprintln!("PARTIAL: interrupted before the server's name was resolved");
            std::process::exit(i32::from(INTERRUPTED));
        }
    };
    let ending = async {
        first.await;
        stop.now();
        // timeout(1) says it twice. Who says it again later does not want to wait.
        sleep(SECOND_THOUGHT).await;
        if let Ok(second) = end_wished() {
            second.await;
        }
        std::process::exit(i32::from(INTERRUPTED));
    };
    let watching = run.watch();
    let showing = async {
        if is_watched {
            progress::show(&watching).await;
        }
        std::future::pending::<()>().await;
    };
    let report = tokio::select! {
        report = run.finish() => report,
        () = ending => unreachable!("it ends the process"),
        () = showing => unreachable!("it shows for ever"),
    };
    if is_watched {
        progress::clear();
    }
    Ok(report?)
}

/// Adds the name of the flag that lets a run continue although the target cannot be reached.
pub(super) fn or_keep_going(error: anyhow::Error, flag: &str) -> anyhow::Error {
    match error.downcast_ref() {
        Some(LoadError::Unreachable { .. }) => {
            anyhow::anyhow!("{error} ({flag} counts failures instead)")
        }
        _ => error,
    }
}

/// Waits for SIGINT or SIGTERM, from now on.
fn end_wished() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Prints doubts to standard error if the result's format has no place for them.
pub(super) fn tell_doubts(report: &Report) {
    for (name, value) in output::text::doubts(report) {
        eprintln!("{name}: {value}");
    }
}

/// How a run that ended like this exits.
pub(super) fn exit_code(report: &Report) -> ExitCode {
    if report.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS }
}

/// Makes the file for a result.
pub(super) fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| {
        format!("the result cannot be saved to {}; name another file with --save", path.display())
    })
}
