//! The proxies of all nodes, and their commands.
//!
//! | a line of standard input | answered when |
//! |---|---|
//! | `sync` | every proxy has everything |
//! | `view` | one more proxy, which began with nothing, has made its view |
//! | `changes RATE COUNT` | every proxy has every change of so many pods, so many in a second |
//! | `return` | every proxy lost its stream since the command and has everything again |

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ambit_net::grpc::Target;
use ambit_tls::service::ServiceConnector;
use ambit_words::names::{CONTROL_HOST, DEFAULT_MESH_NAMESPACE, PROXY, TOKEN_AUDIENCE};
use anyhow::{Context, Result, bail, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::runtime::Handle;

use super::api::Api;
use super::follower::{Common, Follower, Stream, Told};
use super::held::Texts;
use super::population::{self, path};
use super::spread::Spread;
use super::{FleetArgs, Size, changes, viewer};

const TOKEN_SECONDS: u32 = 6 * 3600;
/// Tokens that are asked for at the same time.
const ASKING: usize = 16;
/// Longest wait for all proxies.
const PATIENCE: Duration = Duration::from_secs(300);
const STEP: Duration = Duration::from_millis(5);

/// A fleet that follows.
pub(super) struct Fleet {
    pub(super) api: Api,
    pub(super) size: Size,
    pub(super) common: Arc<Common>,
    pub(super) told: Vec<Arc<Told>>,
    /// Changes of pods so far.
    pub(super) changes_made: u32,
    token: String,
    started: Instant,
}

/// All proxies have everything.
#[derive(Debug, Serialize)]
struct Synced {
    proxies: usize,
    /// From the start, or the command, to the last.
    all_ms: f64,
    /// From the start, or the command, to the first stream that was accepted.
    first_accepted_ms: f64,
    /// From when a proxy began to connect, in the attempt that succeeded, to its having everything.
    each: Spread,
    /// Came back with versions and got less than a tenth of what there is.
    resumed: usize,
    /// Got all.
    full: usize,
    /// Resources held by each.
    resources: usize,
}

/// Starts the fleet on these threads, which are its own: changes are made by others, so that they
/// do not wait until a thousand proxies have had their turn. Answers commands until there are no
/// more.
pub(super) async fn run(args: FleetArgs, threads: &Handle) -> Result<()> {
    let mut fleet = Fleet::start(args, threads).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.context("read a command")? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["sync"] => {
                let since = fleet.started;
                serde_json::to_value(fleet.synced(since, |_| true).await?)?
            }
            ["return"] => fleet.returned().await?,
            ["view"] => {
                serde_json::to_value(viewer::run(&fleet.common.target, &fleet.token).await?)?
            }
            ["changes", rate, count] => {
                let (rate, count) = (rate.parse()?, count.parse()?);
                serde_json::to_value(changes::run(&mut fleet, rate, count).await?)?
            }
            _ => bail!("{line}: not understood"),
        };
        println!("{answer}");
    }
    Ok(())
}

impl Fleet {
    async fn start(args: FleetArgs, threads: &Handle) -> Result<Self> {
        let FleetArgs { kubeconfig, size, server, roots } = args;
        ensure!(size.nodes > 0 && size.pods > 0 && size.services > 0, "there is nothing to follow");
        let api = Api::open(&kubeconfig).await?;
        let roots = std::fs::read_to_string(&roots).context("read the roots")?;
        let tls = Some(ServiceConnector::new(&roots, CONTROL_HOST, None)?);
        let common = Arc::new(Common {
            target: Target { uri: server, tls, mark: None, outside: None },
            names: Mutex::default(),
            versions: Mutex::new(Texts::default()),
            digests: Mutex::default(),
            records: AtomicBool::new(false),
            responses: AtomicU64::new(0),
        });
        let tokens = (0..size.nodes).map(|index| token(&api, index));
        let tokens = futures::stream::iter(tokens).buffered(ASKING);
        let tokens: Vec<String> = tokens.try_collect().await?;
        let started = Instant::now();
        let mut told = Vec::new();
        for (index, token) in (0..).zip(&tokens) {
            let of_proxy = Arc::<Told>::default();
            told.push(of_proxy.clone());
            threads.spawn(Follower::new(common.clone(), index, token, of_proxy)?.run());
        }
        let token = tokens.into_iter().next().context("there is no node")?;
        Ok(Self { api, size, common, told, changes_made: 0, token, started })
    }

    /// Forgets what came until now.
    pub(super) fn forget_arrivals(&self) {
        for proxy in &self.told {
            proxy.arrivals.lock().expect("no holder panics").clear();
        }
    }

    /// Waits until every proxy has everything, on a stream for which `counts` is true.
    async fn synced(&self, since: Instant, counts: impl Fn(&Stream) -> bool) -> Result<Synced> {
        let begun = Instant::now();
        loop {
            let streams: Vec<Stream> = self.streams();
            let done = streams.iter().filter(|it| it.synced.is_some() && counts(it)).count();
            if done == streams.len() {
                return Ok(synced(&streams, since));
            }
            ensure!(begun.elapsed() < PATIENCE, "only {done} have everything after {PATIENCE:?}");
            tokio::time::sleep(STEP).await;
        }
    }

    async fn returned(&self) -> Result<Value> {
        let since = Instant::now();
        let lost = |it: &Stream| it.ended.is_some_and(|ended| ended >= since);
        let synced = self.synced(since, lost).await?;
        let ended = self.streams().into_iter().filter_map(|it| it.ended);
        let ended: Vec<Duration> = ended.map(|it| it - since).collect();
        Ok(json!({ "lost": Spread::of(ended), "synced": synced }))
    }

    fn streams(&self) -> Vec<Stream> {
        let stream = |it: &Arc<Told>| it.stream.lock().expect("no holder panics").clone();
        self.told.iter().map(stream).collect()
    }
}

fn synced(streams: &[Stream], since: Instant) -> Synced {
    let ms = |it: Option<Instant>| {
        let duration = it.map(|it| it - since).unwrap_or_default();
        (duration.as_secs_f64() * 1e5).round() / 1e2
    };
    let own = |it: &Stream| Some(it.synced? - it.began?);
    let resumed = streams.iter().filter(|it| it.resources * 10 < it.held).count();
    Synced {
        proxies: streams.len(),
        all_ms: ms(streams.iter().filter_map(|it| it.synced).max()),
        first_accepted_ms: ms(streams.iter().filter_map(|it| it.accepted).min()),
        each: Spread::of(streams.iter().filter_map(own).collect()),
        resumed,
        full: streams.len() - resumed,
        resources: streams.iter().map(|it| it.held).min().unwrap_or_default(),
    }
}

/// A token of its own for the proxy of each node, bound to its pod and so to its node.
async fn token(api: &Api, index: u32) -> Result<String> {
    let pod = population::proxy_name(index);
    let object = api.read(&format!("{}/{pod}", path(DEFAULT_MESH_NAMESPACE, "pods"))).await?;
    let bound = json!({
        "kind": "Pod", "apiVersion": "v1", "name": pod, "uid": object["metadata"]["uid"],
    });
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [TOKEN_AUDIENCE], "expirationSeconds": TOKEN_SECONDS,
            "boundObjectRef": bound}});
    let accounts = path(DEFAULT_MESH_NAMESPACE, "serviceaccounts");
    let answer = api.ask(&format!("{accounts}/{PROXY}/token"), &request).await?;
    let token = answer["status"]["token"].as_str().context("the API server gives no token")?;
    Ok(token.to_owned())
}
