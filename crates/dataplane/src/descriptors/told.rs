//! What an operator sees of the shares: `/shares`, the readiness page, `ambit status`.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ambit_wire::admin;

use super::bounds::{self, Room};
use super::{Descriptors, GUARANTEE_OF_A_SOURCE, OfSource, Party, Share, Shares, Source};

/// Most shares in a report; those that are used up come first.
const MAX_SHARES: usize = 256;
/// Most sources of a share in a report; those with most come first.
const MAX_SOURCES: usize = 3;

impl Descriptors {
    /// The report on the shares of the served pods.
    pub fn told<'a>(&self, pods: impl Iterator<Item = &'a Shares>) -> admin::Shares {
        let room = self.room();
        let shares = pods.flat_map(|shares| &shares.of).map(|share| share.told(room));
        let mut items: Vec<_> = shares.filter(|share| share.used > 0).collect();
        items.sort_by_key(|share| (!share.is_used_up, Reverse(share.used)));
        let left_out = items.len().saturating_sub(MAX_SHARES);
        items.truncate(MAX_SHARES);
        let fits_another_pod = self.fits_another_pod();
        let mut used_up = Vec::new();
        if !fits_another_pod || !room.holds(1) {
            used_up.push(format!(
                "all descriptors for connections are in use ({} of {}); raise the proxy's limit \
                 of open files ({})",
                room.used(),
                room.total,
                self.process.limit
            ));
        }
        used_up.extend(items.iter().filter(|share| share.is_used_up).map(sentence));
        admin::Shares {
            api_version: admin::ApiVersion,
            limit: self.process.limit,
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
    fn told(self: &Arc<Self>, room: Room) -> admin::Share {
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
        let told = |it: &(&Source, &OfSource)| admin::ShareSource {
            address: it.0.address,
            identity: it.0.identity.as_ref().map(ToString::to_string),
            used: it.1.has.all(),
            is_used_up: source_is_full(*it),
        };
        admin::Share {
            pod: self.pod.to_string(),
            direction: self.direction.as_str().into(),
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

fn sentence(share: &admin::Share) -> String {
    let admin::Share { pod, direction, used, bound, refused, .. } = share;
    let mut text = format!("pod {pod}, {direction}: {used} of {bound} descriptors");
    for source in &share.sources {
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
    for site in &share.used_up_sites {
        let _ = write!(text, "; {site} may have no more");
    }
    if *refused > 0 {
        let _ = write!(text, "; {refused} refused");
    }
    text
}
