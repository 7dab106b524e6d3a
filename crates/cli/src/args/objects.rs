//! The arguments that name objects, as kubectl's do.

use std::time::Duration;

use ambit_manifest::Kind as StoredKind;
use ambit_words::durations::{DurationError, parse_duration};
use ambit_words::kinds::SHORT_NAMES;
use clap::{Args, Subcommand, ValueEnum};

use super::{KubeArgs, StateArgs};
use crate::jsonpath::{CustomColumn, Template, TemplateError};

/// What events are called.
const EVENTS: [&str; 3] = ["events", "event", "ev"];

/// What `ambit get` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Of which kind.
    pub(crate) kind: ShownKind,
    /// The one that is meant.
    pub(crate) name: Option<String>,
}

/// A kind that `ambit get` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownKind {
    /// Control or the proxies list it.
    Listed(Kind),
    /// The machine keeps its objects.
    Stored(StoredKind),
    /// What happened on the machine.
    Events,
}

impl Shown {
    fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) if !name.is_empty() => (kind, Some(name.to_owned())),
            _ => (text, None),
        };
        let listed = <Kind as ValueEnum>::from_str(kind, true).ok().map(ShownKind::Listed);
        let is_events = EVENTS.iter().any(|it| it.eq_ignore_ascii_case(kind));
        let listed = listed.or(is_events.then_some(ShownKind::Events));
        let kind = listed.or_else(|| stored_kind(kind).map(ShownKind::Stored));
        kind.map(|kind| Self { kind, name }).ok_or_else(unknown_kind)
    }
}

/// A kind by its name, its plural, or its short name, in any case.
fn stored_kind(word: &str) -> Option<StoredKind> {
    let word = word.to_ascii_lowercase();
    let is_meant = |it: &StoredKind| it.name().to_ascii_lowercase() == word;
    let short = SHORT_NAMES.iter().find(|(short, _)| *short == word);
    let short = || short.and_then(|(_, plural)| StoredKind::from_plural(plural));
    let named = StoredKind::from_plural(&word).or_else(|| StoredKind::all().find(is_meant));
    named.or_else(short)
}

/// The same, or an error that names all kinds.
pub(crate) fn kind_of(word: &str) -> Result<StoredKind, String> {
    stored_kind(word).ok_or_else(|| format!("{word}: {}", unknown_kind()))
}

fn unknown_kind() -> String {
    let listed = Kind::value_variants().iter().filter_map(|it| it.to_possible_value());
    let listed = listed.map(|it| it.get_name().to_owned());
    let stored = StoredKind::all().map(|it| it.plural().to_owned());
    let mut all: Vec<String> = listed.chain(stored).chain([EVENTS[0].to_owned()]).collect();
    all.sort();
    all.dedup();
    format!("there is no such kind; there are {}", all.join(", "))
}

/// An object of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its kind.
    pub(crate) kind: StoredKind,
    /// Its name.
    pub(crate) name: String,
}

impl Target {
    /// Reads `KIND/NAME` or `KIND NAME`, and says which words are left.
    pub(crate) fn read(words: &[String]) -> Result<(Self, &[String]), String> {
        let [first, rest @ ..] = words else { return Err("name an object: KIND/NAME".to_owned()) };
        let (kind, name, rest) = match (first.split_once('/'), rest) {
            (Some((kind, name)), rest) => (kind, name, rest),
            (None, [name, rest @ ..]) => (first.as_str(), name.as_str(), rest),
            (None, []) => return Err(format!("{first}: name the object too: {first}/NAME")),
        };
        let kind = kind_of(kind)?;
        if name.is_empty() {
            return Err(format!("{first}: the name is missing"));
        }
        Ok((Self { kind, name: name.to_owned() }, rest))
    }

    /// Reads `KIND/NAME ...` or `KIND NAME ...`; nothing if the first word begins with no kind.
    pub(crate) fn all(words: &[String]) -> Option<Result<Vec<Self>, String>> {
        let first = words.first()?;
        if first.contains('/') {
            stored_kind(first.split('/').next()?)?;
            return Some(words.iter().map(|it| Self::alone(it)).collect());
        }
        let kind = stored_kind(first)?;
        let names = words[1..].iter().map(|name| Self { kind, name: name.clone() });
        let names: Vec<Self> = names.collect();
        let missing = || format!("{first}: name the objects too: {first} NAME ...");
        Some(if names.is_empty() { Err(missing()) } else { Ok(names) })
    }

    fn alone(word: &str) -> Result<Self, String> {
        let read = Self::read(std::slice::from_ref(&word.to_owned())).map(|(target, _)| target);
        read.map_err(|error| format!("{word}: {error}"))
    }
}

/// `ambit label` and `ambit annotate`.
#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    /// The object, as KIND/NAME or KIND NAME; then changes: KEY=VALUE sets, KEY- removes.
    #[arg(required = true, num_args = 2.., value_name = "KIND/NAME KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// The namespace of the object.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    /// Replaces what has another value.
    #[arg(long)]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit scale`.
#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// The Deployment or StatefulSet, as deployment/NAME.
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    pub(crate) words: Vec<String>,
    /// How many pods it has.
    #[arg(long)]
    pub(crate) replicas: u32,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit rollout`.
#[derive(Debug, Args)]
pub(crate) struct RolloutArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: RolloutCommand,
}

/// What `ambit rollout` does.
#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Restarts the pods, a few at a time.
    Restart(RolledOutArgs),
    /// Waits until all pods are of the present template and ready.
    Status(RolloutStatusArgs),
}

impl RolloutCommand {
    /// Of which machine.
    pub(crate) fn state(&mut self) -> &mut StateArgs {
        match self {
            Self::Restart(args) => &mut args.state,
            Self::Status(args) => &mut args.of.state,
        }
    }
}

/// What rolls out on a machine.
#[derive(Debug, Args)]
pub(crate) struct RolledOutArgs {
    /// The Deployment, StatefulSet or DaemonSet, as deployment/NAME.
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    pub(crate) words: Vec<String>,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit rollout status`.
#[derive(Debug, Args)]
pub(crate) struct RolloutStatusArgs {
    #[command(flatten)]
    pub(crate) of: RolledOutArgs,
    /// Gives up after this time.
    #[arg(long, default_value = "5m", value_parser = timeout, value_name = "DURATION")]
    pub(crate) timeout: Duration,
}

fn timeout(text: &str) -> Result<Duration, DurationError> {
    parse_duration(text)
}

/// `ambit get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// What to show, as KIND or KIND/NAME. Of a machine also the objects of any kind that it keeps,
    /// such as deployments or configmaps.
    #[arg(value_name = "KIND", value_parser = Shown::parse)]
    pub(crate) shown: Shown,
    /// Shows only those of these names.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Shows only this namespace.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Shows all namespaces, which is always so without -n; kubectl needs it.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Goes on until Ctrl-C, and prints what is new or has changed.
    #[arg(short, long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// What `ambit get` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Pods, with node, address and whether they are captured.
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// Services, with addresses, ports and endpoints.
    #[value(alias = "service", alias = "svc")]
    Services,
    /// Workloads, as the proxies know them.
    #[value(alias = "workload")]
    Workloads,
    /// Policies, and whether they are accepted.
    #[value(alias = "policy")]
    Policies,
    /// The certificates of the proxies.
    #[value(alias = "certificate", alias = "cert", alias = "certs")]
    Certificates,
    /// Open connections through the proxies.
    #[value(alias = "connection", alias = "conn", alias = "conns")]
    Connections,
    /// Gateways that ask for waypoints, with their addresses and whether they run; `waypoints`
    /// means the same.
    #[value(alias = "gateway", alias = "gtw", alias = "waypoints")]
    Gateways,
    /// Routes of the Gateway API and VirtualServices, with what they are for and whether they are
    /// accepted.
    #[value(alias = "route")]
    Routes,
    /// Telemetry objects, with whom they are for and whether all of each is in force.
    #[value(alias = "telemetry")]
    Telemetries,
    /// TrafficPolicies, with what they are attached to and whether they are in force there.
    #[value(name = "trafficpolicies", alias = "trafficpolicy")]
    TrafficPolicies,
    /// Nodes.
    #[value(alias = "node")]
    Nodes,
}

/// How `ambit get` shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    /// The most important columns.
    Table,
    /// More columns.
    Wide,
    /// KIND/NAME, one on each line.
    Name,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// The text of a template.
    Template(Template),
    /// Columns that the user has chosen.
    Columns(Vec<CustomColumn>),
}

/// The argument that chooses it.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "table",
        value_parser = Output::parse,
        help = OUTPUT_HELP
    )]
    pub(crate) output: Output,
}

/// The help for it.
const OUTPUT_HELP: &str = "The format of the output: table, wide, name, json, yaml, \
    jsonpath=TEMPLATE, jsonpath-file=FILE or custom-columns=TITLE:PATH,...; with the last three, \
    objects of a machine are as Kubernetes has them";

impl Output {
    fn parse(text: &str) -> Result<Self, String> {
        let template = |text: &str| match text.parse() {
            Ok(template) => Ok(Self::Template(template)),
            Err(error) => Err(TemplateError::to_string(&error)),
        };
        match (text, text.split_once('=').filter(|(_, value)| !value.is_empty())) {
            ("table", _) => Ok(Self::Table),
            ("wide", _) => Ok(Self::Wide),
            ("name", _) => Ok(Self::Name),
            ("json", _) => Ok(Self::Json),
            ("yaml", _) => Ok(Self::Yaml),
            (_, Some(("jsonpath", text))) => template(text),
            (_, Some(("jsonpath-file", path))) => {
                template(&std::fs::read_to_string(path).map_err(|error| error.to_string())?)
            }
            (_, Some(("custom-columns", text))) => match CustomColumn::all(text) {
                Ok(columns) => Ok(Self::Columns(columns)),
                Err(error) => Err(error.to_string()),
            },
            _ => Err("there are table, wide, name, json, yaml, jsonpath=TEMPLATE, \
                      jsonpath-file=FILE and custom-columns=TITLE:PATH,..."
                .to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_for_kubectl() {
        let check = |text: &str, expected: Option<(ShownKind, Option<&str>)>| {
            let shown = Shown::parse(text).ok();
            let shown = shown.as_ref().map(|it| (it.kind, it.name.as_deref()));
            assert_eq!(shown, expected, "{text}");
        };
        check("po", Some((ShownKind::Listed(Kind::Pods), None)));
        check("Pod/web", Some((ShownKind::Listed(Kind::Pods), Some("web"))));
        check("deploy", Some((ShownKind::Stored(StoredKind::Deployment), None)));
        check("ConfigMaps", Some((ShownKind::Stored(StoredKind::ConfigMap), None)));
        check("events", Some((ShownKind::Events, None)));
        check("cm/a", Some((ShownKind::Stored(StoredKind::ConfigMap), Some("a"))));
        check("nonsense", None);
        check("", None);
    }

    #[test]
    fn the_format_is_named_as_for_kubectl() {
        let check = |text: &str, is_fine: bool| {
            let read = Output::parse(text);
            assert_eq!(read.is_ok(), is_fine, "{text}: {read:?}");
        };
        check("wide", true);
        check("wide=", false);
        check("jsonpath={.items[*].metadata.name}", true);
        check("jsonpath={.items", false);
        check("jsonpath=", false);
        check("custom-columns=NAME:.metadata.name", true);
        check("custom-columns=NAME", false);
        check("jsonpath-file=/nowhere", false);
        check("table=a", false);
        check("go-template={{.}}", false);
    }

    #[test]
    fn an_object_is_named_in_one_word_or_two() {
        let check = |words: &[&str], expected: Option<(&str, &str, usize)>| {
            let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
            let read = Target::read(&words).ok();
            let read = read.map(|(it, rest)| (it.kind.name(), it.name, rest.len()));
            let expected = expected.map(|(kind, name, rest)| (kind, name.to_owned(), rest));
            assert_eq!(read, expected, "{words:?}");
        };
        check(&["ns/app", "a/b=c"], Some(("Namespace", "app", 1)));
        check(&["deployment", "web", "a=b", "c-"], Some(("Deployment", "web", 2)));
        check(&["web"], None);
        check(&["deploy/"], None);
        check(&["nonsense", "web"], None);
        check(&[], None);
    }

    #[test]
    fn several_objects_are_named_at_once() {
        let check = |words: &[&str], expected: Option<Result<usize, ()>>| {
            let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
            let read = Target::all(&words).map(|read| read.map(|it| it.len()).map_err(|_| ()));
            assert_eq!(read, expected, "{words:?}");
        };
        check(&["deploy/web", "svc/web"], Some(Ok(2)));
        check(&["deploy/web", "web"], Some(Err(())));
        check(&["pods", "a", "b", "c"], Some(Ok(3)));
        check(&["pods"], Some(Err(())));
        check(&["web.yaml"], None);
        check(&["manifests/web.yaml"], None);
        check(&[], None);
    }
}
