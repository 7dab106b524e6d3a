//! Changes of pods, and when each proxy received each of them.
//!
//! A change flips a pod's readiness in the API server. Changes keep their rate, whatever happens to
//! them. Each counts from just before the request to the API server, so the server's own work is
//! included.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::fleet::Fleet;
use super::population::{path, pod_name, pod_namespace};
use super::spread::Spread;

/// Pods that take turns in changing: at 40 changes a second each changes every 25 s.
const PODS: u32 = 1000;
/// Longest wait for what did not arrive.
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(20);

/// What came of some changes.
#[derive(Debug, Serialize)]
pub(super) struct Changed {
    per_second: f64,
    /// From the change to the API server's answer.
    answered: Spread,
    /// From the change to its arrival at the first proxy.
    first: Spread,
    /// From the change to its arrival at each proxy.
    each: Spread,
    /// From the change to its arrival at the last proxy.
    all: Spread,
    /// Pairs of change and proxy that never met.
    missing: usize,
    /// Responses that the proxies got meanwhile.
    responses: u64,
    seconds: f64,
}

/// One change: which pod, and when.
struct Change {
    name: u32,
    at: Instant,
}

/// Makes so many changes, so many in a second, and waits until they arrived.
pub(super) async fn run(fleet: &mut Fleet, per_second: f64, count: u32) -> Result<Changed> {
    ensure!(per_second > 0.0 && count > 0, "no changes are asked for");
    fleet.forget_arrivals();
    fleet.common.records.store(true, Ordering::Relaxed);
    let responses = fleet.common.responses.load(Ordering::Relaxed);
    let start = Instant::now();
    let mut under_way = JoinSet::new();
    let mut changes = Vec::new();
    for index in 0..count {
        let due = start + Duration::from_secs_f64(f64::from(index) / per_second);
        tokio::time::sleep_until(due.into()).await;
        changes.push(flip(fleet, &mut under_way));
    }
    let mut answered = Vec::new();
    while let Some(outcome) = under_way.join_next().await {
        answered.push(outcome??);
    }
    let seconds = start.elapsed().as_secs_f64();
    let waiting = Instant::now();
    let mut arrivals = arrivals(fleet, &changes);
    while missing(fleet, &arrivals) > 0 && waiting.elapsed() < PATIENCE {
        tokio::time::sleep(STEP).await;
        arrivals = self::arrivals(fleet, &changes);
    }
    fleet.common.records.store(false, Ordering::Relaxed);
    let first = |of_change: &Vec<Duration>| of_change.iter().min().copied();
    let last = |of_change: &Vec<Duration>| of_change.iter().max().copied();
    Ok(Changed {
        per_second,
        answered: Spread::of(answered),
        missing: missing(fleet, &arrivals),
        first: Spread::of(arrivals.iter().filter_map(first).collect()),
        all: Spread::of(arrivals.iter().filter_map(last).collect()),
        each: Spread::of(arrivals.into_iter().flatten().collect()),
        responses: fleet.common.responses.load(Ordering::Relaxed) - responses,
        seconds,
    })
}

/// The next pod in turn becomes ready if it was not, and the other way round.
fn flip(fleet: &mut Fleet, under_way: &mut JoinSet<Result<Duration>>) -> Change {
    let turn = fleet.changes_made;
    fleet.changes_made += 1;
    let pods = PODS.min(fleet.size.pods);
    let (pod, is_ready) = (turn % pods, turn / pods % 2 == 1);
    let (namespace, pod) = (pod_namespace(fleet.size, pod), pod_name(fleet.size, pod));
    let name = format!("Kubernetes//Pod/{namespace}/{pod}");
    let name = fleet.common.names.lock().expect("no holder panics").number(&name);
    let status = if is_ready { "True" } else { "False" };
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    let path = format!("{}/{pod}/status", path(&namespace, "pods"));
    let (api, at) = (fleet.api.clone(), Instant::now());
    under_way.spawn(async move {
        api.change(&path, &patch).await?;
        Ok(at.elapsed())
    });
    Change { name, at }
}

/// By change: how long each proxy waited for it.
fn arrivals(fleet: &Fleet, changes: &[Change]) -> Vec<Vec<Duration>> {
    let mut of_name: HashMap<u32, Vec<usize>> = HashMap::new();
    for (index, change) in changes.iter().enumerate() {
        of_name.entry(change.name).or_default().push(index);
    }
    let mut waited = vec![Vec::with_capacity(fleet.told.len()); changes.len()];
    for proxy in &fleet.told {
        let mut seen = vec![false; changes.len()];
        for arrival in proxy.arrivals.lock().expect("no holder panics").iter() {
            // The last change of this pod before it arrived.
            let mut of_pod = of_name.get(&arrival.name).into_iter().flatten();
            let Some(index) = of_pod.rfind(|index| changes[**index].at <= arrival.at) else {
                continue;
            };
            if !std::mem::replace(&mut seen[*index], true) {
                waited[*index].push(arrival.at - changes[*index].at);
            }
        }
    }
    waited
}

fn missing(fleet: &Fleet, arrivals: &[Vec<Duration>]) -> usize {
    arrivals.iter().map(|of_change| fleet.told.len() - of_change.len()).sum()
}
