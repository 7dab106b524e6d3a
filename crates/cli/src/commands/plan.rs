//! `ambit plan`: makes a plan's inputs from manifests and flags, writes its estimates to a terminal
//! or a file.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use ambit_bench::{ProxyCost, Run};
use ambit_cluster::{Cluster, LiveNode, LiveWorkloads};
use ambit_manifest::{Finding, Workload, WorkloadKind, Workloads};
use ambit_plan::{
    Application, Comparison, DEFAULT_NODE_TYPE, Estimate, Inputs, Measured, NodeType, Plan,
    PlanError, PodGroup, Price, Reservations, Resources, Surroundings, Unplaceable,
};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;

use super::change;
use crate::args::{PlanArgs, Report};
use crate::{progress, table};

/// Names that a note lists; the rest is counted.
const NAMES_MAX: usize = 5;

/// Plans, and prints it.
pub(super) async fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let live = if args.kube.is_meant() {
        let _shown = progress::shown("reading the workloads of the cluster");
        let cluster = Cluster::connect(&args.kube.choice()).await?;
        Some((cluster.context().to_owned(), cluster.workloads().await?))
    } else {
        None
    };
    let source = Source::read(args, live.as_ref())?;
    let live_node = live.as_ref().and_then(|(_, live)| live.node.as_ref());
    let inputs = inputs(args, live_node, source.application.clone())?;
    if let Some((context, live)) = &live {
        eprintln!(
            "note: {context} has {} nodes; one like most of them is planned with",
            live.nodes
        );
    }
    let planned = ambit_plan::plan(&inputs).map_err(|error| source.located(error))?;
    let comparison =
        if args.published { Some(ambit_plan::compare(&inputs, &planned)?) } else { None };
    if let Some(file) = &args.chart {
        std::fs::write(file, ambit_plan::svg(&planned))
            .with_context(|| format!("--chart: write {}", file.display()))?;
        eprintln!("chart written to {}", file.display());
    }
    match args.output {
        Report::Text => super::print_text(&text(&inputs, &planned, comparison.as_ref()))?,
        Report::Json => {
            let mut value = ambit_plan::json(&inputs, &planned);
            if let Some(Comparison { rows, remarks }) = comparison {
                value["published"] =
                    json!({ "columns": Comparison::HEADER, "rows": rows, "remarks": remarks });
            }
            super::print_json(&value)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The application, and the manifests it came of.
struct Source {
    application: Application,
    workloads: Vec<Workload>,
}

impl Source {
    fn read(args: &PlanArgs, live: Option<&(String, LiveWorkloads)>) -> Result<Self> {
        if let Some(count) = args.pods {
            let requests =
                Resources::new(args.cpu.unwrap_or_default(), args.memory.unwrap_or_default());
            return Ok(Self { application: equal(count, requests, args), workloads: vec![] });
        }
        let input = match live {
            Some((name, live)) => {
                let (name, text) = (format!("cluster {name}"), live.manifests.clone());
                vec![ambit_manifest::Input::Text { name, text }]
            }
            None => args.inputs.inputs(),
        };
        if input.is_empty() {
            let application = ambit_plan::published_inputs()?.application;
            return Ok(Self { application, workloads: vec![] });
        }
        let loaded = ambit_manifest::load_workloads(&input);
        let loaded = loaded.or_else(|errors| change::refused(&errors, "planned"))?;
        change::warn(&loaded.warnings);
        let source = Self::of_manifests(args, loaded)?;
        if args.published && !ambit_plan::is_published(&source.application) {
            bail!(
                "the published tables are of 200 pods of 700m/500Mi in 50 namespaces with a \
                 Service each, and the manifests are not; leave out PATH, or give --namespaces 50"
            );
        }
        Ok(source)
    }

    fn of_manifests(args: &PlanArgs, loaded: Workloads) -> Result<Self> {
        let Workloads { mut workloads, service_namespaces, .. } = loaded;
        if let Some(count) = args.namespaces {
            leave_out(&mut workloads, count);
        }
        let mut application = Application { service_namespaces, ..Application::default() };
        let mut problems = Vec::new();
        let mut naming = Vec::new();
        for workload in &workloads {
            let (group, warnings) = match read_pods(workload) {
                Ok(read) => read,
                Err(finding) => {
                    problems.push(*finding);
                    continue;
                }
            };
            change::warn(&warnings);
            if group.names_nodes() {
                naming.push(workload.to_string());
            }
            let is_free = args.ignore_hostnames || args.namespaces.is_some();
            let group = if is_free { group.on_any_node() } else { group };
            match workload.kind {
                WorkloadKind::DaemonSet => application.daemons.push(group),
                _ => application.pods.push(group),
            }
        }
        if !problems.is_empty() {
            return change::refused(&ambit_manifest::Errors(problems), "planned");
        }
        if let Some(count) = args.namespaces {
            application = ambit_plan::repeat(&application, count)?;
            if !naming.is_empty() {
                let names = listed(&naming);
                eprintln!("note: copies may go to any node, whatever node is named by {names}");
            }
        }
        Ok(Self { application, workloads })
    }

    /// An error with the place in the manifests that it is about.
    fn located(&self, error: PlanError) -> anyhow::Error {
        let PlanError::Unplaceable { mode, source: Unplaceable::Pod { pod, why, remedy } } = &error
        else {
            return error.into();
        };
        let name = pod.split_once('/').map_or(pod.as_str(), |(_, name)| name);
        let full = |it: &&Workload| format!("{}/{}", it.namespace, it.name) == *pod;
        let workload = self.workloads.iter().find(full);
        // A copy's name is that of its pattern.
        let workload = workload.or_else(|| self.workloads.iter().find(|it| it.name == name));
        let Some(workload) = workload else { return error.into() };
        let what = format!("mode {mode}: the pod fits no node: {why}");
        anyhow!("{}", workload.finding(workload.spec_path(), &what, remedy))
    }
}

/// Equal pods, spread over namespaces.
fn equal(count: u32, requests: Resources, args: &PlanArgs) -> Application {
    let namespaces = args.namespaces.unwrap_or(1);
    let names: Vec<String> = (1..=namespaces).map(|it| format!("ns-{it}")).collect();
    let share = |index: u32| count / namespaces + u32::from(index < count % namespaces);
    let pods = (0..)
        .zip(&names)
        .map(|(index, name)| PodGroup::plain(name, "pods", share(index), requests));
    Application {
        pods: pods.collect(),
        daemons: vec![],
        service_namespaces: BTreeSet::from_iter(names.iter().cloned()),
    }
}

/// Keeps of the manifests what is repeated, and names the rest.
fn leave_out(workloads: &mut Vec<Workload>, count: u32) {
    let is_repeated = |it: &Workload| it.kind != WorkloadKind::Pod && it.namespace.ends_with("-1");
    let rest: Vec<String> =
        workloads.iter().filter(|it| !is_repeated(it)).map(ToString::to_string).collect();
    // With nothing to repeat all stay, so that the error can say where they are.
    if !rest.is_empty() && rest.len() < workloads.len() {
        workloads.retain(is_repeated);
        let names = listed(&rest);
        eprintln!("note: not repeated in {count} namespaces, and left out: {names}");
    }
}

fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn read_pods(workload: &Workload) -> Result<(PodGroup, Vec<Finding>), Box<Finding>> {
    let Workload { namespace, name, replicas, labels, spec, .. } = workload;
    let located = |note: &ambit_plan::FieldNote| {
        let field = format!("{}.{}", workload.spec_path(), note.field);
        workload.finding(&field, &note.what, &note.remedy)
    };
    let read = PodGroup::read(namespace, name, *replicas, labels, spec);
    let read = read.map_err(|note| Box::new(located(&note)))?;
    Ok((read.group, read.warnings.iter().map(located).collect()))
}

fn inputs(args: &PlanArgs, live: Option<&LiveNode>, application: Application) -> Result<Inputs> {
    if args.published {
        return Ok(Inputs { application, ..ambit_plan::published_inputs()? });
    }
    let mesh = &args.mesh;
    let mut reservations = Reservations::default();
    reservations.istiod_replicas = mesh.istiod_replicas;
    reservations.waypoint_replicas = mesh.waypoint_replicas;
    for (component, resources) in &mesh.reserve {
        reservations.set(*component, *resources);
    }
    if let (Some(path), Some(rps)) = (&mesh.measured, mesh.rps) {
        let case = mesh.measured_case.as_deref();
        reservations.measured = Some(measured(path, case, &mesh.measured_mode, rps)?);
    }
    let labels = args.node.labels.iter().cloned().collect();
    let surroundings = Surroundings { zones: args.node.zones, labels };
    Ok(Inputs { application, node_type: node_type(args, live)?, reservations, surroundings })
}

fn measured(path: &Path, case: Option<&str>, mode: &str, rps: u32) -> Result<Measured> {
    let run = path.display().to_string();
    let read = Run::read(path).context("--measured")?;
    let cost = read.proxy_cost(case, mode).map_err(|error| anyhow!("--measured: {run} {error}"))?;
    let ProxyCost { case, mode, repetitions, cpu_per_request_ns } = cost;
    let requests_per_second = rps;
    Ok(Measured { run, case, mode, repetitions, cpu_per_request_ns, requests_per_second })
}

/// A node as a cluster has it; with the price of the table, if the table knows its type.
fn of_cluster(live: &LiveNode) -> Result<NodeType> {
    let named = NodeType::named(&live.instance_type).ok();
    let amounts = |cpu: &str, memory: &str| {
        let read = (ambit_plan::parse_cpu(cpu), ambit_plan::parse_memory(memory));
        match read {
            (Ok(cpu), Ok(memory)) => Ok(Resources::new(cpu, memory)),
            _ => bail!("a node of the cluster has {cpu:?} of CPU and {memory:?} of memory"),
        }
    };
    let mut node = NodeType::custom(amounts(&live.cpu, &live.memory)?);
    node.allocatable = amounts(&live.allocatable_cpu, &live.allocatable_memory)?;
    node.pods = live.pods.parse().unwrap_or(node.pods);
    node.source = "as the cluster's nodes are".to_owned();
    if !live.instance_type.is_empty() {
        node.name.clone_from(&live.instance_type);
    }
    if let Some(named) = named {
        (node.price, node.fixed_fee) = (named.price, named.fixed_fee);
    }
    Ok(node)
}

fn node_type(args: &PlanArgs, live: Option<&LiveNode>) -> Result<NodeType> {
    let args = &args.node;
    let mut node = match (args.vcpu, args.node_memory, live) {
        (Some(cpu), Some(memory), _) => NodeType::custom(Resources::new(cpu, memory)),
        (_, _, Some(live)) if args.node_type.is_none() => of_cluster(live)?,
        _ => NodeType::named(args.node_type.as_deref().unwrap_or(DEFAULT_NODE_TYPE))?,
    };
    let allocatable = &mut node.allocatable;
    allocatable.cpu_millicores = args.allocatable_cpu.unwrap_or(allocatable.cpu_millicores);
    allocatable.memory_bytes = args.allocatable_memory.unwrap_or(allocatable.memory_bytes);
    node.pods = args.node_pods.unwrap_or(node.pods);
    if args.price.is_some() {
        // Another price is another offer, with a fee of its own.
        (node.price, node.fixed_fee) = (args.price, Price::default());
    }
    node.fixed_fee = args.fixed_fee.unwrap_or(node.fixed_fee);
    node.check()?;
    Ok(node)
}

fn text(inputs: &Inputs, planned: &Plan, comparison: Option<&Comparison>) -> String {
    let mut text = format!("{}\n({})\n", inputs.node_type, inputs.node_type.source);
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}\n", reserved(&inputs.reservations));
    text +=
        &table::format(&["MODE", "ESTIMATE", "vCPU", "GiB", "NODES", "$/MONTH"], &rows(planned));
    if let Some(Comparison { rows, remarks }) = comparison {
        let _ = writeln!(text, "\n{}", table::format(&Comparison::HEADER, rows));
        for remark in remarks {
            let _ = writeln!(text, "* {remark}");
        }
    }
    text += "\nWhy they differ: ideal spreads pods like a liquid over all of a node, allocatable \
             over what pods\nmay request of it, placed puts whole pods where the Kubernetes \
             scheduler would.\n";
    for sentence in ambit_plan::explain(planned) {
        let _ = writeln!(text, "* {sentence}");
    }
    let _ = write!(text, "\n{}", ambit_plan::chart(planned));
    text
}

fn reserved(reservations: &Reservations) -> String {
    let each =
        ambit_plan::Component::ALL.map(|it| format!("{} {}", it.name(), reservations.of(it)));
    let mut text = format!(
        "reserved: {}; replicas: istiod {}, waypoint {}",
        each.join(", "),
        reservations.istiod_replicas,
        reservations.waypoint_replicas
    );
    if let Some(measured) = &reservations.measured {
        let _ = write!(text, "\nztunnel's CPU is measured instead: {measured}");
    }
    text
}

fn rows(planned: &Plan) -> Vec<Vec<String>> {
    let row = |mode: &str, name: &str, estimate: &Estimate| {
        vec![
            mode.to_owned(),
            name.to_owned(),
            estimate.requested.cores(),
            estimate.requested.gibibytes(),
            estimate.nodes.to_string(),
            estimate.monthly.map(|it| it.to_string()).unwrap_or_default(),
        ]
    };
    let of_mode = |mode: &ambit_plan::ModePlan| {
        [
            row(mode.mode, "ideal", &mode.ideal),
            row(mode.mode, "allocatable", &mode.allocatable),
            row(mode.mode, "placed", &mode.placed),
        ]
    };
    planned.modes.iter().flat_map(of_mode).collect()
}
