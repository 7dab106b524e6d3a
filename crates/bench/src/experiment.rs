//! The experiments: what they bring up, and which loads every mode gets.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use ambit_words::labels::{AMBIENT, DATAPLANE_MODE};
use ambit_words::names::DEFAULT_TRUST_DOMAIN;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::args::RunArgs;
use super::manifest::{self, Bookinfo};
use super::modes::{Carrier, Mode};
use super::published::published;
use super::record::Case;

/// The load generator's own pod, beside manifests that have none.
const GENERATOR: &str = "ambit-load";
/// As many objects are applied at once.
const MAX_OBJECTS: usize = 20_000;
/// Sizes of `tiered` unless others are named.
const USUAL_NAMESPACES: [u32; 2] = [1, 5];
/// What the experiments load, and from where.
const DETAILS: &str = "http://details.bookinfo:9080/details/0";
const PRODUCTPAGE: &str = "http://productpage.bookinfo:9080/productpage";
const RATINGS: &str = "http://ratings.bookinfo:9080/ratings/0";
const SERVER: &str = "http://server.bench:8080/?size=1024";
const CLIENT: &str = "bookinfo/fortio";
const STRANGER: &str = "bookinfo/stranger";
/// The pods of `path` on a cluster, in the namespace of every mode, and services of their names.
pub(super) const CLUSTER_CLIENT: &str = "client";
pub(super) const CLUSTER_STRANGER: &str = "stranger";
pub(super) const CLUSTER_SERVER: &str = "server";
pub(super) const CLUSTER_NEIGHBOUR: &str = "neighbour";
/// What cases on one node add to their names.
const ONE_NODE: &str = ", one node";
/// Requests per second of a load of one's own, and of `tiered` in each namespace.
const USUAL_RATE: &str = "50/s";
const USUAL_CONNECTIONS: u32 = 10;

/// What a run is about.
pub(super) struct Experiment {
    /// Its name, or the path of the user's own manifests.
    pub(super) name: String,
    pub(super) title: &'static str,
    /// One machine for each mode, one size after the other.
    pub(super) sizes: Vec<Size>,
    /// System calls are counted, and nothing is timed.
    pub(super) counts_calls: bool,
}

/// A machine, and its loads.
pub(super) struct Size {
    pub(super) namespaces: u32,
    /// Kubernetes manifests with and without the label of the mesh.
    pub(super) manifests: Manifests,
    pub(super) policies: String,
    /// Namespaces that get a waypoint, if the experiment has a form with waypoints.
    pub(super) waypoints: Vec<String>,
    pub(super) cases: Vec<Load>,
    /// What a mesh has to know besides.
    pub(super) beside: Option<Beside>,
    /// Which release of its application, if the experiment has both.
    pub(super) variant: Option<Bookinfo>,
    /// A pod whose requests the policies refuse, and a URL that they are for.
    pub(super) stranger: Option<(String, String)>,
}

/// Manifests of a mode.
pub(super) enum Manifests {
    /// Made for each.
    Made(Box<dyn Fn(bool) -> String + Send + Sync>),
    /// The user's own objects.
    Own(Vec<Value>),
}

/// One load.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) case: Case,
    /// Pods, as `NAMESPACE/POD`, that each run the load generator with the case's words.
    pub(super) generators: Vec<String>,
}

/// What a control plane and proxies have to know besides the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// Policies that select other pods.
    Policies { count: usize, rules: usize },
    /// Workloads that are not on this machine.
    Workloads { count: usize },
}

/// The user's own manifests.
pub struct OwnManifests {
    /// As named.
    pub path: String,
    /// The objects as Kubernetes JSON.
    pub objects: Vec<Value>,
}

/// Names and descriptions of all experiments.
pub(super) const EXPERIMENTS: [(&str, &str); 9] = [
    ("tiered", "an application of three tiers in each of N namespaces, each with its own load"),
    ("details-old", "a server that writes head and body of its answer separately, 100 rps"),
    ("details-new", "the same with TCP_NODELAY, so that neither write waits"),
    ("details-close", "details-old with a new connection for each request"),
    ("bookinfo", "a web page made of four services, old and new, 1000 and 4000 rps"),
    ("ratings", "a small service, 1000 rps on 10 connections"),
    (
        "path",
        "the data path: rates, saturation, new connections, streams, scale; two nodes and one",
    ),
    ("waypoint", "requests through a waypoint: rates, saturation, HTTP/2, idle connections"),
    ("syscalls", "system calls per request of client, server and proxies, counted by the kernel"),
];

impl Experiment {
    /// The experiment of the words.
    pub(super) fn of(args: &RunArgs, own: Option<OwnManifests>) -> Result<Self> {
        let experiment = match own {
            Some(own) => own_manifests(args, own)?,
            None => named(args)?,
        };
        experiment.finished(args)
    }

    /// `path` on a cluster with so many nodes: these objects and this policy in the namespace of
    /// every mode. With one node, what goes from one to another is left out.
    pub(super) fn on_cluster(
        args: &RunArgs,
        nodes: usize,
        objects: Vec<Value>,
        policy: &Value,
    ) -> Result<Self> {
        let mut experiment = named(args)?;
        let across = (nodes > 1).then_some(("", CLUSTER_SERVER));
        let hosts: Vec<_> = across.into_iter().chain([(ONE_NODE, CLUSTER_NEIGHBOUR)]).collect();
        let url = hosts.first().map(|(_, host)| http(host)).unwrap_or_default();
        experiment.sizes = vec![Size {
            namespaces: 1,
            manifests: Manifests::Own(objects),
            policies: policy.to_string(),
            waypoints: Vec::new(),
            cases: hosts
                .into_iter()
                .flat_map(|(suffix, host)| micro(suffix, host, CLUSTER_CLIENT))
                .collect(),
            beside: None,
            variant: None,
            stranger: stranger(CLUSTER_STRANGER, &url),
        }];
        experiment.finished(args)
    }

    /// With what the words leave of its cases, all of them fit to be driven.
    fn finished(mut self, args: &RunArgs) -> Result<Self> {
        for size in &mut self.sizes {
            let name = size.name();
            size.cases.iter_mut().for_each(|load| load.case.machine.clone_from(&name));
        }
        if !args.only.is_empty() {
            self.keep_only(&args.only)?;
        }
        self.check()?;
        Ok(self)
    }

    /// Whether there is anything to enforce.
    pub(super) fn has_policies(&self) -> bool {
        self.sizes.iter().all(|size| size.policies.contains("AuthorizationPolicy"))
    }

    /// Whether there is a form of it with waypoints.
    pub(super) fn has_waypoints(&self) -> bool {
        self.sizes.iter().all(|size| !size.waypoints.is_empty())
    }

    /// Claims about the modes that are not proven, in words.
    pub(super) fn unproven(&self, modes: &[Mode]) -> Option<String> {
        let unproven = self.sizes.iter().any(|size| size.stranger.is_none());
        (unproven && modes.iter().any(|mode| mode.has_policies)).then(|| {
            "that the policies are in force was not proven: nobody is known whom they refuse"
                .to_owned()
        })
    }

    /// Every load's words are the load generator's.
    fn check(&self) -> Result<()> {
        for load in self.loads() {
            for words in &load.case.load {
                ambit_load::check(words)?;
            }
        }
        Ok(())
    }

    fn keep_only(&mut self, only: &[String]) -> Result<()> {
        let all: Vec<String> = self.cases().map(|case| case.name.clone()).collect();
        for size in &mut self.sizes {
            size.cases.retain(|load| only.iter().any(|text| load.case.name.contains(text)));
        }
        self.sizes.retain(|size| !size.cases.is_empty());
        if self.sizes.is_empty() {
            bail!(
                "--only {}: no case has that in its name; there are: {}",
                only.join(" "),
                all.join("; ")
            );
        }
        Ok(())
    }

    /// Every case.
    pub(super) fn cases(&self) -> impl Iterator<Item = &Case> {
        self.loads().map(|load| &load.case)
    }

    /// Every load.
    pub(super) fn loads(&self) -> impl Iterator<Item = &Load> {
        self.sizes.iter().flat_map(|size| &size.cases)
    }
}

impl Size {
    /// In a few words.
    pub(super) fn name(&self) -> String {
        match (self.beside, self.namespaces) {
            (Some(Beside::Policies { count, .. }), _) => format!("{count} policies"),
            (Some(Beside::Workloads { count }), _) => format!("{count} more workloads"),
            (None, 1) => self.variant.map_or("1 namespace", release_name).to_owned(),
            (None, namespaces) => format!("{namespaces} namespaces"),
        }
    }

    /// What a mode starts with.
    pub(super) fn text(&self, mode: &Mode) -> String {
        let manifests = self.manifests.text(mode.has_mesh());
        if mode.has_waypoint && mode.carrier == Carrier::Ambit {
            let waypoints: String =
                self.waypoints.iter().map(|it| manifest::waypoint(it)).collect();
            return format!("{}\n---\n{waypoints}", manifest::behind_waypoints(&manifests));
        }
        if mode.has_mesh() && mode.has_policies {
            return format!("{manifests}\n---\n{}", self.policies);
        }
        manifests
    }

    /// Pods, and requests of theirs (URL and method) that a mode's policies refuse.
    pub(super) fn refused(&self, mode: &Mode) -> Vec<(String, String, &'static str)> {
        let stranger = self.stranger.as_ref().filter(|_| mode.has_policies);
        let stranger = stranger.map(|(pod, url)| (pod.clone(), url.clone(), "GET"));
        // The waypoints' policies let everybody of the namespace look.
        let changer = self.cases.first().filter(|_| mode.has_waypoint).and_then(|load| {
            let url = load.case.load.first()?.get(1)?;
            Some((load.generators.first()?.clone(), url.clone(), "DELETE"))
        });
        stranger.into_iter().chain(changer).collect()
    }

    /// Whether the mode can have it: a sidecar does not know what is beside the application.
    pub(super) fn is_for(&self, mode: &Mode) -> bool {
        self.beside.is_none() || !matches!(mode.carrier, Carrier::Sidecar(_))
    }

    /// Pods at most.
    pub(super) fn pods(&self) -> usize {
        match &self.manifests {
            Manifests::Made(make) => make(true).matches("containers:").count(),
            Manifests::Own(objects) => objects.iter().map(replicas).sum(),
        }
    }
}

/// The pods that an object makes.
fn replicas(object: &Value) -> usize {
    match object["kind"].as_str() {
        Some("Pod") => 1,
        Some("Deployment") => {
            let replicas = object["spec"]["replicas"].as_u64().unwrap_or(1);
            usize::try_from(replicas).unwrap_or(usize::MAX)
        }
        _ => 0,
    }
}

impl Manifests {
    /// What is applied with or without the mesh.
    pub(super) fn text(&self, mesh: bool) -> String {
        match self {
            Self::Made(make) => make(mesh),
            Self::Own(objects) => {
                let items: Vec<Value> = objects.iter().map(|it| labelled(it, mesh)).collect();
                json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
            }
        }
    }
}

/// A namespace in or out of the mesh; other objects as they are.
fn labelled(object: &Value, mesh: bool) -> Value {
    let mut object = object.clone();
    if object["kind"] == "Namespace" {
        match (mesh, object["metadata"]["labels"].as_object_mut()) {
            (true, _) => object["metadata"]["labels"][DATAPLANE_MODE] = json!(AMBIENT),
            (false, Some(labels)) => drop(labels.remove(DATAPLANE_MODE)),
            (false, None) => {}
        }
    }
    object
}

fn named(args: &RunArgs) -> Result<Experiment> {
    let name = args.experiment.as_str();
    let title = EXPERIMENTS.iter().find(|(it, _)| *it == name).map(|(_, title)| *title);
    let title = title.with_context(|| {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|(name, _)| *name).collect();
        format!(
            "{name}: there is neither such an experiment nor such a file; experiments are {}, and \
             manifests of your own are named by their path",
            names.join(", ")
        )
    })?;
    let is_tiered = name == "tiered";
    if !is_tiered && !args.namespaces.is_empty() {
        bail!("--namespaces is for `tiered`; {name} has a size of its own");
    }
    if !is_tiered && (args.rate.is_some() || args.connections.is_some()) {
        bail!(
            "--rate and --connections are for `tiered` and manifests of your own; {name} has loads \
             of its own"
        );
    }
    if args.url.is_some() || args.from.is_some() {
        bail!("--url and --from are for manifests of your own; {name} has loads of its own");
    }
    let sizes = match name {
        "tiered" => tiered(args),
        "details-old" => vec![details(Bookinfo::Old, "details-old", false)],
        "details-new" => vec![details(Bookinfo::New, "details-new", false)],
        "details-close" => vec![details(Bookinfo::Old, "details-close", true)],
        "bookinfo" => vec![bookinfo(Bookinfo::Old), bookinfo(Bookinfo::New)],
        "ratings" => vec![ratings()],
        "path" => path(),
        "waypoint" => vec![waypoint()],
        _ => vec![syscalls(Bookinfo::Old), syscalls(Bookinfo::New)],
    };
    Ok(Experiment { name: name.to_owned(), title, sizes, counts_calls: name == "syscalls" })
}

/// The load generator's words.
fn words(text: &str) -> Vec<String> {
    std::iter::once("load").chain(text.split_whitespace()).map(Into::into).collect()
}

/// A load from one pod.
fn load(name: &str, title: &str, from: &str, text: &str) -> Load {
    Load {
        case: Case {
            name: name.to_owned(),
            title: title.to_owned(),
            machine: String::new(),
            namespaces: 1,
            load: vec![words(text)],
            published: BTreeMap::new(),
            published_source: String::new(),
        },
        generators: vec![from.to_owned()],
    }
}

impl Load {
    /// Beside what was published of a case.
    fn compared(mut self, experiment: &str, case: &str) -> Self {
        if let Some(published) = published(experiment, case) {
            let figures = published.figures.into_iter().map(|(mode, figures)| {
                // What they call by its place is what stands there in a run.
                let mode = if mode == "sidecar" { "envoy".to_owned() } else { mode };
                (mode, figures)
            });
            self.case.published = figures.collect();
            self.case.published_source = published.source.to_owned();
        }
        self
    }
}

/// Who is refused by the policies, and where.
fn stranger(pod: &str, url: &str) -> Option<(String, String)> {
    Some((pod.to_owned(), url.to_owned()))
}

fn release_name(release: Bookinfo) -> &'static str {
    match release {
        Bookinfo::Old => "old",
        Bookinfo::New => "new",
    }
}

fn tiered(args: &RunArgs) -> Vec<Size> {
    let rate = args.rate.as_deref().unwrap_or(USUAL_RATE);
    let connections = args.connections.unwrap_or(USUAL_CONNECTIONS);
    let named = if args.namespaces.is_empty() { &USUAL_NAMESPACES[..] } else { &args.namespaces };
    let mut sizes: Vec<u32> = Vec::new();
    for namespaces in named {
        if !sizes.contains(namespaces) {
            sizes.push(*namespaces);
        }
    }
    let size = |namespaces: u32| {
        let loads = (1..=namespaces).map(|number| {
            words(&format!(
                "http://tier-1-app-a.ns-{number}:8080/ --rate {rate} --connections {connections}"
            ))
        });
        let plural = if namespaces == 1 { "" } else { "s" };
        let case = Case {
            name: format!("{namespaces} namespace{plural}"),
            title: format!(
                "{rate} into each namespace on {connections} connections, which makes five \
                 requests of each"
            ),
            machine: String::new(),
            namespaces,
            load: loads.collect(),
            published: BTreeMap::new(),
            published_source: String::new(),
        };
        let generators = (1..=namespaces).map(|number| format!("ns-{number}/vegeta")).collect();
        Size {
            namespaces,
            manifests: made(move |mesh| manifest::tiered(namespaces, mesh)),
            policies: manifest::tiered_policies(namespaces),
            waypoints: (1..=namespaces).map(|number| format!("ns-{number}")).collect(),
            cases: vec![if Some(&namespaces) == sizes.iter().max() {
                Load { case, generators }.compared("tiered", "50")
            } else {
                Load { case, generators }
            }],
            beside: None,
            variant: None,
            stranger: stranger("ns-1/vegeta", "http://tier-3-app-a.ns-1:8080/"),
        }
    };
    sizes.iter().map(|namespaces| size(*namespaces)).collect()
}

fn made(make: impl Fn(bool) -> String + Send + Sync + 'static) -> Manifests {
    Manifests::Made(Box::new(make))
}

fn details(variant: Bookinfo, name: &str, close: bool) -> Size {
    let close = if close { " --close" } else { "" };
    let words = format!("{DETAILS} --rate 100/s --connections 10{close}");
    let load = load(name, "100 rps on 10 connections", CLIENT, &words).compared(name, "");
    Size {
        namespaces: 1,
        manifests: made(move |mesh| manifest::details(variant, mesh)),
        policies: manifest::details_policies(),
        waypoints: Vec::new(),
        cases: vec![load],
        beside: None,
        variant: None,
        stranger: stranger(STRANGER, DETAILS),
    }
}

fn bookinfo(variant: Bookinfo) -> Size {
    let name = release_name(variant);
    let loads = [(1000, 100), (4000, 400)].map(|(rate, connections)| {
        let words = format!("{PRODUCTPAGE} --rate {rate}/s --connections {connections}");
        let title = format!("{rate} rps on {connections} connections");
        load(&format!("{name}, {rate} rps"), &title, CLIENT, &words)
            .compared("bookinfo", &format!("{name}-{rate}"))
    });
    Size {
        namespaces: 1,
        manifests: made(move |mesh| manifest::bookinfo(variant, mesh)),
        policies: manifest::bookinfo_policies(),
        waypoints: Vec::new(),
        cases: loads.into(),
        beside: None,
        variant: Some(variant),
        stranger: stranger(CLIENT, DETAILS),
    }
}

fn ratings() -> Size {
    let words = format!("{RATINGS} --rate 1000/s --connections 10");
    let load = load("ratings", "1000 rps on 10 connections", CLIENT, &words)
        .compared("ratings", "kube-cni");
    Size {
        namespaces: 1,
        manifests: made(manifest::ratings),
        policies: manifest::ratings_policies(),
        waypoints: Vec::new(),
        cases: vec![load],
        beside: None,
        variant: None,
        stranger: stranger(STRANGER, RATINGS),
    }
}

/// Where HTTP is served.
pub(super) fn http(host: &str) -> String {
    format!("http://{host}:8080/?size=1024")
}

/// The micro cases from a client to a host.
fn micro(suffix: &str, host: &str, client: &str) -> [Load; 5] {
    let (url, sink) = (http(host), format!("tcp://{host}:9000 --protocol tcp-stream"));
    let case = |name: &str, title: &str, text: String| {
        load(&format!("{name}{suffix}"), title, client, &text)
    };
    [
        case(
            "1000 rps",
            "1000 rps on 10 connections, 1 KiB",
            format!("{url} --rate 1000/s --connections 10"),
        ),
        case(
            "saturation",
            "as fast as 16 connections go, 1 KiB",
            format!("{url} --rate max --connections 16"),
        ),
        case(
            "connection per request",
            "4 clients, a new connection for each request",
            format!("{url} --rate max --connections 4 --close"),
        ),
        case("one stream", "one TCP stream", format!("{sink} --rate max --connections 1")),
        case("four streams", "four TCP streams", format!("{sink} --rate max --connections 4")),
    ]
}

/// The micro cases, each on two nodes and on one.
fn path() -> Vec<Size> {
    let hosts = [("", "server.bench"), (ONE_NODE, "neighbour.bench")];
    let cases = hosts.into_iter().flat_map(|(suffix, host)| micro(suffix, host, "bench/client"));
    let mut cases: Vec<Load> = cases.collect();
    cases.push(load(
        "10,000 connections",
        "10,000 connections that are idle most of the time, 500 rps over all of them",
        "bench/client",
        &format!("{SERVER} --rate 500/s --connections 10000"),
    ));
    let server = |cases, beside| Size {
        namespaces: 1,
        manifests: made(manifest::path),
        policies: manifest::path_policies(),
        waypoints: Vec::new(),
        cases,
        beside,
        variant: None,
        stranger: stranger("bench/stranger", SERVER),
    };
    let mut sizes = vec![server(cases, None)];
    for (name, title, beside) in [
        (
            "10,000 policies",
            "1000 rps beside 10,000 policies of 10 rules for other workloads",
            Beside::Policies { count: 10_000, rules: 10 },
        ),
        (
            "100,000 workloads",
            "1000 rps with 100,000 more workloads in the view",
            Beside::Workloads { count: 100_000 },
        ),
    ] {
        let text = format!("{SERVER} --rate 1000/s --connections 10");
        sizes.push(server(vec![load(name, title, "bench/client", &text)], Some(beside)));
    }
    sizes
}

/// Requests of each version of HTTP, in the forms in which clients keep connections.
fn waypoint() -> Size {
    let case = |name: &str, title: &str, text: &str| {
        load(name, title, "bench/client", &format!("{SERVER} {text}"))
    };
    Size {
        namespaces: 1,
        manifests: made(manifest::path),
        policies: manifest::path_policies(),
        waypoints: vec!["bench".to_owned()],
        cases: vec![
            case("1000 rps", "1000 rps on 10 connections, 1 KiB", "--rate 1000/s --connections 10"),
            case(
                "saturation",
                "as fast as 16 connections go, 1 KiB",
                "--rate max --connections 16",
            ),
            case(
                "HTTP/2, 16 connections",
                "as fast as 16 connections of HTTP/2 go, a stream each, 1 KiB",
                "--protocol h2c --rate max --connections 16",
            ),
            case(
                "HTTP/2, 4 connections",
                "as fast as 4 connections of HTTP/2 go, 16 streams each, 1 KiB",
                "--protocol h2c --rate max --connections 4 --streams 16",
            ),
            case(
                "connection per request",
                "4 clients, a new connection for each request",
                "--rate max --connections 4 --close",
            ),
            case(
                "2,000 connections",
                "2,000 connections that are idle most of the time, 500 rps over all of them",
                "--rate 500/s --connections 2000",
            ),
        ],
        beside: None,
        variant: None,
        stranger: stranger("bench/stranger", SERVER),
    }
}

fn syscalls(variant: Bookinfo) -> Size {
    let name = release_name(variant);
    let loads = [("", ""), (", a connection per request", " --close")].map(|(suffix, close)| {
        let words = format!("{DETAILS} --rate 100/s --connections 10{close}");
        load(&format!("details-{name}{suffix}"), "100 rps on 10 connections", CLIENT, &words)
    });
    Size {
        namespaces: 1,
        manifests: made(move |mesh| manifest::details(variant, mesh)),
        policies: manifest::details_policies(),
        waypoints: Vec::new(),
        cases: loads.into(),
        beside: None,
        variant: Some(variant),
        stranger: stranger(STRANGER, DETAILS),
    }
}

/// The user's own application: its objects without policies, its policies, one load.
fn own_manifests(args: &RunArgs, own: OwnManifests) -> Result<Experiment> {
    let url = args.url.as_deref().with_context(|| {
        format!(
            "say what to load of {} with --url, for example --url http://web.default:8080/",
            own.path
        )
    })?;
    if !args.namespaces.is_empty() {
        bail!("--namespaces is for `tiered`; manifests of your own have the namespaces they have");
    }
    let is_policy = |object: &Value| object["kind"] == "AuthorizationPolicy";
    let (policies, mut objects): (Vec<Value>, Vec<Value>) =
        own.objects.into_iter().partition(is_policy);
    let from = match &args.from {
        Some(from) => from.clone(),
        None => {
            let namespace = namespace_for_generator(&mut objects);
            objects.push(generator(&namespace));
            format!("{namespace}/{GENERATOR}")
        }
    };
    let rate = args.rate.as_deref().unwrap_or(USUAL_RATE);
    let connections = args.connections.unwrap_or(USUAL_CONNECTIONS);
    let policies = json!({ "apiVersion": "v1", "kind": "List", "items": policies });
    let mut load = load(url, &format!("{rate} on {connections} connections"), &from, "");
    // Not split at blanks: the words are the user's.
    let words = ["load", url, "--rate", rate, "--connections", &connections.to_string()];
    load.case.load = vec![words.map(Into::into).into()];
    let size = Size {
        namespaces: 1,
        manifests: Manifests::Own(objects),
        policies: policies.to_string(),
        waypoints: Vec::new(),
        beside: None,
        cases: vec![load],
        variant: None,
        stranger: None,
    };
    Ok(Experiment {
        name: own.path,
        title: "manifests of one's own",
        sizes: vec![size],
        counts_calls: false,
    })
}

/// The first namespace that the manifests make, or `default`, which then is one of them.
fn namespace_for_generator(objects: &mut Vec<Value>) -> String {
    let mut namespaces = objects.iter().filter(|object| object["kind"] == "Namespace");
    if let Some(name) = namespaces.find_map(|object| object["metadata"]["name"].as_str()) {
        return name.to_owned();
    }
    let name = "default";
    objects.push(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name }
    }));
    name.to_owned()
}

fn generator(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": GENERATOR, "namespace": namespace },
        "spec": { "containers": [
            { "name": "load", "image": "ambit/sample:1", "args": ["sleep"] }
        ] }
    })
}

impl Beside {
    /// The objects, as manifests that can be applied one after the other.
    pub(super) fn manifests(self) -> Vec<String> {
        let items: Vec<Value> = match self {
            Self::Policies { count, rules } => {
                (0..count).map(|number| policy(number, rules)).collect()
            }
            Self::Workloads { count } => (0..count).map(workload).collect(),
        };
        let parts = items.chunks(MAX_OBJECTS);
        let list = |items| json!({ "apiVersion": "v1", "kind": "List", "items": items });
        parts.map(|items| list(items).to_string()).collect()
    }
}

/// A policy for workloads that are not there, in the namespace of those that are.
fn policy(number: usize, rules: usize) -> Value {
    let rule = |rule: usize| {
        let principal = format!("{DEFAULT_TRUST_DOMAIN}/ns/other-{number}/sa/client-{rule}");
        json!({ "from": [{ "source": { "principals": [principal] } }] })
    };
    json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": { "name": format!("other-{number}"), "namespace": "bench" },
        "spec": {
            "selector": { "matchLabels": { "app": format!("other-{number}") } },
            "action": "ALLOW",
            "rules": (0..rules).map(rule).collect::<Vec<_>>()
        }
    })
}

/// A workload elsewhere: an address of the network for benchmarks (RFC 2544).
fn workload(number: usize) -> Value {
    let first = u32::from(Ipv4Addr::new(198, 18, 0, 0));
    let address = Ipv4Addr::from(first + u32::try_from(number).unwrap_or_default());
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "WorkloadEntry",
        "metadata": { "name": format!("other-{number}"), "namespace": "bench" },
        "spec": {
            "address": address.to_string(),
            "labels": { "app": format!("other-{}", number / 100) },
            "serviceAccount": "other"
        }
    })
}

/// How long a machine may take to start, and to take up what is beside it.
pub(super) const START_LIMIT: Duration = Duration::from_secs(600);
