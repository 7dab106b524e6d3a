//! Kubernetes' formula: how many pods their use of processors asks for, and how many there will be
//! after limits and what was recommended before.
//!
//! All numbers are whole. A float would slip at the ends of the tolerance, and no sum may overflow.

use std::cmp::Ordering;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How far from its target a use may be without effect, in tenths of the target.
const NEAR: RangeInclusive<u128> = 9..=11;
/// For how long the most that was recommended holds.
pub(super) const DOWN_WINDOW_S: u32 = 300;
/// To how many pods at least an object may grow at once; with a `behavior`, by how many.
const GROWN_MIN: u32 = 4;
/// Most recommendations that are remembered: one each 15 s of the longest window.
const REMEMBERED_MAX: usize = 256;

/// A pod of what is scaled.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) usage: Usage,
    /// What it requests, or why that is not known.
    pub(super) request: Result<u64, String>,
}

/// What a pod uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// It is not ready yet, or has not been for as long as it was measured.
    Unready,
    /// It could not be measured.
    Missing,
    /// So many thousandths of a processor.
    Known(u64),
}

/// What is aimed at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// A percentage of what pods request.
    Utilization(u64),
    /// Thousandths of a processor for each pod.
    Value(u64),
}

/// What a metric asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) replicas: u32,
    /// The percentage of what the pods request, if that is aimed at.
    pub(super) utilization: Option<i32>,
    /// Thousandths of a processor for each pod.
    pub(super) average: u64,
}

/// What is used, and what is aimed at.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    used: u128,
    target: u128,
}

impl Ratio {
    fn of(used: u128, target: u64) -> Self {
        Self { used, target: target.max(1).into() }
    }

    fn order(self) -> Ordering {
        self.used.cmp(&self.target)
    }

    fn is_near(self) -> bool {
        (self.target * NEAR.start()..=self.target * NEAR.end()).contains(&(self.used * 10))
    }

    /// How many pods would have the target's use.
    fn grown(self, pods: usize) -> u32 {
        u32::try_from((self.used * pods as u128).div_ceil(self.target)).unwrap_or(u32::MAX)
    }
}

impl Target {
    /// What pods ask for of which there are to be `current` now.
    pub(super) fn wanted(self, pods: &[Load], current: u32) -> Result<Wanted, String> {
        let mut counted: Vec<(u128, u128)> = Vec::new();
        let (mut missing, mut unready) = (Vec::new(), Vec::new());
        for pod in pods {
            let request = match self {
                Self::Utilization(_) => u128::from(pod.request.clone()?),
                Self::Value(_) => 0,
            };
            match pod.usage {
                Usage::Unready => unready.push(request),
                Usage::Missing => missing.push(request),
                Usage::Known(usage) => counted.push((usage.into(), request)),
            }
        }
        if counted.is_empty() {
            let why = "did not receive metrics for targeted pods (pods might be unready)";
            return Err(why.to_owned());
        }
        let (ratio, average) = (self.ratio(&counted)?, average(&counted));
        let replicas = self.replicas(ratio, counted, &missing, &unready, current)?;
        let utilization = match self {
            Self::Utilization(_) => Some(i32::try_from(ratio.used).unwrap_or(i32::MAX)),
            Self::Value(_) => None,
        };
        Ok(Wanted { replicas, utilization, average: u64::try_from(average).unwrap_or(u64::MAX) })
    }

    /// How many pods there should be when these are counted and those are not.
    fn replicas(
        self,
        ratio: Ratio,
        mut counted: Vec<(u128, u128)>,
        missing: &[u128],
        unready: &[u128],
        current: u32,
    ) -> Result<u32, String> {
        let counts_unready = ratio.order().is_gt() && !unready.is_empty();
        if !counts_unready && missing.is_empty() {
            return Ok(if ratio.is_near() { current } else { ratio.grown(counted.len()) });
        }
        // What is not known is taken for what changes least.
        match ratio.order() {
            Ordering::Less => counted.extend(missing.iter().map(|it| (self.busy(*it), *it))),
            Ordering::Equal => {}
            Ordering::Greater => counted.extend(missing.iter().chain(unready).map(|it| (0, *it))),
        }
        let with_all = self.ratio(&counted)?;
        let replicas = with_all.grown(counted.len());
        let turns = with_all.order() == ratio.order().reverse();
        let against = match with_all.order() {
            Ordering::Less => replicas > current,
            Ordering::Equal => false,
            Ordering::Greater => replicas < current,
        };
        Ok(if with_all.is_near() || turns || against { current } else { replicas })
    }

    /// What a pod uses that is as busy as it should be at most.
    fn busy(self, request: u128) -> u128 {
        match self {
            Self::Utilization(percent) => request * u128::from(percent.max(100)) / 100,
            Self::Value(value) => value.into(),
        }
    }

    fn ratio(self, pods: &[(u128, u128)]) -> Result<Ratio, String> {
        match self {
            Self::Utilization(percent) => {
                let used: u128 = pods.iter().map(|(used, _)| used).sum();
                let requested: u128 = pods.iter().map(|(_, request)| request).sum();
                let used = (used * 100).checked_div(requested);
                let used = used.ok_or("the pods request no processor")?;
                Ok(Ratio::of(used, percent))
            }
            Self::Value(value) => Ok(Ratio::of(average(pods), value)),
        }
    }
}

fn average(pods: &[(u128, u128)]) -> u128 {
    pods.iter().map(|(used, _)| used).sum::<u128>() / pods.len().max(1) as u128
}

/// Between what, and how fast, replicas change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) least: u32,
    pub(super) most: u32,
    /// For how many seconds the least that was recommended holds back growth.
    pub(super) up_s: u32,
    /// And the most keeps pods.
    pub(super) down_s: u32,
    pub(super) up_closed: bool,
    pub(super) down_closed: bool,
    /// Whether the autoscaler has a `behavior`: as in Kubernetes, it may grow faster then.
    pub(super) has_behavior: bool,
}

/// A reason and its message, as a condition says it.
pub(super) type Why = (&'static str, &'static str);

/// How many replicas there will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) replicas: u32,
    /// Whether what was recommended before holds the number.
    pub(super) stable: Why,
    /// Whether a limit does.
    pub(super) is_limited: bool,
    pub(super) limit: Why,
}

const READY: Why = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: Why = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: Why = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent \
     recommendation",
);
const WITHIN: Why = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: Why =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Why =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_FAST: Why =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: Why = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

impl Rules {
    /// How many replicas there must be whatever the metrics say.
    pub(super) fn bounded(self, current: u32) -> u32 {
        current.max(self.least).min(self.most)
    }

    /// How many replicas there will be, of those that a metric asks for. `current` is within the
    /// bounds.
    pub(super) fn decide(
        self,
        current: u32,
        wanted: u32,
        history: &mut Vec<(Duration, u32)>,
        at: Duration,
    ) -> Decision {
        let within = |window_s: u32| {
            let window = Duration::from_secs(window_s.into());
            let recent = history.iter().filter(move |(then, _)| at.saturating_sub(*then) < window);
            recent.map(|(_, replicas)| *replicas)
        };
        let up = within(self.up_s).fold(wanted, u32::min);
        let down = within(self.down_s).fold(wanted, u32::max);
        let held = current.clamp(up, down);
        history.push((at, wanted));
        let surplus = history.len().saturating_sub(REMEMBERED_MAX);
        history.drain(..surplus);
        let least_grown = if self.has_behavior { current + GROWN_MIN } else { GROWN_MIN };
        let fastest = if self.up_closed { current } else { (current * 2).max(least_grown) };
        let (ceiling, above) =
            if self.most > fastest { (fastest, TOO_FAST) } else { (self.most, TOO_MANY) };
        let is_down_closed = self.down_closed && current > self.least;
        let (floor, below) =
            if is_down_closed { (current, TOO_FAST_DOWN) } else { (self.least, TOO_FEW) };
        let (replicas, limit) = match held {
            held if held > ceiling => (ceiling, above),
            held if held < floor => (floor, below),
            held => (held, WITHIN),
        };
        let stable = match held == wanted {
            true => READY,
            false if wanted >= current => UP_STABILIZED,
            false => DOWN_STABILIZED,
        };
        Decision { replicas, stable, is_limited: limit != WITHIN, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(usage: Usage) -> Load {
        Load { usage, request: Ok(100) }
    }

    fn ready(usage: u64) -> Load {
        load(Usage::Known(usage))
    }

    fn check(target: Target, pods: &[Load], expected: Result<u32, &str>) {
        let wanted = target.wanted(pods, u32::try_from(pods.len()).expect("a few"));
        match (wanted, expected) {
            (Ok(wanted), Ok(expected)) => assert_eq!(wanted.replicas, expected, "{pods:?}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (wanted, _) => panic!("{wanted:?}"),
        }
    }

    #[test]
    fn the_formula_is_that_of_kubernetes() {
        let (half, missing, unready) =
            (Target::Utilization(50), load(Usage::Missing), load(Usage::Unready));
        check(half, &[ready(100), ready(100)], Ok(4));
        check(half, &[ready(10), ready(10), ready(10)], Ok(1));
        check(half, &[ready(0)], Ok(0));
        check(Target::Value(500), &[ready(1000), ready(500)], Ok(3));
        check(half, std::slice::from_ref(&missing), Err("did not receive metrics"));
        check(half, std::slice::from_ref(&unready), Err("did not receive metrics"));
        let unknown = Load { request: Err("missing request for cpu".to_owned()), ..ready(1) };
        check(half, std::slice::from_ref(&unknown), Err("missing request"));
        check(Target::Value(1), &[unknown], Ok(1));
        check(half, &[Load { request: Ok(0), ..ready(1) }], Err("request no processor"));
        // One that is not measured is taken for idle when pods are busy, else for busy.
        check(half, &[ready(200), missing.clone()], Ok(4));
        check(half, &[ready(10), missing.clone()], Ok(2));
        // At the target itself nothing is assumed.
        check(half, &[ready(50), missing.clone()], Ok(2));
        check(Target::Value(50), &[ready(50), missing], Ok(2));
        // One that is not ready uses nothing when pods are busy.
        check(half, &[ready(75), unready.clone()], Ok(2));
        check(half, &[ready(10), unready], Ok(1));
    }

    #[test]
    fn the_tolerance_has_both_of_its_ends() {
        let ten = |usage| vec![ready(usage); 10];
        for (usage, expected) in [(89, 9), (90, 10), (110, 10), (111, 12)] {
            check(Target::Utilization(100), &ten(usage), Ok(expected));
            check(Target::Value(100), &ten(usage), Ok(expected));
        }
    }

    #[test]
    fn no_number_is_too_large() {
        let huge = Load { usage: Usage::Known(u64::MAX), request: Ok(u64::MAX) };
        let small = Load { request: Ok(1), ..huge.clone() };
        let missing = Load { usage: Usage::Missing, ..huge.clone() };
        let utilization = Target::Utilization(i32::MAX as u64);
        check(utilization, &[huge.clone(), missing.clone()], Ok(2));
        check(Target::Utilization(1), &[huge.clone(), huge.clone()], Ok(200));
        check(Target::Value(1), &[huge.clone(), huge], Ok(u32::MAX));
        let wanted = Target::Utilization(1).wanted(&[small], 1).expect("it is measured");
        assert_eq!((wanted.replicas, wanted.utilization), (u32::MAX, Some(i32::MAX)));
    }

    const RULES: Rules = Rules {
        least: 2,
        most: 10,
        up_s: 0,
        down_s: 0,
        up_closed: false,
        down_closed: false,
        has_behavior: false,
    };
    const NOW: Duration = Duration::from_secs(3600);

    #[test]
    fn limits_hold() {
        let check = |rules: Rules, current, wanted, expected, reason: &str| {
            let decision = rules.decide(current, wanted, &mut Vec::new(), NOW);
            let found = (decision.replicas, decision.limit.0, decision.is_limited);
            let is_limited = reason != "DesiredWithinRange";
            assert_eq!(found, (expected, reason, is_limited), "{current} {wanted}");
        };
        check(RULES, 3, 5, 5, "DesiredWithinRange");
        check(RULES, 3, 1, 2, "TooFewReplicas");
        check(RULES, 8, 20, 10, "TooManyReplicas");
        check(RULES, 3, 9, 6, "ScaleUpLimit");
        check(Rules { least: 1, ..RULES }, 1, 9, 4, "ScaleUpLimit");
        let own = Rules { most: 20, has_behavior: true, ..RULES };
        check(own, 3, 20, 7, "ScaleUpLimit");
        check(own, 4, 20, 8, "ScaleUpLimit");
        check(own, 6, 20, 12, "ScaleUpLimit");
        check(Rules { up_closed: true, ..own }, 3, 20, 3, "ScaleUpLimit");
        check(Rules { up_closed: true, ..RULES }, 3, 5, 3, "ScaleUpLimit");
        let closed = Rules { down_closed: true, ..RULES };
        check(closed, 3, 2, 3, "ScaleDownLimit");
        check(closed, 2, 1, 2, "TooFewReplicas");
        for (current, expected) in [(1, 2), (2, 2), (10, 10), (11, 10)] {
            assert_eq!((RULES.bounded(current), closed.bounded(current)), (expected, expected));
        }
    }

    #[test]
    fn what_was_recommended_holds_for_its_window() {
        let check = |rules: Rules, (current, wanted), ago_s, before, expected, reason: &str| {
            let mut history = vec![(NOW - Duration::from_secs(ago_s), before)];
            let decision = rules.decide(current, wanted, &mut history, NOW);
            assert_eq!((decision.replicas, decision.stable.0), (expected, reason), "{ago_s} s ago");
            assert_eq!(history.last(), Some(&(NOW, wanted)));
        };
        let slow = Rules { up_s: 60, down_s: 300, ..RULES };
        check(slow, (3, 6), 59, 4, 4, "ScaleUpStabilized");
        check(slow, (3, 6), 60, 4, 6, "ReadyForNewScale");
        check(slow, (6, 3), 299, 5, 5, "ScaleDownStabilized");
        check(slow, (6, 3), 300, 5, 3, "ReadyForNewScale");
        check(slow, (6, 3), 299, 8, 6, "ScaleDownStabilized");
        check(RULES, (3, 6), 1, 3, 6, "ReadyForNewScale");
    }
}
