//! `ambit exec` and `ambit logs`: commands in a pod, and the output of programs.

use std::io::Write;
use std::process::ExitCode;

use ambit_cluster::{Cluster, Part, PodName};
use ambit_machine::logs;
use ambit_machine::{Client, ExecRequest, Terminal};
use ambit_net::sys::terminal::window_size;
use anyhow::{Context, Result, bail};

use super::mesh::{self, Mesh};
use crate::args::{ExecArgs, LogsArgs};

/// Runs a command in a pod with this process' own standard streams.
pub(super) async fn exec(args: ExecArgs) -> Result<ExitCode> {
    if args.kube.is_meant() {
        bail!("in a cluster this is kubectl's job: `kubectl exec -it -n NAMESPACE POD -- CMD`");
    }
    let (namespace, pod) = args
        .pod
        .split_once('/')
        .with_context(|| format!("{:?}: name the pod as NAMESPACE/POD", args.pod))?;
    let word = |word: &std::ffi::OsString| match word.to_str() {
        Some(word) => Ok(word.to_owned()),
        None => bail!("{word:?} is not UTF-8"),
    };
    let request = ExecRequest {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: args.container,
        command: args.command.iter().map(word).collect::<Result<_>>()?,
        terminal: terminal(),
    };
    let code = ambit_machine::exec(&super::layout(&args.state), &request).await?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The terminal that this command was typed at, if it was.
fn terminal() -> Option<Terminal> {
    let size = window_size(std::io::stdin()).ok()?;
    let kind = std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned());
    Some(Terminal { kind, rows: size.rows, columns: size.columns })
}

/// Prints, and with `-f` follows, a log.
pub(super) async fn logs(args: LogsArgs) -> Result<ExitCode> {
    let layout = match mesh::find(&args.state, &args.kube).await? {
        Mesh::Machine(layout) => layout,
        Mesh::Cluster(cluster) => return logs_of_cluster(&cluster, &args).await,
    };
    let path = match args.of.split_once('/') {
        Some((role @ ("proxy" | "node" | "lab-node"), node)) => layout.role_log(role, Some(node)),
        Some((namespace, pod)) => {
            let pods = Client::new(layout.clone()).pods().await?;
            let of_pod = |p: &&ambit_machine::PodInfo| {
                p.namespace == namespace && (p.name == pod || p.owner == pod)
            };
            let found = pods.iter().find(of_pod);
            let found = found.with_context(|| format!("no pod {namespace}/{pod}"))?;
            let first = found.containers.first().map(|container| container.name.as_str());
            let container = args.container.as_deref().or(first).unwrap_or_default();
            layout.pod_log(namespace, &found.name, container)
        }
        None if args.of == "control" => layout.role_log("control", None),
        None => bail!("{:?}: write NS/POD, proxy/NODE, node/NODE or control", args.of),
    };
    let mut output = std::io::stdout().lock();
    let shown = if args.follow {
        logs::follow(&path, &mut output).await
    } else {
        logs::copy(&path, &mut output)
    };
    match shown {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{} has no log {}; see `ambit status`", args.of, path.display())
        }
        shown => shown
            .map(|()| ExitCode::SUCCESS)
            .with_context(|| format!("read the log {}", path.display())),
    }
}

/// The same of a part in a cluster, through its API server.
async fn logs_of_cluster(cluster: &Cluster, args: &LogsArgs) -> Result<ExitCode> {
    let part = match args.of.split_once('/') {
        Some(("proxy", node)) => Part::Proxy(node.to_owned()),
        Some(("node", node)) => Part::Agent(node.to_owned()),
        Some((namespace, name)) => {
            Part::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        None if args.of == "control" => Part::Control,
        None => bail!("{:?}: write NS/POD, proxy/NODE, node/NODE or control", args.of),
    };
    let mut output = std::io::stdout().lock();
    // Who stops reading, as `head` does, has read enough.
    let print = |line: &str| writeln!(output, "{line}").is_ok();
    cluster.logs(&part, args.container.as_deref(), args.follow, print).await?;
    Ok(ExitCode::SUCCESS)
}
