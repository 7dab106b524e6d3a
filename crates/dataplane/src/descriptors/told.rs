//! What an operator is told of the shares: `/shares`, the page of readiness, `ambit status`.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::bounds::{self, Room};
use super::{
    Descriptors, Direction, GUARANTEE_OF_A_SOURCE, OfSource, Party, Share, Shares, Source,
};

/// Shares that are told of, those that are used up first.
const MAX_SHARES: usize = 256;
/// Sources of a share that are told of, those with most first.
const MAX_SOURCES: usize = 3;

/// The answer to `/shares`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// The process' limit of open files.
    limit: usize,
    /// What connections may have of it.
    for_connections: usize,
    /// What they have.
    used: usize,
    /// What one share may have at most now, beyond what it is guaranteed.
    loan: usize,
    /// Whether the sockets of one more pod can be taken on.
    pub fits_another_pod: bool,
    /// What is used up, and by whom: a sentence each.
    pub used_up: Vec<String>,
    /// The shares that have something.
    items: Vec<ToldShare>,
    /// How many shares are not among the items.
    left_out: usize,
}

/// One share.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToldShare {
    /// The pod, `namespace/name`.
    pod: String,
    /// In which direction.
    direction: Direction,
    /// Descriptors that it has.
    used: usize,
    /// What it may have now, of both kinds.
    bound: usize,
    /// Whether it, or a source of it, may have no more.
    is_used_up: bool,
    /// Connections and tunnels that were refused since the pod is served.
    refused: u64,
    /// How many sources have something of it.
    source_count: usize,
    /// Those with most.
    sources: Vec<ToldSource>,
    /// IPv6 sites whose networks together may have no more.
    used_up_sites: Vec<String>,
}

/// One source.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToldSource {
    /// Where it connects from.
    address: IpAddr,
    /// Who it is, if that is proven.
    identity: Option<String>,
    /// Descriptors that it has.
    used: usize,
    /// Whether it may have no more.
    is_used_up: bool,
}

impl Told {
    /// What there is to tell of the pods that are served.
    pub fn of<'a>(descriptors: &Descriptors, pods: impl Iterator<Item = &'a Shares>) -> Self {
        let room = descriptors.room();
        let shares = pods.flat_map(|shares| &shares.of).map(|share| share.told(room));
        let mut items: Vec<_> = shares.filter(|share| share.used > 0).collect();
        items.sort_by_key(|share| (!share.is_used_up, Reverse(share.used)));
        let left_out = items.len().saturating_sub(MAX_SHARES);
        items.truncate(MAX_SHARES);
        let fits_another_pod = descriptors.fits_another_pod();
        let mut used_up = Vec::new();
        if !fits_another_pod || !room.holds(1) {
            used_up.push(format!(
                "all descriptors for connections are in use ({} of {}); raise the proxy's limit \
                 of open files ({})",
                room.used(),
                room.total,
                descriptors.process.limit
            ));
        }
        used_up.extend(items.iter().filter(|share| share.is_used_up).map(ToldShare::sentence));
        Self {
            limit: descriptors.process.limit,
            for_connections: room.total,
            used: room.used(),
            loan: room.loan(),
            fits_another_pod,
            used_up,
            items,
            left_out,
        }
    }
}

impl Share {
    fn told(self: &Arc<Self>, room: Room) -> ToldShare {
        let uses = self.uses();
        let guarantee = room.guarantee(self.direction.parts());
        let rest = room.loan().saturating_sub(uses.all.lent);
        let is_full = uses.all.guaranteed >= guarantee && rest == 0;
        let source_is_full = |(source, of_source): (&Source, &OfSource)| {
            let of_its_party = source.party().and_then(|it| uses.parties.get(&it)).copied();
            of_source.has.all() > GUARANTEE_OF_A_SOURCE
                && (of_source.has.lent >= bounds::of_source(rest)
                    || of_its_party.is_some_and(|has| has >= bounds::of_party(rest)))
        };
        let mut sources: Vec<_> = uses.sources.iter().collect();
        let source_count = sources.len();
        let is_full_site = |(party, has): &(&Party, &usize)| {
            matches!(party, Party::Site(_))
                && **has > GUARANTEE_OF_A_SOURCE
                && **has >= bounds::of_party(rest)
        };
        let sites = uses.parties.iter().filter(is_full_site);
        let mut used_up_sites: Vec<String> = sites.map(|(party, _)| party.to_string()).collect();
        used_up_sites.sort();
        used_up_sites.truncate(MAX_SOURCES);
        let is_used_up = uses.all.all() > 0
            && (is_full
                || !used_up_sites.is_empty()
                || sources.iter().any(|it| source_is_full(*it)));
        // Who has many sources is not to make anybody wait while all of them are sorted.
        let most_first = |it: &(&Source, &OfSource)| (Reverse(it.1.has.all()), it.0.address);
        if source_count > MAX_SOURCES {
            sources.select_nth_unstable_by_key(MAX_SOURCES, most_first);
            sources.truncate(MAX_SOURCES);
        }
        sources.sort_by_key(most_first);
        let told = |it: &(&Source, &OfSource)| ToldSource {
            address: it.0.address,
            identity: it.0.identity.as_ref().map(ToString::to_string),
            used: it.1.has.all(),
            is_used_up: source_is_full(*it),
        };
        ToldShare {
            pod: self.pod.to_string(),
            direction: self.direction,
            used: uses.all.all(),
            bound: guarantee + room.loan().max(uses.all.lent),
            is_used_up,
            refused: self.refused.load(Ordering::Relaxed),
            source_count,
            sources: sources.iter().map(told).collect(),
            used_up_sites,
        }
    }
}

impl ToldShare {
    fn sentence(&self) -> String {
        let Self { pod, direction, used, bound, refused, .. } = self;
        let mut text = format!("pod {pod}, {direction}: {used} of {bound} descriptors");
        for source in &self.sources {
            let (address, used) = (source.address, source.used);
            // Writing to a String cannot fail.
            let _ = match &source.identity {
                Some(identity) => write!(text, "; {identity} at {address} has {used}"),
                None => write!(text, "; {address} has {used}"),
            };
            if source.is_used_up {
                text.push_str(" and may have no more");
            }
        }
        for site in &self.used_up_sites {
            let _ = write!(text, "; {site} may have no more");
        }
        if *refused > 0 {
            let _ = write!(text, "; {refused} refused");
        }
        text
    }
}
