//! What a shell completes beside commands and flags: kinds, and the names of the running machine.
//!
//! The shell's function runs the hidden `ambit complete-names` with the words so far. It answers in
//! a moment or not at all: nobody waits for a completion.

mod shells;

use std::process::ExitCode;
use std::time::Duration;

use ambit_machine::{Client, ClientError};
use ambit_manifest::Kind;
use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;
use tokio::time::timeout;

pub(super) use shells::with_names;

use crate::args::{CompleteNamesArgs, Kind as ListedKind, StateArgs, kind_of};

/// How long the machine may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the last word may be.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// Nothing that a machine knows.
    Nothing,
    /// A namespace.
    Namespace,
    /// A kind of objects, or one of the lists of `ambit get`.
    Kind { is_listed: bool },
    /// An object of a kind, with what comes before its name.
    Object { kind: Kind, namespace: Option<String>, before: String },
    /// A pod, by its name or as NAMESPACE/POD.
    Pod { namespace: Option<String> },
}

/// Prints the words that the last one may become.
pub(super) async fn names(args: &CompleteNamesArgs) -> Result<ExitCode> {
    let current = args.words.last().map(String::as_str).unwrap_or_default();
    let state = value_of(&args.words, &["--state"]).map(Into::into);
    let state = StateArgs { state: state.or_else(|| args.state.state.clone()) };
    let client = Client::new(super::layout(&state));
    // Without an answer there is nothing to offer, which is no error.
    let found = timeout(PATIENCE, candidates(&client, wanted(&args.words))).await;
    let found = found.ok().and_then(Result::ok).unwrap_or_default();
    let found = found.into_iter().filter(|it| it.starts_with(current));
    super::print_text(&found.map(|it| format!("{it}\n")).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

async fn candidates(client: &Client, wanted: Wanted) -> Result<Vec<String>, ClientError> {
    Ok(match wanted {
        Wanted::Nothing => Vec::new(),
        Wanted::Namespace => objects(client, Kind::Namespace, None, "").await?,
        Wanted::Kind { is_listed } => {
            let listed = ListedKind::value_variants().iter().filter(|_| is_listed);
            let listed = listed.filter_map(|it| it.to_possible_value());
            let listed = listed.map(|it| it.get_name().to_owned());
            let stored = Kind::all().map(|it| it.plural().to_owned());
            let mut all: Vec<String> = listed.chain(stored).collect();
            all.sort();
            all.dedup();
            all
        }
        Wanted::Object { kind, namespace, before } => {
            objects(client, kind, namespace.as_deref(), &before).await?
        }
        Wanted::Pod { namespace: Some(namespace) } => {
            objects(client, Kind::Pod, Some(&namespace), "").await?
        }
        Wanted::Pod { namespace: None } => {
            let pods = client.pods().await?.into_iter();
            pods.map(|it| format!("{}/{}", it.namespace, it.name)).collect()
        }
    })
}

async fn objects(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    before: &str,
) -> Result<Vec<String>, ClientError> {
    let objects = client.objects(kind.plural()).await?;
    let is_here = |it: &&Value| {
        let of = &it["metadata"]["namespace"];
        !kind.is_namespaced() || namespace.is_none_or(|wanted| of == wanted)
    };
    let names = objects.iter().filter(is_here).filter_map(|it| it["metadata"]["name"].as_str());
    Ok(names.map(|name| format!("{before}{name}")).collect())
}

/// What the last of the words may be, by those before it.
fn wanted(words: &[String]) -> Wanted {
    let Some((current, earlier)) = words.split_last() else { return Wanted::Nothing };
    if current.starts_with('-') {
        return Wanted::Nothing;
    }
    let namespace = value_of(earlier, &["-n", "--namespace"]).map(str::to_owned);
    match earlier.last().map(String::as_str) {
        Some("-n" | "--namespace") => return Wanted::Namespace,
        Some("--for") => return object(current, None, namespace, false),
        Some(flag) if takes_a_value(flag) => return Wanted::Nothing,
        _ => {}
    }
    let mut plain = positional(earlier);
    let command = plain.next();
    let mut plain = plain.filter(|word| !matches!(*word, "restart" | "status"));
    let first = plain.next();
    let default = || Some("default".to_owned());
    match command {
        Some("get") => object(current, first, namespace, true),
        Some("describe" | "label" | "annotate" | "delete" | "scale" | "rollout") => {
            object(current, first, namespace.or_else(default), false)
        }
        Some("exec" | "logs" | "port-forward") if first.is_none() => match namespace {
            Some(_) if current.contains('/') => object(current, None, namespace, false),
            namespace => Wanted::Pod { namespace },
        },
        Some("top") if first.is_some_and(|it| it.starts_with("po")) => {
            object(current, first, namespace, false)
        }
        Some("why") if plain.next().is_none() => Wanted::Pod { namespace: None },
        _ => Wanted::Nothing,
    }
}

/// A kind, the rest of KIND/NAME, or a name behind a kind.
fn object(current: &str, kind: Option<&str>, namespace: Option<String>, is_listed: bool) -> Wanted {
    let (kind, before) = match (current.split_once('/'), kind) {
        (Some((kind, _)), _) => (kind, format!("{kind}/")),
        (None, Some(kind)) if !kind.contains('/') => (kind, String::new()),
        _ => return Wanted::Kind { is_listed },
    };
    match kind_of(kind) {
        Ok(kind) => Wanted::Object { kind, namespace, before },
        Err(_) => Wanted::Nothing,
    }
}

/// Whether the word behind this one is its value.
fn takes_a_value(word: &str) -> bool {
    const FLAGS: [&str; 13] = [
        "-n",
        "--namespace",
        "--state",
        "-o",
        "--output",
        "-c",
        "--container",
        "--replicas",
        "--tail",
        "--timeout",
        "--types",
        "--for",
        "--sort-by",
    ];
    FLAGS.contains(&word)
}

/// The words that are neither flags nor their values.
fn positional(words: &[String]) -> impl Iterator<Item = &str> {
    let is_value = |place: usize| place > 0 && takes_a_value(&words[place - 1]);
    let plain = words.iter().enumerate();
    plain.filter(move |(place, it)| !it.starts_with('-') && !is_value(*place)).map(|(_, it)| &**it)
}

/// The value of the last such flag.
fn value_of<'a>(words: &'a [String], flags: &[&str]) -> Option<&'a str> {
    let place = words.iter().rposition(|it| flags.contains(&it.as_str()))?;
    words.get(place + 1).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_word_may_be_follows_from_those_before_it() {
        let check = |line: &str, expected: Wanted| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(wanted(&words), expected, "{line:?}");
        };
        let object = |kind, namespace: Option<&str>, before: &str| Wanted::Object {
            kind,
            namespace: namespace.map(str::to_owned),
            before: before.to_owned(),
        };
        let app = Some("app");
        check("ge", Wanted::Nothing);
        check("get ", Wanted::Kind { is_listed: true });
        check("get po", Wanted::Kind { is_listed: true });
        check("get pods ", object(Kind::Pod, None, ""));
        check("get -n app pods w", object(Kind::Pod, app, ""));
        check("get deploy/w", object(Kind::Deployment, None, "deploy/"));
        check("get nonsense ", Wanted::Nothing);
        check("get pods -n ", Wanted::Namespace);
        check("get pods -o ", Wanted::Nothing);
        check("get pods --wa", Wanted::Nothing);
        check("describe ", Wanted::Kind { is_listed: false });
        check("describe svc ", object(Kind::Service, Some("default"), ""));
        check("delete -n app deploy/a svc/", object(Kind::Service, app, "svc/"));
        check("rollout restart ", Wanted::Kind { is_listed: false });
        check("rollout status deploy/ -n app deploy/", object(Kind::Deployment, app, "deploy/"));
        check("events --for pod/", object(Kind::Pod, None, "pod/"));
        check("exec ", Wanted::Pod { namespace: None });
        check("logs -n app ", Wanted::Pod { namespace: Some("app".to_owned()) });
        check("logs app/web ", Wanted::Nothing);
        check("logs -n app deploy/", object(Kind::Deployment, app, "deploy/"));
        check("port-forward app/", Wanted::Pod { namespace: None });
        check("port-forward -n app svc/", object(Kind::Service, app, "svc/"));
        check("top pods -n app ", object(Kind::Pod, app, ""));
        check("top ", Wanted::Nothing);
        check("why a/b c", Wanted::Pod { namespace: None });
        check("why a/b c/d ", Wanted::Nothing);
        check("up ", Wanted::Nothing);
    }
}
