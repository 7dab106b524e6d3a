//! How far endpoints are, and what share of requests the nearest get: a DestinationRule's
//! `localityLbSetting`, as used.
//!
//! Endpoints are in tiers, as the client sees them. As long as enough of the nearest tier is in use
//! it gets everything; what it cannot carry spills into the next one. Where shares are given by
//! hand, each tier has its own. Nothing here knows an endpoint's health: the caller counts.

use crate::Text;
use crate::service::{Mode, Scope};
use crate::workload::{Locality, Workload};

/// All requests, as shares count them.
const ALL: u64 = 10_000;
/// A tier of which 100 / 140 is in use carries everything (Envoy's overprovisioning factor).
const OVERPROVISIONED: u64 = ALL * 140 / 100;
/// The steps where none are given: Istio's.
const STEPS: [Scope; 3] = [Scope::Region, Scope::Zone, Scope::Subzone];

/// Which endpoints are near.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Nearness {
    /// Those that the service prefers (`trafficDistribution`).
    #[default]
    OfService,
    /// Those that the service prefers; where it prefers none, those of the same region, zone and
    /// subzone. Istio's default for who ejects endpoints that fail.
    OfServiceElsePlace,
    /// All alike, whatever the service prefers.
    Ignored,
    /// Those that agree with the client in most steps.
    Failover(Failover),
    /// By shares.
    Distribute(Vec<Distribution>),
}

/// How far an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// In what an endpoint should agree with the client, most general first.
    pub steps: Vec<Scope>,
    /// Of other regions, the one that comes first for clients of a region: from, to.
    pub regions: Vec<(Text, Text)>,
}

impl Default for Failover {
    fn default() -> Self {
        Self { steps: STEPS.to_vec(), regions: Vec::new() }
    }
}

/// Shares for clients of one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Where the clients are.
    pub from: Place,
    /// Where endpoints are, with the share of each. Endpoints elsewhere get nothing.
    pub to: Vec<(Place, u32)>,
}

/// A place, or all places that agree in what is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The region.
    pub region: Option<Text>,
    /// The zone.
    pub zone: Option<Text>,
    /// The subzone.
    pub subzone: Option<Text>,
}

/// How endpoints are told apart for one client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tiers<'a> {
    /// By steps.
    Steps { source: &'a Workload, steps: &'a [Scope], region: Option<&'a Text> },
    /// By hand.
    Shares(&'a [(Place, u32)]),
}

/// What a tier can carry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carries {
    /// All of its endpoints, by weight.
    pub(crate) all: u64,
    /// Those that are in use.
    pub(crate) in_use: u64,
}

/// What a client's place means for a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Near<'a> {
    /// What the service prefers decides.
    OfService,
    /// Nothing.
    Ignored,
    /// An endpoint's tier.
    Tiers(Tiers<'a>),
}

impl Nearness {
    /// What it means for a client, and a service that prefers endpoints in this way.
    pub(crate) fn near<'a>(&'a self, source: &'a Workload, mode: Mode) -> Near<'a> {
        let steps = |steps, region| Near::Tiers(Tiers::Steps { source, steps, region });
        match (self, mode) {
            // It excludes, whatever else is preferred.
            (_, Mode::Strict) | (Self::OfService, _) => Near::OfService,
            (Self::OfServiceElsePlace, Mode::Failover | Mode::Passthrough) => Near::OfService,
            (Self::OfServiceElsePlace, Mode::Unspecified) => steps(&STEPS, None),
            (Self::Ignored, _) => Near::Ignored,
            (Self::Failover(Failover { steps: given, regions }), _) => {
                let own = &source.locality.region;
                let next = regions.iter().find(|(from, _)| from == own);
                steps(given, next.map(|(_, to)| to))
            }
            (Self::Distribute(all), _) => {
                let own = all.iter().find(|it| it.from.holds(&source.locality));
                own.map_or(Near::Ignored, |it| Near::Tiers(Tiers::Shares(&it.to)))
            }
        }
    }
}

impl Place {
    /// Whether a locality is there.
    fn holds(&self, locality: &Locality) -> bool {
        let is =
            |wanted: &Option<Text>, it: &Text| wanted.as_ref().is_none_or(|wanted| wanted == it);
        is(&self.region, &locality.region)
            && is(&self.zone, &locality.zone)
            && is(&self.subzone, &locality.subzone)
    }
}

impl Tiers<'_> {
    /// The tier of an endpoint, the nearest being 0; `None` where it gets nothing.
    pub(crate) fn of(&self, endpoint: &Workload) -> Option<usize> {
        match self {
            Self::Steps { source, steps, region } => {
                let agrees = |scope: &&Scope| agree(source, endpoint, **scope);
                let agreeing = steps.iter().take_while(agrees).count();
                let is_next = region.is_none_or(|it| *it == endpoint.locality.region);
                Some(steps.len() - agreeing + usize::from(agreeing == 0 && !is_next))
            }
            Self::Shares(to) => to.iter().position(|(place, _)| place.holds(&endpoint.locality)),
        }
    }

    /// Draws a tier. `random_below` answers a number below its argument, which is at least 1. Where
    /// nothing is in use the first tier that has endpoints is taken.
    pub(crate) fn draw(
        &self,
        tiers: &[Carries],
        random_below: impl FnOnce(u64) -> u64,
    ) -> Option<usize> {
        let shares = self.shares(tiers);
        let sum: u64 = shares.iter().sum();
        if sum == 0 {
            return tiers.iter().position(|it| it.all > 0);
        }
        let mut left = random_below(sum);
        shares.iter().position(|share| {
            let is_here = left < *share;
            left = left.saturating_sub(*share);
            is_here
        })
    }

    fn shares(&self, tiers: &[Carries]) -> Vec<u64> {
        let carries = |it: &Carries| {
            let part = OVERPROVISIONED.saturating_mul(it.in_use).checked_div(it.all);
            part.unwrap_or_default().min(ALL)
        };
        match self {
            Self::Steps { .. } => {
                let mut left = ALL;
                let share = |it: &Carries| {
                    let share = carries(it).min(left);
                    left -= share;
                    share
                };
                tiers.iter().map(share).collect()
            }
            Self::Shares(to) => {
                let weights = to.iter().map(|(_, weight)| u64::from(*weight));
                tiers.iter().zip(weights).map(|(it, weight)| carries(it) * weight).collect()
            }
        }
    }
}

/// Whether an endpoint agrees with a client in one step.
pub(crate) fn agree(source: &Workload, target: &Workload, scope: Scope) -> bool {
    let (from, to) = (&source.locality, &target.locality);
    match scope {
        Scope::Region => from.region == to.region,
        Scope::Zone => from.zone == to.zone,
        Scope::Subzone => from.subzone == to.subzone,
        Scope::Node => source.node == target.node,
        Scope::Cluster => source.cluster_id == target.cluster_id,
        Scope::Network => source.network == target.network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(tiers: &Tiers<'_>, counts: &[(u64, u64)]) -> Vec<u64> {
        let counts = counts.iter().map(|(all, in_use)| Carries { all: *all, in_use: *in_use });
        tiers.shares(&counts.collect::<Vec<_>>())
    }

    #[test]
    fn what_the_nearest_cannot_carry_spills_into_the_next() {
        let source = Workload::named("a", "b", "c");
        let tiers = Tiers::Steps { source: &source, steps: &STEPS, region: None };
        for (counts, expected) in [
            (&[(10, 10), (10, 10)][..], &[10_000, 0][..]),
            // Seven of ten and the factor are nearly everything.
            (&[(10, 8), (10, 10)], &[10_000, 0]),
            (&[(10, 7), (10, 10)], &[9_800, 200]),
            (&[(10, 5), (10, 10)], &[7_000, 3_000]),
            (&[(10, 0), (10, 10)], &[0, 10_000]),
            (&[(0, 0), (10, 10)], &[0, 10_000]),
            (&[(10, 1), (10, 1), (10, 10)], &[1_400, 1_400, 7_200]),
            // Together too little: in proportion.
            (&[(10, 1), (10, 1)], &[1_400, 1_400]),
        ] {
            assert_eq!(shares(&tiers, counts), expected, "{counts:?}");
        }
        let none = [Carries::default(), Carries { all: 1, in_use: 0 }];
        assert_eq!(tiers.draw(&none, |_| unreachable!("nothing to draw")), Some(1));
        assert_eq!(tiers.draw(&[], |_| unreachable!("nothing to draw")), None);
    }

    #[test]
    fn shares_by_hand_hold_among_those_in_use() {
        let to = [(Place::default(), 80), (Place::default(), 20)];
        let tiers = Tiers::Shares(&to);
        assert_eq!(shares(&tiers, &[(1, 1), (3, 3)]), [800_000, 200_000]);
        assert_eq!(shares(&tiers, &[(2, 1), (3, 3)]), [560_000, 200_000]);
        assert_eq!(shares(&tiers, &[(2, 0), (3, 3)]), [0, 200_000]);
        let counts = [Carries { all: 1, in_use: 1 }, Carries { all: 1, in_use: 1 }];
        let drawn = |number| tiers.draw(&counts, |_| number);
        assert_eq!((drawn(0), drawn(799_999), drawn(800_000)), (Some(0), Some(0), Some(1)));
    }
}
