//! Hands sockets of the host's network to the proxy of a machine that carries a workload of a
//! cluster: connections to others, and the listener that others connect to.
//!
//! What passes does not pass here: the proxy has the sockets themselves. One question a connection;
//! the socket lies in the state directory, which pods do not see.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::outside::{Question, answer, question};
use ambit_net::seqpacket::{Connection, Listener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::allowed::Egress;
use super::protocol::{CONTROL_DIALS_MAX, DIALS_MAX};
use super::told::Told;
use super::way::{For, Way};
use crate::accepting::ACCEPT_PAUSE;

/// How long one may take to be asked.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// What all answers share.
pub(super) struct Office {
    way: Arc<Way>,
    /// The socket that listens for other proxies.
    hbone: Arc<OwnedFd>,
    /// What the process on the host judges addresses by.
    egress: Egress,
    /// Addresses that the log says are refused.
    told: Told,
}

impl Office {
    /// One that has refused nothing yet.
    pub(super) fn new(way: Arc<Way>, hbone: Arc<OwnedFd>, egress: Egress) -> Self {
        Self { way, hbone, egress, told: Told::default() }
    }
}

/// Answers at `path` for as long as the machine lives. Needs a runtime.
///
/// A socket that answers as many questions as it may takes no more, so who asks there waits. Pods
/// and the proxy itself have a socket each: what a pod asks for holds up no connection to control.
pub(super) fn serve(path: &Path, whose: For, office: &Arc<Office>) -> io::Result<()> {
    let listener = Listener::bind(path)?;
    let office = Arc::clone(office);
    let questions = match whose {
        For::Pod => DIALS_MAX,
        For::Control => CONTROL_DIALS_MAX,
    };
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(questions));
        loop {
            let held = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
            match listener.accept().await {
                Ok(caller) => {
                    let office = Arc::clone(&office);
                    tokio::spawn(async move {
                        office.hand_out(whose, &caller).await;
                        drop(held);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take who asks for a socket; waiting");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(())
}

impl Office {
    async fn hand_out(&self, whose: For, caller: &Connection) {
        let Ok(Some(asked)) = timeout(QUESTION_TIMEOUT, question(caller)).await else { return };
        let socket = match asked {
            Question::Listener => self.hbone.try_clone(),
            Question::Dial(to) => self.dial(whose, to).await,
        };
        let socket = socket.map_err(|error| {
            // What the system did not say is like a host that nobody reaches.
            error.raw_os_error().unwrap_or(rustix::io::Errno::HOSTUNREACH.raw_os_error())
        });
        if let Err(error) = answer(caller, socket).await {
            tracing::debug!(%error, "who asked for a socket has gone");
        }
    }

    async fn dial(&self, whose: For, to: SocketAddr) -> io::Result<OwnedFd> {
        let dialled = self.way.dial(whose, to).await;
        if let Err(error) = &dialled
            && error.kind() == io::ErrorKind::PermissionDenied
            && self.told.is_new(to.ip())
        {
            let why = why_denied(&self.egress, to.ip());
            tracing::warn!(%to, why, "a connection to the outside is refused");
        }
        dialled.map(OwnedFd::from)
    }
}

/// Why a connection to this address is not permitted. The system has the same error for what
/// `--egress` does not allow and for what the host itself forbids.
fn why_denied(egress: &Egress, ip: IpAddr) -> &'static str {
    let of_host = "the host's system forbids it: see its firewall, its routes and its SELinux or \
                   AppArmor";
    egress.refusal_of_cluster(ip).unwrap_or(of_host)
}

#[cfg(test)]
mod tests {
    use ambit_net::outside::Outside;
    use ambit_net::seqpacket::BlockingConnection;
    use rustix::io::Errno;

    use super::super::protocol::{Answer, PACKET_SIZE_MAX_BYTES, Question as HostQuestion};
    use super::*;

    const CONTROL: &str = "192.0.2.1:15012";

    /// A process on the host where control refuses connections and nobody else answers.
    async fn host(socket: OwnedFd) {
        let connection = Connection::from_fd(socket).unwrap();
        let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
        while let Ok(packet) = connection.receive(&mut buffer).await {
            let (number, question) = HostQuestion::read(&buffer[..packet.length]).unwrap();
            if question == HostQuestion::Dial(CONTROL.parse().unwrap()) {
                let errno = Errno::CONNREFUSED.raw_os_error();
                let answer = Answer { number, errno, content: Vec::new() }.write();
                connection.send(&answer, &[]).await.unwrap();
            }
        }
    }

    #[test]
    fn what_the_host_forbids_is_not_put_down_to_egress() {
        let egress: Egress = "10.0.0.0/8".parse().unwrap();
        for (ip, part) in [
            ("192.0.2.1", "--egress"),
            ("127.0.0.1", "loopback"),
            ("10.1.2.3", "firewall"),
            ("::ffff:10.1.2.3", "firewall"),
        ] {
            let why = why_denied(&egress, ip.parse().unwrap());
            assert!(why.contains(part), "{ip}: {why}");
        }
    }

    #[tokio::test]
    async fn connections_that_nobody_answers_do_not_hold_up_one_to_control() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, theirs) = BlockingConnection::pair().unwrap();
        tokio::spawn(host(theirs.into()));
        let way = Arc::new(Way::new(ours.into()).unwrap());
        let receiving = Arc::clone(&way);
        tokio::spawn(async move { receiving.receive().await });
        let egress = Egress::EVERYWHERE.parse().unwrap();
        let hbone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let office = Arc::new(Office::new(Arc::clone(&way), Arc::new(hbone.into()), egress));
        let path = |name: &str| directory.path().join(name);
        serve(&path("pod"), For::Pod, &office).unwrap();
        serve(&path("control"), For::Control, &office).unwrap();
        let (pod, control) = (Outside::new(path("pod")), Outside::new(path("control")));
        let dead: SocketAddr = "192.0.2.9:80".parse().unwrap();
        let dials: Vec<_> = (0..2 * DIALS_MAX)
            .map(|_| {
                let pod = pod.clone();
                tokio::spawn(async move { pod.dial(dead).await })
            })
            .collect();
        let soon = Duration::from_millis(300);
        // Until all of those have asked.
        while way.free_dials() > 0 {
            tokio::task::yield_now().await;
        }
        let of_pod = timeout(soon, pod.dial(CONTROL.parse().unwrap())).await;
        assert!(of_pod.is_err(), "it waits for the others: {of_pod:?}");
        let dialled = timeout(Duration::from_secs(5), control.dial(CONTROL.parse().unwrap()));
        let error = dialled.await.expect("at once").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        dials.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
