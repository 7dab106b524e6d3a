//! `ambit exec` and `ambit logs`: commands in a pod, and the output of programs.

use std::io::{IsTerminal as _, Write, stdin};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use ambit_cluster::{Cluster, Part, PodName};
use ambit_machine::layout::Layout;
use ambit_machine::logs::{Lines, Shown};
use ambit_machine::ownership::check_state_directory;
use ambit_machine::{Client, ExecRequest, Keys, PodInfo, Record};
use ambit_manifest::Kind;
use anyhow::{Context, Result, bail, ensure};

use super::mesh::{self, Mesh};
use crate::args::{ExecArgs, LogsArgs, kind_of};

/// Runs a command in a pod with this process' own standard streams.
pub(super) async fn exec(args: ExecArgs) -> Result<ExitCode> {
    if args.kube.is_meant() {
        bail!("in a cluster this is kubectl's job: `kubectl exec -it -n NAMESPACE POD -- CMD`");
    }
    let Meant { namespace, name, owner } = meant(&args.pod, args.namespace.as_deref(), &[])?;
    if args.tty && !stdin().is_terminal() {
        eprintln!("warning: -t has no effect: the standard input is not a terminal");
    }
    let word = |word: &std::ffi::OsString| match word.to_str() {
        Some(word) => Ok(word.to_owned()),
        None => bail!("{word:?} is not UTF-8"),
    };
    let request = ExecRequest {
        namespace: namespace.to_owned(),
        pod: name.to_owned(),
        owner_kind: owner.map(|kind| kind.name().to_owned()),
        container: args.container,
        command: args.command.iter().map(word).collect::<Result<_>>()?,
        terminal: Some(std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned())),
    };
    let keys = if args.stdin { Keys::Command } else { Keys::Others };
    let code = ambit_machine::exec(&super::layout(&args.state), &request, keys).await?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// A pod that is meant, or what makes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meant<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// The kind of what makes it, if it was said.
    pub(super) owner: Option<Kind>,
}

impl Meant<'_> {
    fn is(&self, pod: &PodInfo) -> bool {
        let is_owner = pod.owner == self.name;
        pod.namespace == self.namespace
            && match self.owner {
                Some(kind) => is_owner && pod.owner_kind == kind.name(),
                None => is_owner || pod.name == self.name,
            }
    }
}

/// The pod that words mean: NAMESPACE/POD, or as kubectl takes it KIND/NAME, in `default` or in a
/// namespace that is named apart, where POD is enough. KIND makes pods, or is one of `others`. A
/// word that is a kind is never a namespace: such a namespace must be named apart.
pub(super) fn meant<'a>(
    words: &'a str,
    namespace: Option<&'a str>,
    others: &[Kind],
) -> Result<Meant<'a>> {
    let is_meant =
        |kind: Kind| kind == Kind::Pod || kind.has_pod_template() || others.contains(&kind);
    let starts_with_kind = || {
        let (word, _) = words.split_once('/')?;
        kind_of(word).ok().filter(|kind| is_meant(*kind))
    };
    let namespace = namespace.or_else(|| starts_with_kind().map(|_| "default"));
    let (namespace, name, owner) = match (namespace, words.split_once('/')) {
        (None, Some((namespace, name))) => (namespace, name, None),
        (None, None) => bail!("{words:?}: name the pod as NAMESPACE/POD, or add -n NAMESPACE"),
        (Some(namespace), None) => (namespace, words, None),
        (Some(namespace), Some((word, name))) => match kind_of(word) {
            Ok(Kind::Pod) => (namespace, name, None),
            Ok(kind) if is_meant(kind) => (namespace, name, Some(kind)),
            _ => bail!(
                "{words:?}: with -n write POD, pod/POD, or what makes it as deployment/NAME, not \
                 {word}/"
            ),
        },
    };
    Ok(Meant { namespace, name, owner })
}

/// The state directory whose logs are meant: of a machine that runs, or ran.
async fn logs_layout(args: &LogsArgs) -> Result<Mesh> {
    let error = match mesh::find(&args.state, &args.kube).await {
        Err(error) if !args.kube.is_meant() => error,
        found => return found,
    };
    let layout = super::layout(&args.state);
    if !layout.logs().is_dir() {
        return Err(error);
    }
    check_state_directory(layout.root())?;
    eprintln!("note: no machine is running here; these logs are of the last one");
    Ok(Mesh::Machine(layout))
}

/// Prints, and with `-f` follows, a log.
pub(super) async fn logs(args: LogsArgs) -> Result<ExitCode> {
    let layout = match logs_layout(&args).await? {
        Mesh::Machine(layout) => layout,
        Mesh::Cluster(cluster) => return logs_of_cluster(&cluster, &args).await,
    };
    let path = log(&layout, &args).await?;
    ensure!(
        path.starts_with(layout.pod_logs()) || !args.timestamps && args.since.is_none(),
        "--timestamps and --since are for pods: the lines of {} say when they were written",
        args.of
    );
    let mut output = std::io::stdout().lock();
    let mut show = async || -> std::io::Result<()> {
        let since = args.since.and_then(|since| SystemTime::now().checked_sub(since));
        let shown = Shown { tail: args.tail, since, timestamps: args.timestamps };
        let mut log = Lines::open(&path, shown)?;
        if args.follow { log.follow(&mut output).await } else { log.copy(&mut output) }
    };
    let shown = show().await;
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

/// The file of a log.
async fn log(layout: &Layout, args: &LogsArgs) -> Result<PathBuf> {
    if args.namespace.is_none() {
        match args.of.split_once('/') {
            Some((role @ ("proxy" | "node" | "lab-node"), node)) => {
                return Ok(layout.role_log(role, Some(node)));
            }
            None if args.of == "control" => return Ok(layout.role_log("control", None)),
            None => bail!("{:?}: write NS/POD, proxy/NODE, node/NODE or control", args.of),
            Some(_) => {}
        }
    }
    let meant = meant(&args.of, args.namespace.as_deref(), &[])?;
    let Meant { namespace, name, .. } = meant;
    let Ok(pods) = Client::new(layout.clone()).pods().await else {
        return log_of_gone(layout, namespace, name, args.container.as_deref());
    };
    let meant_first = |pod: &&PodInfo| (pod.name != name, pod.rank());
    let found = pods.iter().filter(|pod| meant.is(pod)).min_by_key(meant_first);
    let found = found.with_context(|| format!("no pod {namespace}/{name}"))?;
    let first = found.containers.first().map(|container| container.name.as_str());
    let container = args.container.as_deref().or(first).unwrap_or_default();
    let path = layout.pod_log(namespace, &found.name, container);
    let is_here = || Record::read(layout).is_ok_and(|it| it.nodes.contains(&found.node));
    if !found.node.is_empty() && !path.exists() && !is_here() {
        bail!(
            "{namespace}/{} runs on the computer that joined as {}; run the command there",
            found.name,
            found.node
        );
    }
    Ok(path)
}

/// The log of a pod of a machine that ran: nobody is left who knows its containers.
fn log_of_gone(
    layout: &Layout,
    namespace: &str,
    pod: &str,
    container: Option<&str>,
) -> Result<PathBuf> {
    let directory = layout.pod_logs();
    let (of_pod, of_owner) = (format!("{namespace}_{pod}_"), format!("{namespace}_{pod}-"));
    let is_meant = |name: &str| {
        let is_of_pod = name.starts_with(&of_pod) || name.starts_with(&of_owner);
        let ends = |container| name.ends_with(&format!("_{container}.log"));
        is_of_pod && name.ends_with(".log") && container.is_none_or(ends)
    };
    let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let found = names.filter(|name| is_meant(name)).min();
    let found = found.with_context(|| format!("there is no log of a pod {namespace}/{pod}"))?;
    Ok(directory.join(found))
}

/// The same of a part in a cluster, through its API server.
async fn logs_of_cluster(cluster: &Cluster, args: &LogsArgs) -> Result<ExitCode> {
    let is_kubectls = args.tail.is_some() || args.since.is_some() || args.timestamps;
    if args.namespace.is_some() || is_kubectls {
        bail!(
            "in a cluster -n, --tail, --since and --timestamps are kubectl's: \
             `kubectl logs -n NAMESPACE --tail N POD`"
        );
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_as_ambit_or_as_kubectl_does() {
        let check = |words, namespace, expected: Option<(&str, &str, Option<Kind>)>| {
            let expected =
                expected.map(|(namespace, name, owner)| Meant { namespace, name, owner });
            assert_eq!(meant(words, namespace, &[]).ok(), expected, "{words} {namespace:?}");
        };
        check("shop/web", None, Some(("shop", "web", None)));
        check("web", None, None);
        check("web", Some("shop"), Some(("shop", "web", None)));
        check("pod/web", Some("shop"), Some(("shop", "web", None)));
        check("deploy/web", Some("shop"), Some(("shop", "web", Some(Kind::Deployment))));
        check("sts/web", Some("shop"), Some(("shop", "web", Some(Kind::StatefulSet))));
        check("daemonset/web", Some("shop"), Some(("shop", "web", Some(Kind::DaemonSet))));
        check("job/web", Some("shop"), Some(("shop", "web", Some(Kind::Job))));
        check("deploy/web", None, Some(("default", "web", Some(Kind::Deployment))));
        check("sts/web", None, Some(("default", "web", Some(Kind::StatefulSet))));
        check("pod/web", None, Some(("default", "web", None)));
        check("svc/web", None, Some(("svc", "web", None)));
        check("svc/web", Some("shop"), None);
        let service = meant("svc/web", Some("shop"), &[Kind::Service]).expect("a service");
        assert_eq!(service.owner, Some(Kind::Service));
        check("other/web", Some("shop"), None);
    }

    #[test]
    fn logs_outlive_their_machine() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(directory.path().to_owned());
        let pods = layout.pod_logs();
        std::fs::create_dir_all(&pods).expect("made");
        for name in ["a_web-7d-x_web.log", "a_web-7d-x_side.log", "a_webs_web.log", "b_web_c.log"] {
            std::fs::write(pods.join(name), "").expect("written");
        }
        let check = |namespace, pod, container, expected: Option<&str>| {
            let found = log_of_gone(&layout, namespace, pod, container).ok();
            assert_eq!(found, expected.map(|it| pods.join(it)), "{namespace}/{pod} {container:?}");
        };
        check("a", "web", None, Some("a_web-7d-x_side.log"));
        check("a", "web", Some("web"), Some("a_web-7d-x_web.log"));
        check("a", "web-7d-x", None, Some("a_web-7d-x_side.log"));
        check("b", "web", None, Some("b_web_c.log"));
        check("b", "we", None, None);
        check("c", "web", None, None);
    }
}
