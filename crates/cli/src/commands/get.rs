//! `ambit get`: lists from control and from the proxies, as columns or as JSON.
//!
//! The items are those of [`ambit_wire::admin`]. `-o json` prints them unchanged; a proxy's items
//! get their node. Kinds that control does not list are shown as a machine keeps them.

mod columns;
mod events;

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use ambit_machine::layout::Layout;
use ambit_machine::{Client, PodInfo, Record};
use ambit_manifest::Kind as StoredKind;
use ambit_model::printable::printable;
use ambit_wire::admin::{
    self, ApiVersion, Connection, Connections, HeldCertificate, List, Namespace, OlderConnections,
    control, node_proxy,
};
use ambit_words::labels::CUT_OPEN_CONNECTIONS;
use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::columns::{Column, Row};
pub(super) use self::events::events;
use super::mesh::{self, Answers, Mesh};
use super::status::escape;
use super::stored;
use crate::args::{GetArgs, Kind, Output, RoutesArgs, ShownKind};
use crate::{colour, table};

/// How often a list is asked for again.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Prints what is asked for.
pub(super) async fn get(args: GetArgs) -> Result<ExitCode> {
    let output = args.output.output;
    let mesh = mesh::find(&args.state, &args.kube).await?;
    let mut printer = Printer::new(&mesh, args.shown.kind, output);
    printer.namespace = args.namespace.as_deref();
    printer.names = args.shown.name.into_iter().chain(args.names).collect();
    show_or_watch(printer, args.watch).await
}

/// Prints a list, and goes on if it is watched.
async fn show_or_watch(mut printer: Printer<'_>, is_watched: bool) -> Result<ExitCode> {
    let is_lines = matches!(printer.output, Output::Table | Output::Wide | Output::Name);
    if is_watched && !is_lines {
        bail!("--watch prints lines; use it without -o, or with -o wide or -o name");
    }
    printer.told = is_watched.then(HashSet::new);
    loop {
        list(&mut printer).await?;
        if !is_watched {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

async fn list(printer: &mut Printer<'_>) -> Result<()> {
    let (mesh, namespace) = (printer.mesh, printer.namespace);
    let kind = match printer.kind {
        ShownKind::Stored(kind) => return stored(printer, kind).await,
        ShownKind::Events => return events::list(printer).await,
        ShownKind::Listed(kind) => match printer.kubernetes_kind(kind) {
            Some(kind) => return stored(printer, kind).await,
            None => kind,
        },
    };
    if let Mesh::Machine(layout) = mesh
        && !Record::read(layout)?.mesh
    {
        if kind != Kind::Pods {
            bail!(
                "this machine was started without the mesh; it has only pods and the objects of \
                 manifests to show"
            );
        }
        let pods = pods_without_mesh(layout, namespace).await?;
        return printer.show(List::from_iter(pods)).await;
    }
    match kind {
        Kind::Pods => of_control::<admin::Pod>(printer, control::PODS).await,
        Kind::Services => of_control::<admin::Service>(printer, control::SERVICES).await,
        Kind::Workloads => of_control::<admin::Workload>(printer, control::WORKLOADS).await,
        Kind::Policies => of_control::<admin::Policy>(printer, control::POLICIES).await,
        Kind::Gateways => of_control::<admin::Gateway>(printer, control::GATEWAYS).await,
        Kind::Routes => of_control::<admin::Route>(printer, control::ROUTES).await,
        Kind::Telemetries => of_control::<admin::Telemetry>(printer, control::TELEMETRIES).await,
        Kind::TrafficPolicies => {
            of_control::<admin::TrafficPolicy>(printer, control::TRAFFIC_POLICIES).await
        }
        Kind::Nodes => printer.show(mesh.nodes().await?).await,
        Kind::Certificates => {
            let answers = mesh.proxies::<List<HeldCertificate>>(node_proxy::CERTIFICATES).await?;
            let gathered =
                gather(answers, |list| (list.items, None), |held| is_of(held, namespace));
            printer.show(told(gathered?)).await
        }
        Kind::Connections => {
            let answers = mesh.proxies::<Connections>(node_proxy::CONNECTIONS).await?;
            let gathered = gather(answers, connections, |item| concerns(item, namespace));
            let older_than_capture = older(mesh, namespace).await;
            printer.show(OfProxies { older_than_capture, ..told(gathered?) }).await
        }
    }
}

/// The objects of a kind that the machine keeps.
async fn stored(printer: &mut Printer<'_>, kind: StoredKind) -> Result<()> {
    let Mesh::Machine(layout) = printer.mesh else {
        bail!("in a cluster this is kubectl's job: `kubectl get {}`", kind.plural());
    };
    let objects = stored::objects(&Client::new(layout.clone()), kind).await?;
    let is_wanted = |it: &Value| {
        let namespace = &it["metadata"]["namespace"];
        !kind.is_namespaced() || printer.namespace.is_none_or(|wanted| namespace == wanted)
    };
    let objects: Vec<Value> = objects.into_iter().filter(is_wanted).collect();
    let is_alone = printer.names.len() == 1;
    match kind {
        StoredKind::PodDisruptionBudget => {
            let items = objects.into_iter().map(Budget).collect();
            printer.show(Objects::new(items, is_alone)).await
        }
        StoredKind::PersistentVolumeClaim => {
            let items = objects.into_iter().map(Claim).collect();
            printer.show(Objects::new(items, is_alone)).await
        }
        StoredKind::HorizontalPodAutoscaler => {
            let items = objects.into_iter().map(Autoscaler).collect();
            printer.show(Objects::new(items, is_alone)).await
        }
        _ => {
            let items = objects.into_iter().map(Object).collect();
            printer.show(Objects::new(items, is_alone)).await
        }
    }
}

/// Prints the routes of a service, in order of precedence.
pub(super) async fn routes(args: RoutesArgs) -> Result<ExitCode> {
    let mesh = mesh::find(&args.state, &args.kube).await?;
    let target = format!("{}?service={}", control::ROUTE_TABLE, escape(&args.service));
    let list: List<admin::RouteLine> = mesh.control(&target).await?;
    let kind = ShownKind::Listed(Kind::Routes);
    let mut printer = Printer::new(&mesh, kind, args.output.output);
    printer.show(list).await?;
    Ok(ExitCode::SUCCESS)
}

async fn of_control<T>(printer: &mut Printer<'_>, path: &str) -> Result<()>
where
    T: Row + DeserializeOwned,
{
    let query = printer.namespace.map(|namespace| format!("?namespace={namespace}"));
    let target = format!("{path}{}", query.unwrap_or_default());
    let list: List<T> = printer.mesh.control(&target).await?;
    printer.show(list).await
}

/// What is printed: a list with more or less beside its items.
trait Shown: Serialize {
    type Item: Row;

    fn items(&mut self) -> &mut Vec<Self::Item>;

    /// The object that is shown instead of a list, as kubectl shows one that is named.
    fn alone(&self) -> Option<Value> {
        None
    }
}

impl<T: Row> Shown for List<T> {
    type Item = T;

    fn items(&mut self) -> &mut Vec<T> {
        &mut self.items
    }
}

/// Objects as the machine keeps them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Objects<T> {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<T>,
    /// A single one was named.
    #[serde(skip)]
    is_alone: bool,
}

impl<T> Objects<T> {
    fn new(items: Vec<T>, is_alone: bool) -> Self {
        Self { api_version: "v1", kind: "List", items, is_alone }
    }
}

/// One of them.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Object(Value);

/// A HorizontalPodAutoscaler.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Autoscaler(Value);

/// A PersistentVolumeClaim.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Claim(Value);

/// A PodDisruptionBudget.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Budget(Value);

impl<T: Row> Shown for Objects<T> {
    type Item = T;

    fn items(&mut self) -> &mut Vec<T> {
        &mut self.items
    }

    fn alone(&self) -> Option<Value> {
        let first = self.items.first().filter(|_| self.is_alone)?;
        serde_json::to_value(first).ok()
    }
}

impl<T: Serialize> Shown for OfProxies<T>
where
    OnNode<T>: Row,
{
    type Item = OnNode<T>;

    fn items(&mut self) -> &mut Vec<OnNode<T>> {
        &mut self.items
    }
}

/// What a command shows, of which mesh, and how.
struct Printer<'a> {
    mesh: &'a Mesh,
    namespace: Option<&'a str>,
    /// Only these, if any are named.
    names: Vec<String>,
    kind: ShownKind,
    output: Output,
    /// Which events.
    events: events::Filter,
    /// If the list is watched: the lines that were printed the last time.
    told: Option<HashSet<Vec<String>>>,
}

impl<'a> Printer<'a> {
    /// Shows everything of a kind.
    fn new(mesh: &'a Mesh, kind: ShownKind, output: Output) -> Self {
        let (names, events) = (Vec::new(), events::Filter::default());
        Self { mesh, namespace: None, names, kind, output, events, told: None }
    }

    async fn show<L: Shown>(&mut self, mut list: L) -> Result<()> {
        self.keep_named(list.items())?;
        let is_empty = list.items().is_empty();
        if is_empty && self.told.is_none() {
            eprintln!("{}", nothing_found(self.mesh, self.namespace).await);
        }
        let value = |list: &L| list.alone().map_or_else(|| serde_json::to_value(list), Ok);
        match &self.output {
            Output::Json => match list.alone() {
                Some(value) => super::print_json(&value),
                None => super::print_json(&list),
            },
            Output::Yaml => super::print_text(&serde_saphyr::to_string(&value(&list)?)?),
            Output::Template(template) => super::print_text(&template.print(&value(&list)?)),
            Output::Columns(columns) => {
                let header: Vec<&str> = columns.iter().map(|it| it.title.as_str()).collect();
                let items = list.items().iter().map(serde_json::to_value);
                let items: Vec<Value> = items.collect::<Result<_, _>>()?;
                let row = |item: &Value| columns.iter().map(|it| it.cell(item)).collect();
                let rows: Vec<Vec<String>> = items.iter().map(row).collect();
                super::print_text(&table::format(&header, &rows))
            }
            Output::Table | Output::Wide | Output::Name if is_empty => Ok(()),
            Output::Name => {
                let names: Vec<Vec<String>> =
                    list.items().iter().map(|it| vec![self.path_of(it)]).collect();
                self.print_lines(None, names)
            }
            Output::Table | Output::Wide => {
                let is_shown = |it: &Column<L::Item>| !it.is_wide || self.output == Output::Wide;
                let columns: Vec<_> = L::Item::columns().into_iter().filter(is_shown).collect();
                let header: Vec<&str> = columns.iter().map(|it| it.title).collect();
                let row = |item: &L::Item| columns.iter().map(|it| (it.cell)(item)).collect();
                let rows: Vec<Vec<String>> = list.items().iter().map(row).collect();
                self.print_lines(Some(&header), rows)
            }
        }
    }

    /// The kind of Kubernetes that a template reads instead of Ambit's list: who writes one knows
    /// the fields from there.
    fn kubernetes_kind(&self, kind: Kind) -> Option<StoredKind> {
        let is_template = matches!(self.output, Output::Template(_) | Output::Columns(_));
        if !is_template || !matches!(self.mesh, Mesh::Machine(_)) {
            return None;
        }
        match kind {
            Kind::Pods => Some(StoredKind::Pod),
            Kind::Services => Some(StoredKind::Service),
            Kind::Gateways => Some(StoredKind::Gateway),
            Kind::Telemetries => Some(StoredKind::Telemetry),
            Kind::TrafficPolicies => Some(StoredKind::TrafficPolicy),
            Kind::Nodes => Some(StoredKind::Node),
            Kind::Workloads | Kind::Policies | Kind::Routes => None,
            Kind::Certificates | Kind::Connections => None,
        }
    }

    /// Prints lines; of a list that is watched those that are new.
    fn print_lines(&mut self, header: Option<&[&str]>, rows: Vec<Vec<String>>) -> Result<()> {
        let Some(told) = &mut self.told else {
            let text = match header {
                Some(header) => table::format(header, &rows),
                None => joined(&rows),
            };
            return super::print_coloured(&text, colour::states);
        };
        let new: Vec<Vec<String>> =
            rows.iter().filter(|row| !told.contains(*row)).cloned().collect();
        let is_first = told.is_empty();
        *told = rows.into_iter().collect();
        if new.is_empty() {
            return Ok(());
        }
        let text = match header {
            Some(header) if is_first => table::format(header, &new),
            // As wide as its own cells: who watches reads line by line.
            Some(header) => {
                let text = table::format(header, &new);
                text.split_once('\n').map_or(String::new(), |(_, rows)| rows.to_owned())
            }
            None => joined(&new),
        };
        super::print_coloured(&text, colour::states)
    }

    /// Leaves out what is not named, and fails if a name is not there.
    fn keep_named<T: Row>(&self, items: &mut Vec<T>) -> Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        let Some(name) = name_of::<T>() else {
            bail!("{} have no names; leave the name out", self.plural());
        };
        items.retain(|it| self.names.contains(&name(it)));
        let missing: Vec<&str> = self
            .names
            .iter()
            .filter(|wanted| !items.iter().any(|it| name(it) == **wanted))
            .map(String::as_str)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let place = self.namespace.map(|it| format!(" in namespace {it}")).unwrap_or_default();
        bail!("there are no {} named {}{place}", self.plural(), missing.join(", "))
    }

    fn path_of<T: Row>(&self, item: &T) -> String {
        let name = name_of::<T>().map(|name| name(item)).unwrap_or_default();
        format!("{}/{name}", self.plural())
    }

    fn plural(&self) -> String {
        match self.kind {
            ShownKind::Stored(kind) => kind.plural().to_owned(),
            ShownKind::Events => "events".to_owned(),
            ShownKind::Listed(kind) => {
                kind.to_possible_value().map_or(String::new(), |it| it.get_name().to_owned())
            }
        }
    }
}

fn joined(rows: &[Vec<String>]) -> String {
    rows.iter().map(|row| format!("{}\n", row.join(" "))).collect()
}

/// How the name of an item is found.
fn name_of<T: Row>() -> Option<fn(&T) -> String> {
    T::columns().into_iter().find(|it| it.title == "NAME").map(|it| it.cell)
}

/// Pods with connections that no proxy lists, because they are older than the pod's capture; the
/// pods' agents count them. A list without them looks like all that is open.
async fn older(mesh: &Mesh, namespace: Option<&str>) -> Option<Vec<OlderConnections>> {
    match mesh.status().await {
        Ok(status) => {
            let older = of_namespace(status.pods.older_than_capture, namespace);
            older.iter().for_each(|it| eprintln!("{}", bypassing(it)));
            Some(older)
        }
        Err(error) => {
            eprintln!(
                "warning: connections that are older than the capture of their pods are left out: \
                 {error:#}"
            );
            None
        }
    }
}

fn of_namespace(
    mut older: Vec<OlderConnections>,
    namespace: Option<&str>,
) -> Vec<OlderConnections> {
    older.retain(|it| {
        let of_pod = it.pod.split_once('/');
        namespace.is_none_or(|wanted| of_pod.is_some_and(|(of, _)| of == wanted))
    });
    older
}

fn bypassing(older: &OlderConnections) -> String {
    format!(
        "note: {} has {} more open connections, older than its capture: in plain text, \
         without policy and not in this list; restart their clients, or label the pod \
         {CUT_OPEN_CONNECTIONS}=true",
        printable(&older.pod),
        older.connections
    )
}

/// The message for an empty list, so that a misspelt namespace does not look like an empty one.
async fn nothing_found(mesh: &Mesh, namespace: Option<&str>) -> String {
    let Some(wanted) = namespace else { return "No resources found.".to_owned() };
    match mesh.control::<List<Namespace>>(control::NAMESPACES).await {
        Ok(list) => not_in_namespace(wanted, &list.items),
        Err(_) => format!("No resources found in {wanted} namespace."),
    }
}

fn not_in_namespace(wanted: &str, namespaces: &[Namespace]) -> String {
    let names: Vec<&str> = namespaces.iter().map(|it| it.name.as_str()).collect();
    if names.contains(&wanted) {
        return format!("No resources found in {wanted} namespace.");
    }
    format!(
        "No resources found in {wanted} namespace: it does not exist; there are {}",
        names.join(", ")
    )
}

/// The pods of a machine that no control plane knows.
async fn pods_without_mesh(layout: &Layout, namespace: Option<&str>) -> Result<Vec<admin::Pod>> {
    let pods = Client::new(layout.clone()).pods().await?;
    let wanted = pods.into_iter().filter(|pod| namespace.is_none_or(|it| pod.namespace == it));
    Ok(wanted.map(without_mesh).collect())
}

fn without_mesh(pod: PodInfo) -> admin::Pod {
    admin::Pod {
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
        node: pod.node,
        owner: pod.owner,
        service_account: pod.service_account,
        phase: pod.phase.to_string().into(),
        ready: pod.ready,
        restarts: pod.restarts,
        reason: Some(pod.reason).filter(|reason| !reason.is_empty()),
        ips: pod.pod_ips,
        host_network: pod.host_network,
        mode: "none".into(),
        captured: false,
        older_connections: 0,
    }
}

/// The items of all proxies.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct OfProxies<T> {
    /// The version of this form.
    api_version: ApiVersion,
    /// The items, each with its node.
    items: Vec<OnNode<T>>,
    /// What is not among them, such as those of a proxy that does not answer: a sentence each.
    left_out: Vec<String>,
    /// Pods with connections that are older than their capture, which no proxy lists; absent from
    /// other lists, and where control does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    older_than_capture: Option<Vec<OlderConnections>>,
}

/// An item of the proxy of a node.
#[derive(Debug, PartialEq, Serialize)]
struct OnNode<T> {
    #[serde(flatten)]
    item: T,
    node: String,
}

/// Names what is left out, because a shorter list looks like fewer connections.
fn told<T>(list: OfProxies<T>) -> OfProxies<T> {
    for sentence in &list.left_out {
        eprintln!("warning: {sentence}");
    }
    list
}

/// The items of all proxies that answered, and a word on each that did not or not in full. Without
/// any answer there is nothing to show, which is an error.
fn gather<A, T>(
    answers: Answers<A>,
    parts: impl Fn(A) -> (Vec<T>, Option<String>),
    is_wanted: impl Fn(&T) -> bool,
) -> Result<OfProxies<T>> {
    let (mut all, mut shorter, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    let nodes = answers.len();
    for (node, answer) in answers {
        match answer.map(&parts) {
            Ok((items, missing)) => {
                shorter.extend(missing.map(|missing| format!("{node}: {missing}")));
                let wanted = items.into_iter().filter(&is_wanted);
                all.extend(wanted.map(|item| OnNode { item, node: node.clone() }));
            }
            Err(error) => {
                left_out.push(format!("{node} is left out, its proxy cannot be asked: {error:#}"))
            }
        }
    }
    if nodes > 0 && left_out.len() == nodes {
        bail!("no proxy answers: {}", left_out.join("; "));
    }
    left_out.extend(shorter);
    let older_than_capture = None;
    Ok(OfProxies { api_version: ApiVersion, items: all, left_out, older_than_capture })
}

/// The connections of one proxy, and what it says is missing.
fn connections(answer: Connections) -> (Vec<Connection>, Option<String>) {
    let missing = match answer.left_out {
        None => Some(
            "connections that earlier workers of the proxy may still finish are left out, its \
             supervisor cannot be asked for them"
                .to_owned(),
        ),
        Some(0) => None,
        Some(count) => {
            Some(format!("connections of workers that do not answer ({count}) are left out"))
        }
    };
    (answer.items, missing)
}

/// Whether a connection has an end in the namespace.
fn concerns(connection: &Connection, namespace: Option<&str>) -> bool {
    let Some(namespace) = namespace else { return true };
    let ends = [&connection.source_workload, &connection.destination_workload];
    let mut names = ends.into_iter().flatten().filter_map(|name| name.split_once('/'));
    names.any(|(of, _)| of == namespace)
}

/// Whether a certificate is of an identity of the namespace.
fn is_of(held: &HeldCertificate, namespace: Option<&str>) -> bool {
    namespace.is_none_or(|namespace| held.identity.contains(&format!("/ns/{namespace}/")))
}

#[cfg(test)]
mod tests {
    use ambit_wire::admin::CertificateState;

    use super::*;

    fn held(identity: &str) -> HeldCertificate {
        HeldCertificate {
            identity: identity.to_owned(),
            state: CertificateState::Available,
            cert_chain: Vec::new(),
            root_certs: Vec::new(),
            last_failure: None,
        }
    }

    #[test]
    fn a_proxy_that_does_not_answer_hides_no_other() {
        let refused = || Err(anyhow::anyhow!("no such page"));
        let of_app = "spiffe://t/ns/app/sa/web";
        let all = [of_app, "spiffe://t/ns/other/sa/web"].map(held);
        let answers =
            vec![("node-1".to_owned(), Ok(List::from_iter(all))), ("node-2".to_owned(), refused())];
        let parts = |list: List<HeldCertificate>| (list.items, None);
        let gathered = gather(answers, parts, |it| is_of(it, Some("app"))).unwrap();
        let expected = OnNode { item: held(of_app), node: "node-1".to_owned() };
        assert_eq!(gathered.items, [expected]);
        let [left_out] = &*gathered.left_out else { panic!("{:?}", gathered.left_out) };
        assert!(left_out.contains("node-2") && left_out.contains("no such page"), "{left_out}");
        assert!(gather(vec![("node-1".to_owned(), refused())], parts, |_| true).is_err());
    }

    #[test]
    fn what_proxies_answer_is_printed_with_its_node() {
        let item = Connection { direction: "inbound".into(), ..Connection::default() };
        let answer = Connections { items: vec![item], left_out: None, ..Connections::default() };
        let answers = vec![("node-1".to_owned(), Ok(answer))];
        let gathered = gather(answers, connections, |_| true).unwrap();
        let older = OlderConnections { pod: "app/web".to_owned(), connections: 2 };
        let gathered = OfProxies { older_than_capture: Some(vec![older]), ..gathered };
        insta::assert_snapshot!(serde_json::to_string_pretty(&gathered).unwrap());
    }

    #[test]
    fn a_list_that_is_not_whole_says_so() {
        let check = |left_out: Option<usize>, expected: Option<&str>| {
            let items = vec![Connection { age_ms: 1, ..Connection::default() }];
            let answer = Connections { items, left_out, ..Connections::default() };
            let answers = vec![("node-1".to_owned(), Ok(answer))];
            let gathered = gather(answers, connections, |_| true).unwrap();
            assert_eq!(gathered.items.len(), 1);
            let warnings = gathered.left_out;
            assert_eq!(warnings.len(), usize::from(expected.is_some()), "{warnings:?}");
            let said = warnings.iter().zip(expected).all(|(warning, expected)| {
                warning.starts_with("node-1: ") && warning.contains(expected)
            });
            assert!(said, "{warnings:?}");
        };
        check(Some(0), None);
        check(Some(2), Some("do not answer (2)"));
        check(None, Some("supervisor"));
    }

    #[test]
    fn connections_that_bypass_the_mesh_are_counted_beside_the_list() {
        let of = |pod: &str, connections| OlderConnections { pod: pod.to_owned(), connections };
        let all = vec![of("app/web", 2), of("client/load", 3)];
        assert_eq!(of_namespace(all.clone(), None).len(), 2);
        let of_app = of_namespace(all, Some("app"));
        assert_eq!(of_app, [of("app/web", 2)]);
        let note = bypassing(&of_app[0]);
        assert!(note.starts_with("note: app/web has 2 more open connections"), "{note}");
        assert!(note.contains("ambit.io/cut-open-connections=true"), "{note}");
    }

    #[test]
    fn a_connection_concerns_the_namespaces_of_its_ends() {
        let connection = Connection {
            source_workload: Some("client/sleep".to_owned()),
            destination_workload: Some("app/web".to_owned()),
            ..Connection::default()
        };
        let check = |namespace, expected| assert_eq!(concerns(&connection, namespace), expected);
        check(None, true);
        check(Some("app"), true);
        check(Some("client"), true);
        check(Some("web"), false);
    }

    #[test]
    fn an_unknown_namespace_is_told_from_an_empty_one() {
        let named = |name: &str| Namespace { name: name.to_owned(), ..Namespace::default() };
        let namespaces = ["app", "client"].map(named);
        let check = |wanted, expected: &str| {
            assert_eq!(not_in_namespace(wanted, &namespaces), expected);
        };
        check("app", "No resources found in app namespace.");
        let unknown = "No resources found in nope namespace: it does not exist; there are app, \
            client";
        check("nope", unknown);
    }
}
