//! `ambit label`, `annotate`, `scale` and `rollout`: single changes of a machine's objects.

use std::process::ExitCode;
use std::time::Instant;

use ambit_machine::objects::ObjectRef;
use ambit_machine::{Client, Expected, RolloutProgress};
use ambit_manifest::Kind;
use anyhow::{Result, anyhow, bail};
use serde_json::{Map, Value};

use super::change;
use crate::args::{LabelArgs, RolloutArgs, RolloutCommand, ScaleArgs, Target};

/// How often a rollout is looked at.
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(200);

/// Which of an object's metadata a command changes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Metadata {
    Labels,
    Annotations,
}

impl Metadata {
    fn field(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Annotations => "annotations",
        }
    }
}

/// An object of a machine, and what names it.
struct Found {
    object: ObjectRef,
    value: Value,
}

async fn find(client: &Client, target: &Target, namespace: &str) -> Result<Found> {
    let namespace = target.kind.is_namespaced().then_some(namespace);
    let object = ObjectRef::new(target.kind, namespace, &target.name);
    let mut objects = client.objects(target.kind.plural()).await?.into_iter();
    let is_it = |value: &Value| {
        let metadata = &value["metadata"];
        metadata["name"] == target.name.as_str()
            && namespace.is_none_or(|namespace| metadata["namespace"] == namespace)
    };
    let value = objects.find(is_it);
    let value = value.ok_or_else(|| {
        anyhow!("{object} does not exist; see `ambit get {}`", { target.kind.plural() })
    })?;
    Ok(Found { object, value })
}

/// Sets and removes labels or annotations.
pub(super) async fn set(args: LabelArgs, what: Metadata) -> Result<ExitCode> {
    let (target, changes) = Target::read(&args.words).map_err(|error| anyhow!(error))?;
    if changes.is_empty() {
        bail!("name what changes: KEY=VALUE sets, KEY- removes");
    }
    let client = Client::new(super::layout(&args.state));
    let Found { object, mut value } = find(&client, &target, &args.namespace).await?;
    let version = value["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    let metadata = &mut value["metadata"][what.field()];
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    let Some(fields) = metadata.as_object_mut() else {
        bail!("{object}: metadata.{} is no mapping", what.field())
    };
    for change in changes {
        edit(fields, change, args.overwrite)?;
    }
    if let Some(value) = value.as_object_mut() {
        value.remove("status");
    }
    let expected = Expected { object, version };
    let changes = client.replace_expecting(vec![value], vec![expected]).await?;
    change::print(&changes, false)?;
    change::settle(&client, &changes).await?;
    Ok(ExitCode::SUCCESS)
}

fn edit(fields: &mut Map<String, Value>, change: &str, overwrite: bool) -> Result<()> {
    if let Some((key, value)) = change.split_once('=') {
        match fields.get(key).and_then(Value::as_str) {
            Some(present) if present != value && !overwrite => {
                bail!("{key} is {present:?} already; add --overwrite to replace it")
            }
            _ => drop(fields.insert(key.to_owned(), value.into())),
        }
        return Ok(());
    }
    match change.strip_suffix('-') {
        Some(key) if !key.is_empty() => {
            fields.remove(key);
            Ok(())
        }
        _ => bail!("{change:?} is no change: KEY=VALUE sets, KEY- removes"),
    }
}

/// Sets how many pods a Deployment or StatefulSet has.
pub(super) async fn scale(args: ScaleArgs) -> Result<ExitCode> {
    let target = target(&args.words, &[Kind::Deployment, Kind::StatefulSet], "has no replicas")?;
    let object = ObjectRef::new(target.kind, Some(&args.namespace), &target.name);
    let client = Client::new(super::layout(&args.state));
    let changes = client.scale(&object, args.replicas).await?;
    change::print(&changes, false)?;
    Ok(ExitCode::SUCCESS)
}

/// Restarts the pods of what rolls out, or waits for them.
pub(super) async fn rollout(args: RolloutArgs) -> Result<ExitCode> {
    let rolled_out = |words: &[String]| target(words, &RolloutProgress::KINDS, "does not roll out");
    let (args, timeout) = match args.command {
        RolloutCommand::Restart(args) => {
            let target = rolled_out(&args.words)?;
            let object = ObjectRef::new(target.kind, Some(&args.namespace), &target.name);
            let client = Client::new(super::layout(&args.state));
            change::print(&client.restart(&object).await?, false)?;
            return Ok(ExitCode::SUCCESS);
        }
        RolloutCommand::Status(args) => (args.of, args.timeout),
    };
    let target = rolled_out(&args.words)?;
    let client = Client::new(super::layout(&args.state));
    let (start, mut told) = (Instant::now(), String::new());
    loop {
        let found = find(&client, &target, &args.namespace).await?;
        let progress = RolloutProgress::of(target.kind, &found.value);
        let Some(missing) = progress.missing() else {
            super::print_text(&format!("{} is rolled out\n", found.object))?;
            return Ok(ExitCode::SUCCESS);
        };
        if missing != told {
            eprintln!("waiting: {missing}");
            told = missing;
        }
        if start.elapsed() > timeout {
            bail!("{} is not rolled out after {} s: {told}", found.object, timeout.as_secs());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// The object that is named, of one of these kinds.
fn target(words: &[String], kinds: &[Kind], lack: &str) -> Result<Target> {
    let (target, rest) = Target::read(words).map_err(|error| anyhow!(error))?;
    if !kinds.contains(&target.kind) {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        bail!("a {} {lack}; name a {}", target.kind, kinds.join(" or "));
    }
    if let [word, ..] = rest {
        bail!("{word:?} is one word too many");
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_are_set_removed_and_not_overwritten_by_chance() {
        let check = |change: &str, overwrite: bool, expected: Option<Value>| {
            let Value::Object(mut fields) = json!({"a": "b"}) else { unreachable!() };
            let edited = edit(&mut fields, change, overwrite).ok();
            assert_eq!(edited.map(|()| Value::Object(fields)), expected, "{change}");
        };
        check("c=d", false, Some(json!({"a": "b", "c": "d"})));
        check("a=b", false, Some(json!({"a": "b"})));
        check("a=c", false, None);
        check("a=c", true, Some(json!({"a": "c"})));
        check("a-", false, Some(json!({})));
        check("c-", false, Some(json!({"a": "b"})));
        check("-", false, None);
        check("a", false, None);
    }

    #[test]
    fn what_cannot_be_scaled_is_said() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let check = |text: &str, expected: Result<(Kind, &str), &str>| {
            let kinds = [Kind::Deployment, Kind::StatefulSet];
            let found = target(&words(text), &kinds, "has no replicas");
            let found = found.map(|it| (it.kind, it.name)).map_err(|error| error.to_string());
            let expected = expected.map(|(kind, name)| (kind, name.to_owned()));
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check("sts/db", Ok((Kind::StatefulSet, "db")));
        check("deployment web", Ok((Kind::Deployment, "web")));
        check("ds/a", Err("a DaemonSet has no replicas; name a Deployment or StatefulSet"));
        check("sts/db b", Err("\"b\" is one word too many"));
    }
}
