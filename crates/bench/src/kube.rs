//! A run on a cluster: what is refused beforehand, which nodes it uses, and their description.
//!
//! Nothing is created here; all problems are found before anything is.

use std::collections::BTreeMap;
use std::time::Duration;

use ambit_cluster::{Cluster, PROXY_CONTAINER, PodName, Proxy, ReadyNode, Right};
use ambit_plan::{parse_cpu, parse_memory};
use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::args::RunArgs;
use super::bed::{Place, Stage, cpu_seconds, namespace_of};
use super::experiment::{EXPERIMENTS, Experiment};
use super::modes::Mode;
use super::order::Order;
use super::record::Host;
use super::{guests, modes};

/// The experiment that a cluster can have.
const EXPERIMENT: &str = "path";
/// Client and server: more nodes than these are not needed.
const NODES_MAX: usize = 2;
/// How long the version of the proxies may take to come.
const VERSION_LIMIT: Duration = Duration::from_secs(15);
/// What holds for every run on a cluster.
const SHARED: &str = "what else the nodes did meanwhile is not seen from here, and the proxies' \
                      CPU counts what they carried for others too: mode none shows how much that \
                      was";

/// Checks the words against the cluster.
pub(super) async fn order(args: &RunArgs, cluster: Cluster) -> Result<Order> {
    refuse(args)?;
    let modes = modes::on_cluster(&args.modes)?;
    // Errors in the arguments are reported before any request.
    Experiment::on_cluster(args, NODES_MAX, Vec::new(), &Value::Null)?;
    let mut warnings = vec![SHARED.to_owned()];
    warnings.extend(ensure_rights(&cluster, &modes).await?);
    let image = cluster.proxy_image().await?;
    let proxies = cluster.proxies().await?;
    let mut nodes = cluster.ready_nodes().await?;
    nodes.retain(|node| proxies.iter().any(|proxy| proxy.node == node.name));
    nodes.truncate(NODES_MAX);
    let Some(first) = nodes.first() else {
        bail!(
            "no node of {} has a node proxy that runs and takes any pod; see `ambit check`",
            cluster.context()
        );
    };
    let host = host(first)?;
    warnings.extend(about(&nodes));
    let proxies = of_nodes(&proxies, &nodes);
    let version = version(&cluster, &proxies, &image).await?;
    let mut stage = Stage { cluster, run: run_name(), proxies, is_cpu_told: true };
    stage.is_cpu_told = stage.metrics().await?.iter().all(|it| cpu_seconds(it).is_some());
    if !stage.is_cpu_told {
        warnings.push("the proxies do not say how much of the processor they use".to_owned());
    }
    for mode in &modes {
        stage.namespace(mode).ensure_free().await?;
    }
    let names: Vec<String> = nodes.into_iter().map(|node| node.name).collect();
    let objects = guests::objects(&image, &names);
    Ok(Order {
        experiment: Experiment::on_cluster(args, names.len(), objects, &guests::policy())?,
        modes,
        place: Place::Cluster(stage),
        host,
        programs: BTreeMap::from([("ambit".to_owned(), version)]),
        warnings,
    })
}

/// What is impossible on a cluster, each with its remedy.
fn refuse(args: &RunArgs) -> Result<()> {
    let name = &args.experiment;
    if name != EXPERIMENT {
        let is_known = EXPERIMENTS.iter().any(|(known, _)| known == name);
        let why = match is_known {
            true => "the others bring machines of their own",
            false => "manifests of your own are measured on machines",
        };
        bail!(
            "{name}: on a cluster there is `{EXPERIMENT}` alone, {why}; write `ambit bench \
             {EXPERIMENT} --kube`, or leave --kube, --context, --kubeconfig and --mesh-namespace \
             out"
        );
    }
    if let Some(peer) = args.peers.first() {
        bail!(
            "--peer {peer}: on a cluster the mesh is measured that is installed there; leave \
             --peer out"
        );
    }
    Ok(())
}

/// Fails if the user lacks a right that the run needs; warns if that cannot be known. Many a role
/// lets one look and not make, and half of a run is a pile of failed modes.
async fn ensure_rights(cluster: &Cluster, modes: &[Mode]) -> Result<Option<String>> {
    let asked = async {
        let verbs = cluster.websocket_verbs().await?;
        cluster.lacking(rights(cluster.mesh_namespace(), modes, verbs)).await
    };
    let lacking = match asked.await {
        Ok(lacking) => lacking,
        Err(error) => {
            let error = anyhow::Error::from(error);
            return Ok(Some(format!("which rights you have could not be asked: {error:#}")));
        }
    };
    if lacking.is_empty() {
        return Ok(None);
    }
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for right in lacking {
        let namespaces = places.entry(right.to_string()).or_default();
        namespaces.extend(Some(right.namespace).filter(|it| !it.is_empty()));
    }
    let missing = places.into_iter().map(|(what, namespaces)| match namespaces.is_empty() {
        true => what,
        false => format!("{what} (in {})", namespaces.join(", ")),
    });
    bail!(
        "you may not {}; ask for a role that allows it, docs/guide/bench.md lists all that a run \
         needs",
        missing.collect::<Vec<_>>().join("; ")
    )
}

/// What a run asks of the API server.
fn rights(mesh_namespace: &str, modes: &[Mode], websocket_verbs: &[&'static str]) -> Vec<Right> {
    let right = |verb, group, resource, namespace: &str| Right {
        verb,
        group,
        resource,
        namespace: namespace.to_owned(),
    };
    let mut rights = vec![
        right("list", "", "nodes", ""),
        right("create", "", "namespaces", ""),
        right("get", "apps", "daemonsets", mesh_namespace),
        right("list", "", "pods", mesh_namespace),
    ];
    let websocket = |resource, namespace: &str| {
        let rights = websocket_verbs.iter().map(|verb| right(verb, "", resource, namespace));
        rights.collect::<Vec<_>>()
    };
    rights.extend(websocket("pods/exec", mesh_namespace));
    rights.extend(websocket("pods/portforward", mesh_namespace));
    for mode in modes {
        let namespace = namespace_of(mode.name);
        let own = |verb, resource| right(verb, "", resource, &namespace);
        rights.extend([own("get", "namespaces"), own("delete", "namespaces")]);
        rights.extend(["serviceaccounts", "services", "pods"].map(|it| own("create", it)));
        rights.push(own("list", "pods"));
        rights.extend(websocket("pods/exec", &namespace));
        if mode.has_policies {
            let group = "security.istio.io";
            rights.push(right("create", group, "authorizationpolicies", &namespace));
        }
    }
    rights
}

/// The proxies of these nodes.
fn of_nodes(proxies: &[Proxy], nodes: &[ReadyNode]) -> Vec<PodName> {
    let is_meant = |proxy: &&Proxy| nodes.iter().any(|node| node.name == proxy.node);
    proxies.iter().filter(is_meant).map(|proxy| proxy.pod.clone()).collect()
}

/// The version that the proxies' program reports, and its image.
async fn version(cluster: &Cluster, proxies: &[PodName], image: &str) -> Result<String> {
    let proxy = proxies.first().context("there is a node with a proxy")?;
    let words = ["/ambit", "--version"].map(str::to_owned);
    let said = cluster.exec(proxy, PROXY_CONTAINER, &words, VERSION_LIMIT).await;
    let said = said.with_context(|| {
        format!(
            "the node proxies are not Ambit's, or cannot be entered: load and servers are of \
             their image, {image}; see docs/guide/migration.md to put Ambit in their place"
        )
    })?;
    let said = said.trim().trim_start_matches("ambit").trim();
    Ok(format!("{said}; image {image}"))
}

/// The node of the client, as the host of a run.
fn host(node: &ReadyNode) -> Result<Host> {
    let sort = &node.sort;
    let cpus = parse_cpu(&sort.cpu);
    let cpus = cpus.with_context(|| format!("node {} has {:?} of CPU", node.name, sort.cpu))?;
    let memory = parse_memory(&sort.memory);
    let memory_bytes =
        memory.with_context(|| format!("node {} has {:?} of memory", node.name, sort.memory))?;
    Ok(Host {
        cpu: format!("Kubernetes node {}", kind(node)),
        cpus: usize::try_from(cpus / 1000).unwrap_or_default(),
        memory_bytes,
        kernel: node.kernel.clone(),
        system: format!("{}, Kubernetes {}", node.system, node.kubelet),
    })
}

/// The provider's name for it, or what its processors are.
fn kind(node: &ReadyNode) -> &str {
    let kind = node.sort.instance_type.as_str();
    if kind.is_empty() { &node.architecture } else { kind }
}

/// What the nodes make doubtful.
fn about(nodes: &[ReadyNode]) -> Option<String> {
    match nodes {
        [_, _, ..] => {
            let alike = |it: &ReadyNode| (it.sort.clone(), it.architecture.clone());
            let named =
                |it: &ReadyNode| format!("{} is {} with {}", it.name, kind(it), it.sort.cpu);
            let (first, second) = (&nodes[0], &nodes[1]);
            (alike(first) != alike(second))
                .then(|| format!("the nodes are not alike: {}, {}", named(first), named(second)))
        }
        _ => Some(
            "the cluster has one node that takes pods and has a proxy: the cases across nodes are \
             left out"
                .to_owned(),
        ),
    }
}

/// This run, unlike every other.
fn run_name() -> String {
    let now = jiff::Timestamp::now().as_millisecond();
    format!("{now}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use ambit_cluster::LiveNode;
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::played::playing;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: RunArgs,
    }

    fn args(words: &str) -> RunArgs {
        Words::try_parse_from(["bench"].into_iter().chain(words.split(' '))).unwrap().args
    }

    fn node(name: &str, cpu: &str, instance_type: &str) -> ReadyNode {
        let amount = |text: &str| text.to_owned();
        ReadyNode {
            name: amount(name),
            sort: LiveNode {
                instance_type: amount(instance_type),
                cpu: amount(cpu),
                memory: amount("8Gi"),
                allocatable_cpu: amount(cpu),
                allocatable_memory: amount("7Gi"),
                pods: amount("110"),
            },
            architecture: amount("amd64"),
            kernel: amount("6.12"),
            system: amount("Debian"),
            kubelet: amount("v1.36.0"),
        }
    }

    #[test]
    fn what_a_cluster_cannot_have_is_refused_with_a_remedy() {
        let refused = |words: &str| refuse(&args(words)).unwrap_err().to_string();
        assert!(refused("tiered").contains("the others bring machines"));
        assert!(refused("./app.yaml").contains("manifests of your own are measured on machines"));
        assert!(refused("path --peer envoy=/bin/sh").contains("leave --peer out"));
        assert!(refuse(&args("path --modes none")).is_ok());
        let wrong = |words: &str| {
            let made = Experiment::on_cluster(&args(words), 2, Vec::new(), &Value::Null);
            made.map(|_| ()).unwrap_err().to_string()
        };
        assert!(wrong("path --rate 5/s").contains("path has loads of its own"));
        assert!(wrong("path --namespaces 3").contains("--namespaces is for `tiered`"));
        assert!(wrong("path --only 10,000").contains("no case has that in its name"));
    }

    #[test]
    fn a_run_needs_these_rights_and_no_others() {
        let of = |modes: &str| -> Vec<String> {
            let modes = modes::on_cluster(&args(&format!("path --modes {modes}")).modes).unwrap();
            let rights = rights("mesh", &modes, &["get"]);
            rights.iter().map(|it| format!("{it} {}", it.namespace)).collect()
        };
        let common = [
            "list nodes ",
            "create namespaces ",
            "get daemonsets.apps mesh",
            "list pods mesh",
            "get pods/exec mesh",
            "get pods/portforward mesh",
        ];
        let none = [
            "get namespaces ambit-bench-none",
            "delete namespaces ambit-bench-none",
            "create serviceaccounts ambit-bench-none",
            "create services ambit-bench-none",
            "create pods ambit-bench-none",
            "list pods ambit-bench-none",
            "get pods/exec ambit-bench-none",
        ];
        assert_eq!(of("none"), [&common[..], &none].concat());
        let policies = of("ambient+l4policy");
        let last = "create authorizationpolicies.security.istio.io ambit-bench-ambient-l4policy";
        assert_eq!(policies.last().map(String::as_str), Some(last));
        assert_eq!(policies.len(), common.len() + none.len() + 1);
    }

    #[tokio::test]
    async fn who_may_not_make_what_a_run_makes_is_told_before() {
        let cluster = playing(|_, path, review| match path {
            "/version" => (200, json!({"major": "1", "minor": "35"})),
            _ => {
                let asked = &review["spec"]["resourceAttributes"];
                let is_denied = asked["verb"] == "create" && asked["resource"] != "services";
                (201, json!({"status": {"allowed": !is_denied}}))
            }
        });
        let cluster = cluster.await;
        let modes = modes::on_cluster(&args("path --modes none,ambient").modes).unwrap();
        let told = ensure_rights(&cluster, &modes).await.unwrap_err().to_string();
        let both = "(in ambit-bench-none, ambit-bench-ambient)";
        assert!(told.starts_with("you may not create namespaces; create pods (in"), "{told}");
        assert!(told.contains(&format!("create serviceaccounts {both}")), "{told}");
        assert!(told.contains("create pods/portforward (in istio-system);"), "{told}");
        assert!(!told.contains("create services"), "{told}");
        let silent = playing(|_, _, _| (500, json!({"kind": "Status", "code": 500}))).await;
        let warning = ensure_rights(&silent, &modes).await.unwrap();
        assert!(warning.is_some_and(|it| it.contains("could not be asked")));
    }

    #[test]
    fn cases_go_across_nodes_and_stay_on_one() {
        let cases = |nodes: usize, only: &str| -> Vec<String> {
            let args = args(&format!("path{only}"));
            let made = Experiment::on_cluster(&args, nodes, Vec::new(), &guests::policy()).unwrap();
            assert!(made.has_policies() && made.unproven(&modes::MODES).is_none());
            made.cases().map(|case| case.name.clone()).collect()
        };
        let two = cases(2, "");
        assert_eq!((two.len(), &*two[0], &*two[5]), (10, "1000 rps", "1000 rps, one node"));
        let one = cases(1, "");
        assert!(one.len() == 5 && one.iter().all(|name| name.ends_with(", one node")), "{one:?}");
        assert_eq!(cases(2, " --only rps"), ["1000 rps", "1000 rps, one node"]);
    }

    #[test]
    fn the_client_s_node_is_the_host() {
        let host = host(&node("n1", "2", "")).unwrap();
        assert_eq!((host.cpus, host.memory_bytes), (2, 8 << 30));
        assert_eq!(host.slug(), "2x-kubernetes-node-amd64");
        assert_eq!(
            super::host(&node("n1", "2", "m5.large")).unwrap().cpu,
            "Kubernetes node m5.large"
        );
        let error = super::host(&node("n1", "many", "")).unwrap_err().to_string();
        assert!(error.contains("node n1 has \"many\" of CPU"), "{error}");
    }

    #[test]
    fn one_node_and_unlike_nodes_are_said() {
        let (small, large) = (node("n1", "2", ""), node("n2", "8", ""));
        assert_eq!(about(&[small.clone(), small.clone()]), None);
        let unlike = about(&[small.clone(), large]).unwrap();
        assert!(unlike.contains("n1 is amd64 with 2, n2 is amd64 with 8"), "{unlike}");
        assert!(about(&[small]).unwrap().contains("left out"));
    }
}
