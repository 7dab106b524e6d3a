//! The numbers of one measurement: their names, where they come from, and whether more is better.
//!
//! A metric has no value where a case's protocol has none (a stream has no requests) or where it
//! was not measured; nothing here fills such a gap with a zero.

use ambit_load::{Protocol, Report};

use super::record::{Calls, Measurement, Usage};

/// With fewer connections, what a load allocates besides says more than they do.
const CONNECTIONS_MIN: usize = 1000;

/// Whose processor, memory or system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// All of the others together: what a request costs the machine.
    All,
    Load,
    Application,
    Proxy,
    Waypoint,
    Agent,
    Control,
    Machine,
}

impl Role {
    /// The roles that a record knows.
    pub(crate) const EACH: [Self; 7] = [
        Self::Load,
        Self::Application,
        Self::Proxy,
        Self::Waypoint,
        Self::Agent,
        Self::Control,
        Self::Machine,
    ];

    /// As in a record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Load => "load",
            Self::Application => "application",
            Self::Proxy => "proxy",
            Self::Waypoint => "waypoint",
            Self::Agent => "agent",
            Self::Control => "control",
            Self::Machine => "machine",
        }
    }

    /// Whether there is nothing of it without a mesh.
    fn is_of_mesh(self) -> bool {
        matches!(self, Self::Proxy | Self::Waypoint | Self::Agent | Self::Control)
    }
}

/// A kind of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Reads,
    Writes,
    Waits,
    Futexes,
    All,
}

impl Call {
    pub(crate) const EACH: [Self; 5] =
        [Self::Reads, Self::Writes, Self::Waits, Self::Futexes, Self::All];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Waits => "waits",
            Self::Futexes => "futexes",
            Self::All => "system calls",
        }
    }

    pub(crate) fn of(self, calls: &Calls) -> u64 {
        match self {
            Self::Reads => calls.reads,
            Self::Writes => calls.writes,
            Self::Waits => calls.waits,
            Self::Futexes => calls.futexes,
            Self::All => calls.all,
        }
    }
}

/// A number of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// Good answers per second.
    Throughput,
    /// Of a stream.
    Gigabits,
    Mean,
    P50,
    P75,
    P90,
    P95,
    P99,
    P999,
    Max,
    /// Requests without a good answer, in percent.
    Failed,
    /// Per good answer.
    Cpu(Role),
    CpuUser(Role),
    CpuSystem(Role),
    /// Of a stream.
    CpuPerGigabyte(Role),
    /// Per good answer, because a thread waited.
    Wakeups(Role),
    /// Calls of read(2) by the load generator, as it counts them itself.
    ReadsPerResponse,
    /// Per good answer, as the kernel counted them.
    Calls(Role, Call),
    /// Resident at the end of the load.
    Memory(Role),
    /// What of it no other process can share.
    PrivateMemory(Role),
    /// What the private memory of proxies or waypoints grew by since right before the load.
    MemoryPerConnection(Role),
}

use Metric::{
    Cpu, CpuPerGigabyte, CpuSystem, CpuUser, Failed, Gigabits, Max, Mean, Memory,
    MemoryPerConnection, P50, P75, P90, P95, P99, P999, PrivateMemory, ReadsPerResponse,
    Throughput, Wakeups,
};

/// Latencies, and what a record calls them.
const PERCENTILES: [(Metric, &str); 8] = [
    (Mean, "avg"),
    (P50, "p50"),
    (P75, "p75"),
    (P90, "p90"),
    (P95, "p95"),
    (P99, "p99"),
    (P999, "p99.9"),
    (Max, "max"),
];

impl Metric {
    /// All of them, in the order in which they are shown.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Throughput, Gigabits];
        all.extend(PERCENTILES.map(|(metric, _)| metric));
        all.push(Failed);
        let roles = || std::iter::once(Role::All).chain(Role::EACH);
        all.extend(roles().map(CpuPerGigabyte));
        all.extend(roles().flat_map(|role| [Cpu(role), CpuUser(role), CpuSystem(role)]));
        all.push(ReadsPerResponse);
        all.extend(roles().map(Wakeups));
        let calls = |role| Call::EACH.map(|call| Self::Calls(role, call));
        all.extend(Role::EACH.into_iter().flat_map(calls));
        all.extend(Role::EACH.into_iter().flat_map(|it| [Memory(it), PrivateMemory(it)]));
        all.extend([Role::Proxy, Role::Waypoint].map(MemoryPerConnection));
        all
    }

    /// The latency that a record calls so.
    pub(crate) fn percentile(name: &str) -> Option<Self> {
        let found = PERCENTILES.iter().find(|(_, called)| *called == name);
        found.map(|(metric, _)| *metric)
    }

    /// Without its unit.
    pub(crate) fn name(self) -> String {
        let of = |what: &str, role: Role| match role {
            Role::All => what.to_owned(),
            role => format!("{} {what}", role.name()),
        };
        if let Some((_, name)) = PERCENTILES.iter().find(|(metric, _)| *metric == self) {
            return (*name).to_owned();
        }
        match self {
            Throughput => "throughput".to_owned(),
            Gigabits => "stream throughput".to_owned(),
            Failed => "failed".to_owned(),
            Cpu(role) => of("CPU per request", role),
            CpuUser(role) => of("CPU per request, user", role),
            CpuSystem(role) => of("CPU per request, kernel", role),
            CpuPerGigabyte(role) => of("CPU per GB", role),
            Wakeups(role) => of("wake-ups per request", role),
            ReadsPerResponse => "client reads per response".to_owned(),
            Self::Calls(role, call) => of(&format!("{} per request", call.name()), role),
            Memory(role) => of("memory, resident", role),
            PrivateMemory(role) => of("memory, private", role),
            MemoryPerConnection(role) => of("memory per connection", role),
            Mean | P50 | P75 | P90 | P95 | P99 | P999 | Max => String::new(),
        }
    }

    /// Empty for counts.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Throughput => "requests/s",
            Gigabits => "Gbit/s",
            Mean | P50 | P75 | P90 | P95 | P99 | P999 | Max => "ms",
            Failed => "%",
            Cpu(_) | CpuUser(_) | CpuSystem(_) => "µs",
            CpuPerGigabyte(_) => "s",
            Memory(_) | PrivateMemory(_) => "MB",
            MemoryPerConnection(_) => "kB",
            ReadsPerResponse | Wakeups(_) | Self::Calls(..) => "",
        }
    }

    /// Name and unit, short enough to head a column.
    pub(crate) fn heading(self) -> String {
        match self {
            Throughput | Gigabits => self.unit().to_owned(),
            Failed => "failed".to_owned(),
            Cpu(Role::All) => "CPU µs/request".to_owned(),
            Cpu(role) => format!("{} µs/request", role.name()),
            CpuPerGigabyte(Role::All) => "CPU s/GB".to_owned(),
            CpuPerGigabyte(role) => format!("{} s/GB", role.name()),
            ReadsPerResponse => "reads/response".to_owned(),
            _ if self.unit().is_empty() => self.name(),
            _ => format!("{} {}", self.name(), self.unit()),
        }
    }

    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Throughput | Gigabits)
    }

    /// Whether it is compared at all. What is left out follows from what is in, or is no cost.
    pub(crate) fn is_judged(self) -> bool {
        match self {
            Failed | Max | CpuUser(_) | CpuSystem(_) => false,
            Cpu(role) | CpuPerGigabyte(role) | Wakeups(role) => {
                !matches!(role, Role::Agent | Role::Control | Role::Machine)
            }
            Self::Calls(_, call) => matches!(call, Call::Reads | Call::Writes | Call::All),
            Memory(role) | PrivateMemory(role) => matches!(role, Role::Proxy | Role::Waypoint),
            _ => true,
        }
    }

    /// Whether there is nothing to compare with where there is no mesh.
    pub(crate) fn is_of_mesh(self) -> bool {
        match self {
            Cpu(role) | CpuUser(role) | CpuSystem(role) | CpuPerGigabyte(role) => role.is_of_mesh(),
            Wakeups(role) | Self::Calls(role, _) => role.is_of_mesh(),
            Memory(role) | PrivateMemory(role) => role.is_of_mesh(),
            MemoryPerConnection(_) => true,
            _ => false,
        }
    }

    /// What a measurement says.
    pub(crate) fn value(self, of: &Measurement) -> Option<f64> {
        let load = &of.load;
        let is_stream = load.protocol == Protocol::TcpStream;
        let gigabytes = Some(load.bytes_out as f64 / 1e9).filter(|it| is_stream && *it > 0.0);
        let answers = Some(good_answers(load) as f64).filter(|it| !is_stream && *it > 0.0);
        let latency = || {
            let latency = &load.latency;
            Some(latency).filter(|it| !is_stream && it.count > 0)
        };
        match self {
            Throughput => (!is_stream).then_some(load.throughput),
            Gigabits => is_stream.then_some(load.gigabits_per_second_out),
            Mean => Some(latency()?.mean_us / 1e3),
            P50 => Some(latency()?.p50_us / 1e3),
            P75 => Some(latency()?.p75_us / 1e3),
            P90 => Some(latency()?.p90_us / 1e3),
            P95 => Some(latency()?.p95_us / 1e3),
            P99 => Some(latency()?.p99_us / 1e3),
            P999 => Some(latency()?.p999_us / 1e3),
            Max => Some(latency()?.max_us / 1e3),
            Failed => (load.requests > 0).then(|| failed_percent(load)),
            Cpu(role) => Some(usage(of, role)?.seconds() * 1e6 / answers?),
            CpuUser(role) => Some(split(of, role)?.user_seconds * 1e6 / answers?),
            CpuSystem(role) => Some(split(of, role)?.system_seconds * 1e6 / answers?),
            CpuPerGigabyte(role) => Some(usage(of, role)?.seconds() / gigabytes?),
            Wakeups(role) => Some(split(of, role)?.voluntary_switches as f64 / answers?),
            ReadsPerResponse => Some(load.reads_per_response).filter(|it| *it > 0.0 && !is_stream),
            Self::Calls(role, call) => Some(call.of(of.calls.get(role.name())?) as f64 / answers?),
            Memory(role) => Some(of.memory.get(role.name())?.rss_bytes as f64 / 1e6),
            PrivateMemory(role) => Some(of.memory.get(role.name())?.private_bytes as f64 / 1e6),
            MemoryPerConnection(role) => memory_per_connection(of, role),
        }
    }
}

/// Requests that were answered well.
pub(crate) fn good_answers(load: &Report) -> u64 {
    load.requests.saturating_sub(load.failed)
}

/// Of all requests.
pub(crate) fn failed_percent(load: &Report) -> f64 {
    load.failed as f64 * 100.0 / load.requests.max(1) as f64
}

/// For all roles together, what metrics are made of. Without the application's there is no sum:
/// what a request costs a cluster is not what it costs a part of it.
fn usage(of: &Measurement, role: Role) -> Option<Usage> {
    if role != Role::All {
        return of.usage.get(role.name()).copied();
    }
    let sum = |mut sum: Usage, it: &Usage| {
        sum.user_seconds += it.user_seconds;
        sum.system_seconds += it.system_seconds;
        if let Some(seconds) = it.unsplit_seconds {
            *sum.unsplit_seconds.get_or_insert_default() += seconds;
        }
        sum.voluntary_switches = sum.voluntary_switches.saturating_add(it.voluntary_switches);
        sum
    };
    let is_whole = of.usage.contains_key(Role::Application.name());
    is_whole.then(|| of.usage.values().fold(Usage::default(), sum))
}

/// The same, if user, kernel and wake-ups were measured separately.
fn split(of: &Measurement, role: Role) -> Option<Usage> {
    usage(of, role).filter(|usage| usage.unsplit_seconds.is_none())
}

/// Nothing of a record that does not say what there was right before the load.
fn memory_per_connection(of: &Measurement, role: Role) -> Option<f64> {
    let connections = of.load.connections;
    let (now, before) = (of.memory.get(role.name())?, of.memory_before.get(role.name())?);
    let grown = now.private_bytes as f64 - before.private_bytes as f64;
    (connections >= CONNECTIONS_MIN).then(|| grown.max(0.0) / connections as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::record::Memory;
    use crate::testing;

    #[test]
    fn every_metric_has_a_name_of_its_own() {
        let names: BTreeSet<String> = Metric::all().iter().map(|it| it.name()).collect();
        assert_eq!(names.len(), Metric::all().len());
        assert!(!names.contains(""));
    }

    #[test]
    fn values_are_per_good_answer() {
        let mut measurement = testing::measurement("path", "ambient", 1);
        measurement.load.requests = 1010;
        measurement.load.failed = 10;
        let usage = Usage { user_seconds: 0.1, system_seconds: 0.3, ..Usage::default() };
        measurement.usage =
            ["proxy", "load", "application"].map(|role| (role.to_owned(), usage)).into();
        measurement.calls = [("load".to_owned(), Calls { reads: 2000, ..Calls::default() })].into();
        let value = |metric: Metric| metric.value(&measurement);
        assert_eq!(value(Cpu(Role::Proxy)), Some(400.0));
        assert_eq!(value(CpuUser(Role::Proxy)), Some(100.0));
        assert_eq!(value(Cpu(Role::All)), Some(1200.0));
        assert_eq!(value(Cpu(Role::Agent)), None);
        assert_eq!(value(Metric::Calls(Role::Load, Call::Reads)), Some(2.0));
        assert_eq!(value(Metric::Calls(Role::Proxy, Call::Reads)), None);
        assert!((value(Failed).unwrap() - 0.990).abs() < 0.001);
        assert_eq!(value(Gigabits), None);
    }

    #[test]
    fn a_part_of_the_sum_is_no_sum() {
        let mut measurement = testing::measurement("path", "ambient", 1);
        let proxy = Usage { unsplit_seconds: Some(0.5), ..Usage::default() };
        measurement.usage.insert("proxy".to_owned(), proxy);
        let value = |metric: Metric| metric.value(&measurement);
        assert_eq!(value(Cpu(Role::Proxy)), Some(50.0));
        assert_eq!(value(Cpu(Role::All)), None);
    }

    #[test]
    fn what_is_not_told_apart_is_no_zero() {
        let mut measurement = testing::measurement("path", "ambient", 1);
        let proxy = Usage { unsplit_seconds: Some(0.0), ..Usage::default() };
        let application = Usage { user_seconds: 0.5, ..Usage::default() };
        measurement.usage =
            [("proxy".to_owned(), proxy), ("application".to_owned(), application)].into();
        // What is read again is the same: a proxy that used nothing has no user time either.
        let json = serde_json::to_string(&measurement).unwrap();
        let measurement: Measurement = serde_json::from_str(&json).unwrap();
        let value = |metric: Metric| metric.value(&measurement);
        assert_eq!((value(Cpu(Role::Proxy)), value(Cpu(Role::All))), (Some(0.0), Some(50.0)));
        for role in [Role::Proxy, Role::All] {
            for metric in [CpuUser(role), CpuSystem(role), Wakeups(role)] {
                assert_eq!(value(metric), None, "{metric:?}");
            }
        }
        assert_eq!(value(CpuUser(Role::Application)), Some(50.0));
    }

    #[test]
    fn a_connection_takes_what_the_proxies_grew_by() {
        let check = |connections, before: Option<u64>, expected| {
            let mut measurement = testing::measurement("path", "ambient", 1);
            measurement.load.connections = connections;
            let proxy = |private_bytes| {
                let memory = Memory { rss_bytes: 900_000_000, private_bytes, processes: 2 };
                ("proxy".to_owned(), memory)
            };
            measurement.memory = [proxy(150_000_000)].into();
            measurement.memory_before = before.map(proxy).into_iter().collect();
            assert_eq!(
                MemoryPerConnection(Role::Proxy).value(&measurement),
                expected,
                "{connections}"
            );
        };
        check(10_000, Some(30_000_000), Some(12.0));
        check(10_000, Some(160_000_000), Some(0.0));
        check(999, Some(30_000_000), None);
        check(10_000, None, None);
    }

    #[test]
    fn a_stream_has_no_requests() {
        let mut measurement = testing::measurement("stream", "ambient", 1);
        measurement.load.protocol = Protocol::TcpStream;
        measurement.load.bytes_out = 2_000_000_000;
        measurement.load.gigabits_per_second_out = 5.0;
        let usage = Usage { user_seconds: 1.0, system_seconds: 3.0, ..Usage::default() };
        measurement.usage = [("proxy".to_owned(), usage)].into();
        let value = |metric: Metric| metric.value(&measurement);
        assert_eq!(value(Gigabits), Some(5.0));
        assert_eq!(value(CpuPerGigabyte(Role::Proxy)), Some(2.0));
        for metric in [Throughput, P50, Max, Cpu(Role::Proxy), ReadsPerResponse] {
            assert_eq!(value(metric), None, "{metric:?}");
        }
    }
}
