//! What one request costs the node proxies, for `ambit plan`.
//!
//! Nothing here may misread a number: sidecars are not node proxies, a stream has no requests, and
//! a missing measurement is an error.

use ambit_load::Protocol;

use super::metrics::{Metric, Role};
use super::modes::{Carrier, MODES};
use super::record::{Case, Measurement, ModeOutcome, ModeRun, Run};
use super::statistics::Spread;
use super::words::one_line;

/// Most that one request may cost, a second.
const COST_MAX_US: f64 = 1e6;

/// The node proxies' CPU for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyCost {
    /// In which case.
    pub case: String,
    /// In which mode.
    pub mode: String,
    /// How often it was measured.
    pub repetitions: usize,
    /// The median of user and system time of all proxies together, for a good answer.
    pub cpu_per_request_ns: u32,
}

/// Why a run does not say what a request costs. Each continues a sentence whose subject is the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyCostError {
    /// No case loads with requests.
    #[error("has no case with requests; give a run of another experiment, such as `path`")]
    NoRequests,
    /// Another case was asked for than there is.
    #[error("has no case `{0}`; it has {cases}", cases = quoted(.1))]
    NoCase(String, Vec<String>),
    /// Another mode was asked for than there is.
    #[error("has no mode `{0}`; it has {modes}", modes = quoted(.1))]
    NoMode(String, Vec<String>),
    /// The mode's proxies are in the pods.
    #[error("has no node proxies in mode `{0}`, only sidecars; name a mode with node proxies")]
    Sidecars(String),
    /// The mode failed, for this reason.
    #[error("did not measure mode `{mode}` in case `{case}`: {reason}")]
    Failed {
        /// Which mode.
        mode: String,
        /// In which case.
        case: String,
        /// In the run's words.
        reason: String,
    },
    /// It ended before.
    #[error("ended before mode `{0}` was measured in case `{1}`; name another case")]
    NotMeasured(String, String),
    /// Nothing was carried by proxies.
    #[error("saw no proxy in mode `{0}`; name a mode with proxies")]
    NoProxy(String),
    /// A stream, or nothing but failures.
    #[error("has no request with a good answer in mode `{0}` in case `{1}`; name another case")]
    NoAnswer(String, String),
    /// Not a time.
    #[error("says that a request costs {0} µs; that is no measurement")]
    NotATime(String),
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|it| format!("`{}`", one_line(it))).collect::<Vec<_>>().join(", ")
}

impl Run {
    /// What a request costs the proxies of `mode` in `case`, or in the first case with requests.
    pub fn proxy_cost(&self, case: Option<&str>, mode: &str) -> Result<ProxyCost, ProxyCostError> {
        let case = self.case_with_requests(case)?;
        let mode = self.modes.iter().find(|it| it.name == mode).ok_or_else(|| {
            let names = self.modes.iter().map(|it| it.name.clone()).collect();
            ProxyCostError::NoMode(mode.to_owned(), names)
        })?;
        let is_sidecar = |it: &Carrier| matches!(it, Carrier::Sidecar(_));
        if MODES.iter().any(|it| it.name == mode.name && is_sidecar(&it.carrier)) {
            return Err(ProxyCostError::Sidecars(mode.name.clone()));
        }
        let costs = self.costs(case, mode)?;
        let Some(Spread { median, .. }) = Spread::of(&costs) else {
            return Err(ProxyCostError::NoAnswer(mode.name.clone(), case.name.clone()));
        };
        if !(0.0..=COST_MAX_US).contains(&median) {
            return Err(ProxyCostError::NotATime(median.to_string()));
        }
        Ok(ProxyCost {
            case: one_line(&case.name),
            mode: mode.name.clone(),
            repetitions: costs.len(),
            cpu_per_request_ns: (median * 1000.0).round() as u32,
        })
    }

    fn case_with_requests(&self, name: Option<&str>) -> Result<&Case, ProxyCostError> {
        let Some(name) = name else {
            let has_requests = |case: &&Case| {
                self.measurements.iter().any(|it| {
                    let is_stream = it.load.protocol == Protocol::TcpStream;
                    it.case == case.name && !is_stream && it.load.requests > 0
                })
            };
            return self.cases.iter().find(has_requests).ok_or(ProxyCostError::NoRequests);
        };
        self.cases.iter().find(|it| it.name == name).ok_or_else(|| {
            let names = self.cases.iter().map(|it| it.name.clone()).collect();
            ProxyCostError::NoCase(name.to_owned(), names)
        })
    }

    /// Of each repetition with good answers, in microseconds.
    fn costs(&self, case: &Case, mode: &ModeRun) -> Result<Vec<f64>, ProxyCostError> {
        let is_asked = |it: &&Measurement| it.case == case.name && it.mode == mode.name;
        let taken: Vec<&Measurement> = self.measurements.iter().filter(is_asked).collect();
        let (case, mode, outcome) = (case.name.clone(), mode.name.clone(), &mode.outcome);
        match outcome {
            ModeOutcome::Failed(reason) if taken.is_empty() => {
                return Err(ProxyCostError::Failed { mode, case, reason: one_line(reason) });
            }
            _ if taken.is_empty() => return Err(ProxyCostError::NotMeasured(mode, case)),
            _ => {}
        }
        if !taken.iter().any(|it| it.usage.contains_key(Role::Proxy.name())) {
            return Err(ProxyCostError::NoProxy(mode));
        }
        let cost = |it: &&Measurement| Metric::Cpu(Role::Proxy).value(it);
        Ok(taken.iter().filter_map(cost).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Usage;
    use crate::testing;

    /// A stream and two cases with requests, three times; a request in `ambient` costs 60 µs.
    fn run() -> Run {
        let mut run = testing::run();
        run.cases.reverse();
        run.measurements.retain(|it| it.repetition <= 3);
        for it in &mut run.measurements {
            if it.mode == "none" {
                it.usage.remove("proxy");
                continue;
            }
            let answers = (it.load.requests - it.load.failed) as f64;
            let us =
                [50.0, 62.14, 70.0][it.repetition - 1] * if it.case == "rate" { 1.0 } else { 0.5 };
            let seconds = us * answers / 1e6;
            let usage = Usage {
                user_seconds: seconds * 0.25,
                system_seconds: seconds * 0.75,
                ..Usage::default()
            };
            it.usage.insert("proxy".to_owned(), usage);
        }
        run
    }

    #[test]
    fn the_median_over_repetitions_is_told() {
        let check = |case, mode, expected: (&str, u32)| {
            let cost = run().proxy_cost(case, mode).unwrap();
            assert_eq!((cost.case.as_str(), cost.cpu_per_request_ns), expected);
            assert_eq!((cost.mode.as_str(), cost.repetitions), (mode, 3));
        };
        check(None, "ambient", ("saturation", 31_070));
        check(Some("rate"), "ambient", ("rate", 62_140));
        check(Some("rate"), "ztunnel", ("rate", 62_140));
    }

    #[test]
    fn a_run_that_does_not_say_is_an_error() {
        let check = |change: &dyn Fn(&mut Run), case, mode, expected: &str| {
            let mut run = run();
            change(&mut run);
            let error = run.proxy_cost(case, mode).unwrap_err().to_string();
            assert_eq!(error, expected);
        };
        let same = |_: &mut Run| {};
        check(
            &|it| it.measurements.retain(|it| it.case == "stream"),
            None,
            "ambient",
            "has no case with requests; give a run of another experiment, such as `path`",
        );
        check(
            &same,
            Some("x"),
            "ambient",
            "has no case `x`; it has `stream`, `saturation`, `rate`",
        );
        check(
            &same,
            None,
            "ambit",
            "has no mode `ambit`; it has `none`, `ambient`, `ambient+l4policy`, `ztunnel`, \
             `envoy`, `linkerd`",
        );
        check(
            &same,
            None,
            "envoy",
            "has no node proxies in mode `envoy`, only sidecars; name a mode with node proxies",
        );
        check(&same, None, "none", "saw no proxy in mode `none`; name a mode with proxies");
        let without = |run: &mut Run| run.measurements.retain(|it| it.mode != "ztunnel");
        check(
            &without,
            Some("rate"),
            "ztunnel",
            "ended before mode `ztunnel` was measured in case `rate`; name another case",
        );
        let failed = |run: &mut Run| {
            without(run);
            run.modes[3].outcome = ModeOutcome::Failed("it ended at once".to_owned());
        };
        check(
            &failed,
            Some("rate"),
            "ztunnel",
            "did not measure mode `ztunnel` in case `rate`: it ended at once",
        );
        check(
            &same,
            Some("stream"),
            "ambient",
            "has no request with a good answer in mode `ambient` in case `stream`; name another \
             case",
        );
        let backwards = |run: &mut Run| {
            for it in &mut run.measurements {
                it.load.requests = 1000;
                let usage = Usage { user_seconds: -0.002, ..Usage::default() };
                it.usage.insert("proxy".to_owned(), usage);
            }
        };
        check(
            &backwards,
            Some("rate"),
            "ambient",
            "says that a request costs -2 µs; that is no measurement",
        );
    }
}
