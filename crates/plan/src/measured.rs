//! The node proxies' CPU as a bench run measured it, instead of a guess.
//!
//! A run of `ambit bench` says what one request costs all node proxies together. Multiplied by the
//! expected requests a second of the whole mesh, that is the CPU of all of them. The caller reads
//! the run: here is only arithmetic.

use std::fmt;

use serde::Serialize;

/// Most requests a second that are planned for.
pub const RATE_MAX: u32 = 1_000_000_000;

/// What a request costs, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Which run, as it was named.
    pub run: String,
    /// Which case of the run.
    pub case: String,
    /// Whose proxies.
    pub mode: String,
    /// How often it was measured.
    pub repetitions: usize,
    /// Median CPU of all proxies together for one request.
    pub cpu_per_request_ns: u32,
    /// Requests a second in the whole mesh.
    pub requests_per_second: u32,
}

impl Measured {
    /// CPU of all node proxies together.
    pub(crate) fn millicores(&self) -> u64 {
        // A millicore is a million nanoseconds a second.
        let ns = u64::from(self.cpu_per_request_ns) * u64::from(self.requests_per_second);
        ns.div_ceil(1_000_000)
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, case, mode, repetitions, cpu_per_request_ns: ns, .. } = self;
        let (whole, tenth) = (ns / 1000, ns % 1000 / 100);
        let (rps, millicores) = (self.requests_per_second, self.millicores());
        let times = if *repetitions == 1 { "repetition" } else { "repetitions" };
        write!(f, "{whole}.{tenth} µs of CPU per request for all proxies together (median of ")?;
        write!(f, "{repetitions} {times} of {mode} in \"{case}\", {run}) x {rps} requests/s in ")?;
        write!(f, "the whole mesh = {millicores}m for all ztunnels together, taken to be spread ")?;
        f.write_str("evenly over the nodes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_cost_times_rate() {
        let check = |cpu_per_request_ns, requests_per_second, millicores| {
            let measured = Measured {
                run: "bench/runs/one".to_owned(),
                case: "1000 rps".to_owned(),
                mode: "ambient".to_owned(),
                repetitions: 3,
                cpu_per_request_ns,
                requests_per_second,
            };
            assert_eq!(measured.millicores(), millicores, "{measured}");
        };
        check(62_140, 112_500, 6991);
        check(40_000, 112_500, 4500);
        check(1, 1, 1);
        check(0, RATE_MAX, 0);
        check(u32::MAX, u32::MAX, 18_446_744_065_120);
    }
}
