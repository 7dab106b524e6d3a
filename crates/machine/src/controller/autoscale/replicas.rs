//! Kubernetes' formula: how many pods their use of processors asks for, and how many there will be
//! after limits and what was recommended before.

use jiff::{SignedDuration, Timestamp};

/// How far from its target a use may be without effect.
const TOLERANCE: f64 = 0.1;
/// For how long the most that was recommended holds.
pub(super) const DOWN_WINDOW_S: u32 = 300;
/// To how many pods at least an object may grow at once.
const GROWN_MIN: u32 = 4;
/// Most recommendations that are remembered: one each 15 s of the longest window.
const REMEMBERED_MAX: usize = 256;

/// A pod of what is scaled.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// What it uses, in thousandths of a processor, if that is known.
    pub(super) usage: Option<u64>,
    /// What it requests, or why that is not known.
    pub(super) request: Result<u64, String>,
    pub(super) is_ready: bool,
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
    pub(super) utilization: Option<u64>,
    /// Thousandths of a processor for each pod.
    pub(super) average: u64,
}

impl Target {
    /// What pods ask for of which there are to be `current` now.
    pub(super) fn wanted(self, pods: &[Load], current: u32) -> Result<Wanted, String> {
        let mut counted: Vec<(u64, u64)> = Vec::new();
        let (mut missing, mut unready) = (Vec::new(), Vec::new());
        for pod in pods {
            let request = match self {
                Self::Utilization(_) => pod.request.clone()?,
                Self::Value(_) => 0,
            };
            match pod.usage {
                _ if !pod.is_ready => unready.push(request),
                Some(usage) => counted.push((usage, request)),
                None => missing.push(request),
            }
        }
        if counted.is_empty() {
            return Err("no pod that is ready has been measured yet".to_owned());
        }
        let ratio = self.ratio(&counted);
        let count = counted.len();
        let average = counted.iter().map(|(usage, _)| usage).sum::<u64>() / count as u64;
        let utilization = match self {
            Self::Utilization(_) => Some(percentage(&counted)),
            Self::Value(_) => None,
        };
        let wanted = |replicas| Wanted { replicas, utilization, average };
        let is_near = |ratio: f64| (1.0 - ratio).abs() <= TOLERANCE;
        let counts_unready = !unready.is_empty() && ratio > 1.0;
        if !counts_unready && missing.is_empty() {
            return Ok(wanted(if is_near(ratio) { current } else { grown(ratio, count) }));
        }
        // What is not known is taken for what changes least.
        let assumed = |request: u64| match self {
            _ if ratio > 1.0 => 0,
            Self::Utilization(percent) => request * percent.max(100) / 100,
            Self::Value(value) => value,
        };
        counted.extend(missing.into_iter().map(|request| (assumed(request), request)));
        if counts_unready {
            counted.extend(unready.into_iter().map(|request| (0, request)));
        }
        let with_all = self.ratio(&counted);
        let turns = (ratio < 1.0) != (with_all < 1.0);
        let replicas = grown(with_all, counted.len());
        let against =
            (with_all < 1.0 && replicas > current) || (with_all > 1.0 && replicas < current);
        Ok(wanted(if is_near(with_all) || turns || against { current } else { replicas }))
    }

    fn ratio(self, pods: &[(u64, u64)]) -> f64 {
        match self {
            Self::Utilization(percent) => percentage(pods) as f64 / percent.max(1) as f64,
            Self::Value(value) => {
                let sum: u64 = pods.iter().map(|(usage, _)| usage).sum();
                (sum / pods.len().max(1) as u64) as f64 / value.max(1) as f64
            }
        }
    }
}

fn percentage(pods: &[(u64, u64)]) -> u64 {
    let usage: u64 = pods.iter().map(|(usage, _)| usage).sum();
    let request: u64 = pods.iter().map(|(_, request)| request).sum();
    usage.saturating_mul(100) / request.max(1)
}

fn grown(ratio: f64, pods: usize) -> u32 {
    // A float beyond the range becomes the greatest number.
    (ratio * pods as f64).ceil() as u32
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
}

/// Why the replicas are other than a metric asks for, as a condition says it.
type Limited = (&'static str, &'static str);

impl Rules {
    /// How many replicas there will be, of those that a metric asks for.
    pub(super) fn decide(
        self,
        current: u32,
        wanted: u32,
        history: &mut Vec<(Timestamp, u32)>,
        now: Timestamp,
    ) -> (u32, Option<Limited>) {
        let within = |window_s: u32| {
            let since = now - SignedDuration::from_secs(window_s.into());
            history.iter().filter(move |(at, _)| *at > since).map(|(_, replicas)| *replicas)
        };
        let up = within(self.up_s).fold(wanted, u32::min);
        let down = within(self.down_s).fold(wanted, u32::max);
        let stable = current.clamp(up, down);
        history.push((now, wanted));
        let surplus = history.len().saturating_sub(REMEMBERED_MAX);
        history.drain(..surplus);
        let fastest = current.saturating_mul(2).max(GROWN_MIN);
        let ceiling = if self.up_closed { current } else { self.most.min(fastest) };
        let floor = if self.down_closed { current.min(self.most) } else { self.least };
        let decided = stable.min(ceiling.max(self.least)).max(floor).min(self.most.max(1));
        let limited = match wanted {
            wanted if wanted > self.most => Some((
                "TooManyReplicas",
                "the desired replica count is more than the maximum replica count",
            )),
            wanted if wanted < self.least => Some((
                "TooFewReplicas",
                "the desired replica count is less than the minimum replica count",
            )),
            _ => None,
        };
        (decided, limited)
    }
}

/// An amount of processors, in thousandths; `None` if it is none.
pub(super) fn millicores(amount: &str) -> Option<u64> {
    if let Some(thousandths) = amount.strip_suffix('m') {
        return thousandths.parse().ok();
    }
    let (whole, part) = amount.split_once('.').unwrap_or((amount, ""));
    let digits = |text: &str| text.bytes().all(|it| it.is_ascii_digit());
    if !digits(whole) || !digits(part) || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // As in Kubernetes, what is finer than a thousandth is rounded up.
    let mut thousandths: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    thousandths += u64::from(part.get(3..).is_some_and(|rest| rest.bytes().any(|it| it != b'0')));
    whole.checked_mul(1000)?.checked_add(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(usage: Option<u64>, is_ready: bool) -> Load {
        Load { usage, request: Ok(100), is_ready }
    }

    #[test]
    fn the_formula_is_that_of_kubernetes() {
        let check = |target: Target, pods: &[Load], expected: Result<u32, &str>| {
            let wanted = target.wanted(pods, u32::try_from(pods.len()).expect("a few"));
            match (wanted, expected) {
                (Ok(wanted), Ok(expected)) => assert_eq!(wanted.replicas, expected, "{pods:?}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (wanted, _) => panic!("{wanted:?}"),
            }
        };
        let half = Target::Utilization(50);
        let ready = |usage| load(Some(usage), true);
        check(half, &[ready(100), ready(100)], Ok(4));
        check(half, &[ready(54), ready(54)], Ok(2));
        check(half, &[ready(10), ready(10), ready(10)], Ok(1));
        check(half, &[ready(0)], Ok(0));
        check(Target::Value(500), &[ready(1000), ready(500)], Ok(3));
        check(half, &[load(None, true)], Err("no pod that is ready"));
        check(half, &[load(Some(100), false)], Err("no pod that is ready"));
        let unknown = Load { request: Err("missing request for cpu".to_owned()), ..ready(1) };
        check(half, std::slice::from_ref(&unknown), Err("missing request"));
        check(Target::Value(1), &[unknown], Ok(1));
        // One that is not measured is taken for idle when pods are busy, else for busy.
        check(half, &[ready(200), load(None, true)], Ok(4));
        check(half, &[ready(10), load(None, true)], Ok(2));
        // One that is not ready uses nothing when pods are busy.
        check(half, &[ready(75), load(Some(100), false)], Ok(2));
        check(half, &[ready(10), load(Some(100), false)], Ok(1));
    }

    #[test]
    fn limits_hold() {
        let rules =
            Rules { least: 2, most: 10, up_s: 0, down_s: 0, up_closed: false, down_closed: false };
        let check = |rules: Rules, current, wanted, expected, reason: &str| {
            let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
            let (decided, limited) = rules.decide(current, wanted, &mut Vec::new(), now);
            let reason_of = limited.map_or("", |(reason, _)| reason);
            assert_eq!((decided, reason_of), (expected, reason), "{current} {wanted}");
        };
        check(rules, 3, 5, 5, "");
        check(rules, 3, 1, 2, "TooFewReplicas");
        check(rules, 8, 20, 10, "TooManyReplicas");
        check(rules, 3, 9, 6, "");
        check(rules, 1, 9, 4, "");
        check(rules, 20, 15, 10, "TooManyReplicas");
        check(Rules { up_closed: true, ..rules }, 3, 5, 3, "");
        check(Rules { down_closed: true, ..rules }, 3, 2, 3, "");
    }

    #[test]
    fn amounts_are_read() {
        let cases = [
            ("250m", Some(250)),
            ("1", Some(1000)),
            ("0.5", Some(500)),
            (".1", Some(100)),
            ("1.0001", Some(1001)),
            ("2.", Some(2000)),
            ("", None),
            ("x", None),
            ("1e3", None),
        ];
        for (text, expected) in cases {
            assert_eq!(millicores(text), expected, "{text}");
        }
    }
}
