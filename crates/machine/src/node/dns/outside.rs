//! Names outside of the cluster: which they are, and how the host's resolvers are asked for them.
//!
//! Process 1 of a machine with a way out listens at a socket: a query is one packet, and so is its
//! answer.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ambit_net::seqpacket::Connection;
use ipnet::IpNet;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::addresses::own_networks;

/// Queries that are under way at a time; for more there is no answer.
const QUERIES_MAX: usize = 256;
/// Longest answer.
const ANSWER_SIZE_MAX_BYTES: usize = u16::MAX as usize;
/// How long an answer may take. Clients commonly wait for 5 s.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(4800);
/// Reverse names of loopback addresses.
const LOOPBACK: &str = "127.in-addr.arpa";

/// The way to the host's resolvers.
#[derive(Debug)]
pub(crate) struct Outside {
    socket: PathBuf,
    /// Zones whose names never leave the machine.
    own: Vec<String>,
    places: Semaphore,
}

impl Outside {
    /// By way of process 1, which listens at this socket.
    /// `domain` is that of the cluster.
    pub(crate) fn new(socket: PathBuf, domain: &str) -> Self {
        let fixed = [domain, "localhost", LOOPBACK].map(str::to_owned);
        let reverse = own_networks().map(reverse_zone);
        let own = fixed.into_iter().chain(reverse).collect();
        Self { socket, own, places: Semaphore::new(QUERIES_MAX) }
    }

    /// Whether a name (lower case, with or without the final dot) that the cluster does not have
    /// may exist outside.
    pub(super) fn may_have(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.');
        let is_in = |zone: &String| {
            name.strip_suffix(zone.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        !name.is_empty() && !self.own.iter().any(is_in)
    }

    /// The answer to a query, as it came; `None` if nobody answers in time.
    pub(super) async fn ask(&self, query: &[u8]) -> Option<Vec<u8>> {
        let _place = self.places.try_acquire().ok()?;
        let asking = async {
            let connection = Connection::connect(&self.socket).ok()?;
            connection.send(query, &[]).await.ok()?;
            let mut answer = vec![0; ANSWER_SIZE_MAX_BYTES];
            let packet = connection.receive(&mut answer).await.ok()?;
            answer.truncate(packet.length);
            Some(answer)
        };
        timeout(ANSWER_TIMEOUT, asking).await.ok().flatten()
    }
}

/// The zone of the names that lead back from a network's addresses to names. Prefix lengths are
/// whole labels.
fn reverse_zone(network: IpNet) -> String {
    let prefix_len = usize::from(network.prefix_len());
    let (labels, end): (Vec<String>, _) = match network.network() {
        IpAddr::V4(ip) => {
            let octets = ip.octets().into_iter().take(prefix_len / 8);
            (octets.map(|it| it.to_string()).collect(), "in-addr.arpa")
        }
        IpAddr::V6(ip) => {
            let nibbles = ip.octets().into_iter().flat_map(|it| [it >> 4, it & 0xf]);
            (nibbles.take(prefix_len / 4).map(|it| format!("{it:x}")).collect(), "ip6.arpa")
        }
    };
    let reversed = labels.into_iter().rev().map(|label| label + ".").collect::<String>();
    reversed + end
}

#[cfg(test)]
mod tests {
    use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;

    use super::*;

    #[test]
    fn names_of_the_machine_never_leave_it() {
        let outside = Outside::new(PathBuf::new(), DEFAULT_CLUSTER_DOMAIN);
        for name in [
            "",
            ".",
            "cluster.local.",
            "example.com.default.svc.cluster.local.",
            "example.com.cluster.local",
            "localhost.",
            "a.localhost.",
            "1.0.0.127.in-addr.arpa.",
            "3.1.244.10.in-addr.arpa.",
            "1.0.96.10.in-addr.arpa.",
            "11.0.18.172.in-addr.arpa.",
            "a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.",
            "1.0.0.4.4.2.0.0.1.0.0.0.0.d.f.ip6.arpa.",
        ] {
            assert!(!outside.may_have(name), "{name}");
        }
        for name in [
            "example.com.",
            "web.",
            "svc.",
            "mycluster.local.",
            "notlocalhost.",
            "3.1.245.10.in-addr.arpa.",
            "11.1.18.172.in-addr.arpa.",
            "8.b.d.0.1.0.0.2.ip6.arpa.",
        ] {
            assert!(outside.may_have(name), "{name}");
        }
    }
}
