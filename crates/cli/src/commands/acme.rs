//! `ambit acme`: the certificates that Gateways of a machine have by ACME (RFC 8555).
//!
//! A machine's networks have no way out, so the user's command speaks with the directory, and keeps
//! what is issued in the machine's Secrets. What a gateway answers meanwhile is an annotation of
//! its Service, as in a cluster. A Secret without our label is somebody else's and is never
//! written. After a failure nothing is tried until the pause is over, unless the Gateway says
//! something else.

#![deny(clippy::print_stderr, reason = "it panics where nobody listens, before machines are down")]

mod machine;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ambit_control::acme::renewal::{due, pause};
use ambit_control::acme::{Account, AcmeError, Way, good_until};
use ambit_load::tell;
use ambit_machine::Client;
use ambit_model::http::gateway::Challenge;
use ambit_words::durations::write_duration;
use anyhow::{Context, Result, anyhow, bail};
use tokio::time::{Instant, sleep, timeout};

use self::machine::{Asked, Held, Machine};
use super::settle;
use crate::args::AcmeArgs;

/// How often the Gateways are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a whole order may take.
const ORDER_MAX: Duration = Duration::from_secs(240);
/// What is held while something is ordered, below the state directory.
const LOCK: &str = "acme.lock";

/// What becomes of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// There is a good one, and it is renewed then.
    Good(SystemTime),
    /// The Secret is somebody else's, with a certificate.
    Foreign,
    /// It was ordered just now.
    Ordered,
    /// None can be ordered, for this reason.
    Missing(String),
}

/// When something that failed is tried again.
struct Failure {
    asked: Asked,
    count: u32,
    next: Instant,
}

/// Failures, by what was asked for; and what was said of each.
#[derive(Default)]
struct Memory {
    failures: BTreeMap<String, Failure>,
    said: BTreeMap<String, String>,
}

/// Orders what is due now, or keeps on.
pub(super) async fn acme(args: &AcmeArgs) -> Result<ExitCode> {
    let client = Client::new(super::layout(&args.state));
    // Whether it runs is known at once.
    let mut asked = Machine::read(&client).await?.asked();
    if args.watch {
        tokio::select! {
            () = watch(&client) => {}
            interrupted = tokio::signal::ctrl_c() => interrupted.context("listen for Ctrl-C")?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if asked.is_empty() {
        super::print_text(
            "no Gateway of this machine asks for certificates, by the annotation \
             ambit.io/acme-directory\n",
        )?;
    }
    let mut is_missing = false;
    for asked in asked.drain(..) {
        let outcome = go_on(&client, &asked).await;
        is_missing |=
            !matches!(outcome, Ok(Outcome::Good(_) | Outcome::Foreign | Outcome::Ordered));
        super::print_text(&format!("{asked}: {}\n", sentence(&asked, &outcome)))?;
    }
    Ok(if is_missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Keeps the certificates of a machine until it is gone for good, and says what changes.
pub(super) async fn watch(client: &Client) {
    let mut memory = Memory::default();
    loop {
        // While the machine does not answer, nothing can be kept.
        if let Ok(machine) = Machine::read(client).await {
            step(client, machine.asked(), &mut memory).await;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

async fn step(client: &Client, all: Vec<Asked>, memory: &mut Memory) {
    let names: Vec<String> = all.iter().map(Asked::to_string).collect();
    memory.failures.retain(|name, _| names.contains(name));
    memory.said.retain(|name, _| names.contains(name));
    for asked in all {
        let name = asked.to_string();
        let before = memory.failures.remove(&name).filter(|it| it.asked.wants_as(&asked));
        if let Some(before) = before.as_ref().filter(|it| it.next > Instant::now()) {
            let Failure { asked, count, next } = before;
            let kept = Failure { asked: asked.clone(), count: *count, next: *next };
            memory.failures.insert(name, kept);
            continue;
        }
        let outcome = go_on(client, &asked).await;
        let mut what = sentence(&asked, &outcome);
        if let Err(error) = &outcome {
            let count = before.map_or(0, |it| it.count).saturating_add(1);
            let is_limited = error.downcast_ref().is_some_and(AcmeError::is_rate_limit);
            let wait = pause(count, is_limited, RandomState::new().build_hasher().finish());
            let next = Instant::now() + wait;
            what = format!("{what}; trying again in {} minutes", wait.as_secs().div_ceil(60));
            memory.failures.insert(name.clone(), Failure { asked, count, next });
        }
        if memory.said.get(&name) != Some(&what) {
            tell(format_args!("{name}: {what}"));
            memory.said.insert(name, what);
        }
    }
}

fn sentence(asked: &Asked, outcome: &Result<Outcome>) -> String {
    match outcome {
        Ok(Outcome::Good(renewed_at)) => {
            let left = renewed_at.duration_since(SystemTime::now()).unwrap_or_default();
            let unit = if left < Duration::from_secs(3600) { 1 } else { 3600 };
            let left = Duration::from_secs(left.as_secs() / unit * unit);
            format!("its certificate is renewed in {}", write_duration(left))
        }
        Ok(Outcome::Foreign) => {
            "the Secret is there without our label, is somebody else's and stays".to_owned()
        }
        Ok(Outcome::Ordered) => format!("a certificate is issued by {}", asked.acme.directory),
        Ok(Outcome::Missing(why)) => format!("no certificate is ordered: {why}"),
        Err(error) => format!("{} gives no certificate: {error:#}", asked.acme.directory),
    }
}

/// Looks at one Secret, and orders a certificate if that is due.
async fn go_on(client: &Client, asked: &Asked) -> Result<Outcome> {
    let hosts = match &asked.hosts {
        Ok(hosts) => hosts,
        Err(why) => return Ok(Outcome::Missing(why.clone())),
    };
    match &asked.held {
        Held::Own(pair) => {
            if let Some((from, to)) = good_until(pair, hosts)
                && due(from, to) > SystemTime::now()
            {
                return Ok(Outcome::Good(due(from, to)));
            }
        }
        Held::Foreign => return Ok(Outcome::Foreign),
        Held::Unusable => {
            let why = format!("Secret {} is there, and holds no certificate", asked.secret);
            return Ok(Outcome::Missing(why));
        }
        Held::Nothing => {}
    }
    if !asked.is_served {
        return Ok(Outcome::Missing("no pod of the gateway is ready".to_owned()));
    }
    let lock = client.layout().root().join(LOCK);
    let lock = File::create(&lock).with_context(|| format!("open {}", lock.display()))?;
    if lock.try_lock().is_err() {
        return Ok(Outcome::Missing("another command orders certificates just now".to_owned()));
    }
    let order = order(client.clone(), asked.clone(), hosts.clone());
    // The library panics on some answers: that is the failure of this order alone.
    let mut task = tokio::spawn(timeout(ORDER_MAX, order));
    let ordered = (&mut task).await.map_err(|_| anyhow!("its answer is not ACME's"))?;
    ordered.map_err(|_| anyhow!("the order was not finished within {ORDER_MAX:?}"))??;
    Ok(Outcome::Ordered)
}

/// Orders a certificate, and keeps it.
async fn order(client: Client, asked: Asked, hosts: Vec<String>) -> Result<()> {
    let roots = asked.roots.as_ref().map_err(|why| anyhow!("{why}"))?;
    let way = Way::of_user(roots.as_deref()).context("the roots of the directory")?;
    let (directory, email) = (&asked.acme.directory, asked.acme.email.as_deref());
    let new = async || -> Result<Account> {
        if !asked.may_keep_account {
            bail!("Secret {} is somebody else's; rename or delete it", asked.account_name());
        }
        let (account, kept) = Account::new(way.clone(), directory, email).await?;
        client.apply(vec![asked.account_secret(&kept)?], false).await?;
        Ok(account)
    };
    let kept = asked.account.as_deref().filter(|kept| Account::is_at(kept, directory));
    let account = match kept {
        Some(kept) => Account::known(way.clone(), kept).await?,
        None => new().await?,
    };
    let order = match account.order(&hosts).await {
        Err(error) if error.is_no_account() => new().await?.order(&hosts).await?,
        ordered => ordered?,
    };
    if !order.challenges().is_empty() {
        answer(&client, &asked, order.challenges()).await?;
    }
    let issued = order.finish().await;
    // What cannot be taken away now is when it is answered the next time.
    let _kept = answer(&client, &asked, &[]).await;
    let pair = issued?;
    let is_good =
        good_until(&pair, &hosts).is_some_and(|(from, to)| due(from, to) > SystemTime::now());
    if !is_good {
        bail!("what was issued is not for the hosts of the listeners, or ends too soon");
    }
    client.apply(vec![asked.certificate_secret(&pair)?], false).await?;
    Ok(())
}

/// Has a gateway answer a directory, and waits until its pods know.
async fn answer(client: &Client, asked: &Asked, challenges: &[Challenge]) -> Result<()> {
    let service = Machine::read(client).await?.answering(asked, challenges);
    client.apply(vec![service?], false).await.context("have the gateway answer")?;
    settle::wait(&client.layout().control_socket(), |_| {}).await;
    Ok(())
}
