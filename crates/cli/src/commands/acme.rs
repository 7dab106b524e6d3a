//! `ambit acme`: the certificates that Gateways of a machine have by ACME (RFC 8555).
//!
//! A machine's networks have no way out of their own, so the user's command speaks with the
//! directory, and keeps what is issued in the machine's Secrets. What a gateway answers meanwhile
//! is an annotation of its Service, as in a cluster. A Secret without our label is somebody else's
//! and is never written. After a failure nothing is tried until the pause is over, unless the
//! Gateway says something else.

#![deny(clippy::print_stderr, reason = "it panics where nobody listens, before machines are down")]

mod machine;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ambit_control::acme::renewal::{due, pause};
use ambit_control::acme::{Account, AcmeError, Way, good_until, told};
use ambit_load::tell;
use ambit_machine::Client;
use ambit_model::http::gateway::Challenge;
use anyhow::{Context, Result, anyhow, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use self::machine::{Asked, Held, Machine};
use super::settle;
use crate::args::AcmeArgs;
use crate::progress;

/// How often the Gateways are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a whole order may take.
const ORDER_MAX: Duration = Duration::from_secs(240);
/// What is held while something is ordered, below the state directory.
const LOCK: &str = "acme.lock";
/// How often it is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

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

/// Held by whoever orders: one at a time on a machine.
struct Turn {
    _lock: File,
}

/// Orders what is due now, or keeps on.
pub(super) async fn acme(args: &AcmeArgs) -> Result<ExitCode> {
    let client = Client::new(super::layout(&args.state));
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    // Whether it runs is known at once.
    let asked = Machine::read(&client).await?.asked();
    let done = async {
        if args.watch {
            watch(&client).await;
            return Ok(true);
        }
        once(&client, asked).await
    };
    let is_whole = tokio::select! {
        done = done => done?,
        _ = interrupt.recv() => args.watch,
        _ = terminate.recv() => args.watch,
    };
    if let Some(turn) = Turn::begin(&client, Duration::ZERO).await? {
        // What was interrupted is answered no more.
        turn.take_back(&client).await;
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Orders what is due; answers whether no certificate is missing.
async fn once(client: &Client, all: Vec<Asked>) -> Result<bool> {
    if all.is_empty() {
        super::print_text(
            "no Gateway of this machine asks for certificates, by the annotation \
             ambit.io/acme-directory\n",
        )?;
    }
    let mut is_whole = true;
    for asked in all {
        let shown = progress::shown("ordering a certificate");
        let outcome = go_on(client, &asked).await;
        drop(shown);
        is_whole &= matches!(outcome, Ok(Outcome::Good(_) | Outcome::Foreign | Outcome::Ordered));
        super::print_text(&format!("{asked}: {}\n", sentence(&asked, &outcome)))?;
    }
    Ok(is_whole)
}

/// Keeps the certificates of a machine, whenever it runs, and says what changes.
pub(super) async fn watch(client: &Client) {
    let mut memory = Memory::default();
    loop {
        // While the machine does not answer, nothing can be kept.
        if let Ok(machine) = Machine::read(client).await {
            if machine.is_answering()
                && let Ok(Some(turn)) = Turn::begin(client, Duration::ZERO).await
            {
                // Whoever asked for it is gone.
                turn.take_back(client).await;
            }
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
        let before = match memory.failures.remove(&name).filter(|it| it.asked.wants_as(&asked)) {
            Some(waiting) if waiting.next > Instant::now() => {
                memory.failures.insert(name, waiting);
                continue;
            }
            before => before,
        };
        let outcome = go_on(client, &asked).await;
        let mut what = sentence(&asked, &outcome);
        match (&outcome, before) {
            (Err(error), before) => {
                let count = before.map_or(0, |it| it.count).saturating_add(1);
                let is_limited = error.downcast_ref().is_some_and(AcmeError::is_rate_limit);
                let wait = pause(count, is_limited, RandomState::new().build_hasher().finish());
                let next = Instant::now() + wait;
                what = format!("{what}; trying again in {}", in_words(wait));
                memory.failures.insert(name.clone(), Failure { asked, count, next });
            }
            (Ok(Outcome::Missing(_)), Some(before)) => {
                memory.failures.insert(name.clone(), before);
            }
            _ => {}
        }
        // How long a certificate is good changes all the time.
        let news = match &outcome {
            Ok(Outcome::Good(renewed_at)) => format!("{renewed_at:?}"),
            _ => what.clone(),
        };
        if memory.said.get(&name) != Some(&news) {
            tell(format_args!("{name}: {what}"));
            memory.said.insert(name, news);
        }
    }
}

fn sentence(asked: &Asked, outcome: &Result<Outcome>) -> String {
    match outcome {
        Ok(Outcome::Good(renewed_at)) => {
            let left = renewed_at.duration_since(SystemTime::now()).unwrap_or_default();
            format!("its certificate is renewed in {}", in_words(left))
        }
        Ok(Outcome::Foreign) => {
            "the Secret is there without our label, is somebody else's and stays".to_owned()
        }
        Ok(Outcome::Ordered) => format!("a certificate is issued by {}", asked.acme.directory),
        Ok(Outcome::Missing(why)) => format!("no certificate is ordered: {why}"),
        Err(error) => {
            let is_proof = matches!(error.downcast_ref(), Some(AcmeError::NotProven { .. }));
            let hint = if is_proof { "; is port 80 of the Gateway published?" } else { "" };
            format!("no new certificate: {}{hint}", told(error.as_ref()))
        }
    }
}

/// A time to come, in one unit.
fn in_words(time: Duration) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let seconds = time.as_secs();
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    let (unit, name) = unit.unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / unit)
}

/// What is so of one Secret; nothing if a certificate is due.
fn judge(asked: &Asked) -> Option<Outcome> {
    let hosts = match &asked.hosts {
        Ok(hosts) => hosts,
        Err(why) => return Some(Outcome::Missing(why.clone())),
    };
    match &asked.held {
        Held::Own(pair) => {
            let until = good_until(pair, hosts).map(|(from, to)| due(from, to));
            if let Some(due) = until.filter(|due| *due > SystemTime::now()) {
                return Some(Outcome::Good(due));
            }
        }
        Held::Foreign => return Some(Outcome::Foreign),
        Held::Unusable => {
            let why = format!("Secret {} is there, and holds no certificate", asked.secret);
            return Some(Outcome::Missing(why));
        }
        Held::Nothing => {}
    }
    let why = || "no pod of the gateway is ready; see `ambit get pods`".to_owned();
    (!asked.is_served).then(|| Outcome::Missing(why()))
}

/// Looks at one Secret, and orders a certificate if that is due.
async fn go_on(client: &Client, asked: &Asked) -> Result<Outcome> {
    if let Some(outcome) = judge(asked) {
        return Ok(outcome);
    }
    let Some(turn) = Turn::begin(client, ORDER_MAX).await? else {
        return Ok(Outcome::Missing("another command orders certificates just now".to_owned()));
    };
    // Others may have ordered it meanwhile, or made the account.
    let all = Machine::read(client).await?.asked();
    let Some(asked) = all.into_iter().find(|it| it.to_string() == asked.to_string()) else {
        return Ok(Outcome::Missing("the Gateway asks for it no more".to_owned()));
    };
    if let Some(outcome) = judge(&asked) {
        return Ok(outcome);
    }
    turn.take_back(client).await;
    // The library panics on some answers: that is the failure of this order alone.
    let mut task = Task(tokio::spawn(timeout(ORDER_MAX, order(client.clone(), asked))));
    let ordered = (&mut task.0).await;
    turn.take_back(client).await;
    let ordered = ordered.map_err(|_| anyhow!("the directory's answer is not ACME's"))?;
    ordered.map_err(|_| anyhow!("the order was not finished within {ORDER_MAX:?}"))??;
    Ok(Outcome::Ordered)
}

/// An order that ends when nobody waits for it.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Turn {
    /// Waits for it, but not longer than this.
    async fn begin(client: &Client, patience: Duration) -> Result<Option<Self>> {
        let path = client.layout().root().join(LOCK);
        let lock = File::create(&path).with_context(|| format!("open {}", path.display()))?;
        let start = Instant::now();
        while lock.try_lock().is_err() {
            if start.elapsed() >= patience {
                return Ok(None);
            }
            sleep(LOCK_INTERVAL).await;
        }
        Ok(Some(Self { _lock: lock }))
    }

    /// Has no gateway answer a directory any more: nothing is under way.
    async fn take_back(&self, client: &Client) {
        let Ok(machine) = Machine::read(client).await else { return };
        for (service, expected) in machine.silent() {
            // What fails now is tried at the next look.
            let _kept = client.replace_expecting(vec![service], vec![expected]).await;
        }
    }
}

/// Orders a certificate, and keeps it.
async fn order(client: Client, asked: Asked) -> Result<()> {
    let hosts = asked.hosts.as_deref().map_err(|why| anyhow!("{why}"))?;
    let roots = asked.roots.as_ref().map_err(|why| anyhow!("{why}"))?;
    let way = Way::of_user(roots.as_deref()).context("the roots of the directory")?;
    let (directory, email) = (&asked.acme.directory, asked.acme.email.as_deref());
    let refused = || format!("{directory} gives no certificate");
    let new = async || -> Result<Account> {
        if !asked.may_keep_account {
            bail!("Secret {} is somebody else's; rename or delete it", asked.account_name());
        }
        let made = Account::new(way.clone(), directory, email).await;
        let (account, kept) = made.with_context(refused)?;
        let (secret, expected) = asked.account_secret(&kept)?;
        client.replace_expecting(vec![secret], vec![expected]).await.context("keep the account")?;
        Ok(account)
    };
    let kept = asked.account.as_deref().filter(|kept| Account::is_at(kept, directory));
    let account = match kept {
        Some(kept) => Account::known(way.clone(), kept).await.with_context(refused)?,
        None => new().await?,
    };
    let order = match account.order(hosts).await {
        Err(error) if error.is_no_account() => new().await?.order(hosts).await,
        ordered => ordered,
    };
    let order = order.with_context(refused)?;
    if !order.challenges().is_empty() {
        answer(&client, &asked, order.challenges()).await?;
    }
    let pair = order.finish().await.with_context(refused)?;
    let until = good_until(&pair, hosts).map(|(from, to)| due(from, to));
    if until.is_none_or(|due| due <= SystemTime::now()) {
        bail!(
            "what {directory} has issued is not for the hosts of the listeners, or ends too soon"
        );
    }
    let (secret, expected) = asked.certificate_secret(&pair)?;
    client.replace_expecting(vec![secret], vec![expected]).await.context("keep the certificate")?;
    Ok(())
}

/// Has a gateway answer a directory, and waits until its pods know.
async fn answer(client: &Client, asked: &Asked, challenges: &[Challenge]) -> Result<()> {
    let (service, expected) = Machine::read(client).await?.answering(asked, challenges)?;
    let applied = client.replace_expecting(vec![service], vec![expected]).await;
    applied.context("have the gateway answer")?;
    if !settle::wait(&client.layout().control_socket(), |_| {}).await {
        bail!("not all pods of the gateway know what to answer; see `ambit status`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_come_is_said_in_one_unit() {
        let check = |seconds, expected| {
            assert_eq!(in_words(Duration::from_secs(seconds)), expected);
        };
        check(0, "0 seconds");
        check(119, "119 seconds");
        check(120, "2 minutes");
        check(7200, "2 hours");
        check(60 * 86_400, "60 days");
    }
}
