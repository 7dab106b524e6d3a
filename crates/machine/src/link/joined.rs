//! The joined machine's side of a link: connects to home again and again, writes down what home
//! sends, and reports its pods.
//!
//! The one TCP socket that it was given is used for every connection. It believes nobody but the
//! root of its token, and writes nothing but the files of its registry and its credentials.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use ambit_net::socket::tcp_redial;
use ambit_net::tun::Tun;
use ambit_tls::ClientStream;
use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::device::JOINED_LINK;
use super::entry::{self, Place};
use super::filter::{Filter, Way};
use super::frame::{self, Frame, Limits, Message};
use super::identity::Access;
use super::outbox::Outbox;
use super::ready::show_ready;
use super::session::{Ended, MESSAGES_MAX, Session};
use super::word;
use crate::addresses::NodeNetwork;
use crate::client::Client;
use crate::command::NoteLink;
use crate::layout::Layout;
use crate::registry::{PodStatus, Watch};

/// How long home may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before the second attempt in a row; the first comes at once.
const BACK_OFF_FIRST: Duration = Duration::from_millis(200);
/// Longest wait before an attempt.
const BACK_OFF_MAX: Duration = Duration::from_secs(10);
/// A session that held so long starts the waits afresh.
const GOOD_SESSION: Duration = Duration::from_secs(10);

/// Why home is not believed.
const UNKNOWN_HOME: &str = "the other end does not prove that it is the machine of the token; if \
    that was started anew, end this one with `ambit down`, and join with a new token";

/// The joined machine.
struct Joined {
    layout: Layout,
    node: NodeNetwork,
    client: Client,
    access: Access,
    tun: Tun,
}

/// Connects until it is killed, or home does not take it.
pub(super) async fn run(
    layout: Layout,
    node: NodeNetwork,
    socket: OwnedFd,
) -> anyhow::Result<std::process::ExitCode> {
    let mut joined = Joined {
        client: Client::within(layout.clone()),
        access: Access::read(&layout)?,
        tun: Tun::open(JOINED_LINK).context("take the packets of the node's device")?,
        node,
        layout,
    };
    if joined.access.is_known {
        show_ready(&joined.layout)?;
    }
    let mut back_off = Duration::ZERO;
    loop {
        let started = Instant::now();
        let ended = joined.attempt(&socket).await;
        let reason = format!("{ended:#}");
        joined.note(Some(reason.clone())).await;
        if !joined.access.is_known {
            return Err(ended);
        }
        if ended.is::<NotTaken>() {
            tracing::error!(reason, "the link has ended for good");
            // The status says so until the user takes this machine down.
            return std::future::pending().await;
        }
        tracing::warn!(reason, "the link has ended, connecting again");
        if started.elapsed() >= GOOD_SESSION {
            back_off = Duration::ZERO;
        }
        sleep(back_off).await;
        back_off = (back_off * 2).clamp(BACK_OFF_FIRST, BACK_OFF_MAX);
    }
}

/// Home does not take this machine.
#[derive(Debug, thiserror::Error)]
#[error(
    "home does not take this machine: {0}; end it with `ambit down`, and join with a new token of \
     `ambit token create`"
)]
struct NotTaken(String);

impl Joined {
    /// One connection, from its beginning to its end.
    async fn attempt(&mut self, socket: &OwnedFd) -> anyhow::Error {
        let address = self.access.address;
        let connecting = timeout(CONNECT_TIMEOUT, self.connect(socket));
        let stream = match connecting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return error.context(format!("cannot join {address}")),
            Err(_elapsed) => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                return anyhow::anyhow!("cannot join {address}: no answer within {seconds} s");
            }
        };
        if !self.access.is_known {
            self.access.is_known = true;
            let kept = self.access.keep(&self.layout).map_err(anyhow::Error::from);
            if let Err(error) = kept.and_then(|()| show_ready(&self.layout)) {
                return error;
            }
        }
        self.note(None).await;
        tracing::info!(%address, "connected");
        match self.session(stream).await {
            Ended::Refused(reason) => NotTaken(reason).into(),
            ended => ended.into(),
        }
    }

    async fn connect(&self, socket: &OwnedFd) -> anyhow::Result<ClientStream<TcpStream>> {
        let connector = self.access.connector()?;
        let stream = tcp_redial(socket, self.access.address)?.connected().await?;
        stream.set_nodelay(true)?;
        let stream = connector.connect(stream).await;
        let mut stream = stream.context(UNKNOWN_HOME)?;
        frame::write_message(&mut stream, &Message::Hello(self.access.hello())).await?;
        stream.flush().await?;
        match frame::read(&mut stream, Limits::GREETING).await? {
            Frame::Message(Message::Welcome { node }) if node == self.node.name() => Ok(stream),
            Frame::Message(Message::Welcome { node }) => {
                bail!("home calls this machine {node}, and the token {}", self.node.name())
            }
            Frame::Message(Message::Refused { reason }) => Err(NotTaken(reason).into()),
            _ => bail!("home says neither yes nor no"),
        }
    }

    async fn session(&self, stream: ClientStream<TcpStream>) -> Ended {
        let (messages, outgoing) = mpsc::channel(MESSAGES_MAX);
        let filter = Filter { node: self.node };
        let limits = Limits::SESSION;
        let session = Session { tun: &self.tun, filter, incoming: Way::Joined, limits };
        let mut sent = Some(BTreeSet::new());
        let take = |message| self.take(message, &mut sent);
        tokio::select! {
            ended = session.carry(stream, outgoing, take) => ended,
            ended = self.report(Outbox::new(messages, Limits::REPORTS)) => ended,
        }
    }

    /// Tells process 1 how the link is.
    async fn note(&self, reason: Option<String>) {
        let (node, peer) = (self.node.name(), self.access.address.to_string());
        let note = NoteLink { node, number: None, peer, reason };
        if let Err(error) = self.client.note_link(&note).await {
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::error!(error, "the machine does not know how its link is");
        }
    }

    /// Writes down what home says. `sent` has what came since the session began, until all has.
    fn take(&self, message: Message, sent: &mut Option<BTreeSet<Place>>) -> Result<(), Ended> {
        match message {
            Message::Put(entry) => {
                let is_homes = self.is_homes(&entry.place);
                match word::heard(&entry, self.node) {
                    Ok(content) if is_homes => {
                        self.change(&entry.place, |path| entry::write(path, content.as_bytes()))?;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let place = &entry.place;
                        tracing::error!(?place, %error, "a file of home is not taken");
                        return Ok(());
                    }
                }
                if let Some(sent) = sent {
                    sent.insert(entry.place);
                }
                Ok(())
            }
            Message::Remove(place) if self.is_homes(&place) => self.change(&place, entry::remove),
            Message::Whole {} => {
                let Some(sent) = sent.take() else { return Ok(()) };
                let old = self.present().into_iter().filter(|place| !sent.contains(place));
                old.filter(|place| self.is_homes(place))
                    .try_for_each(|place| self.change(&place, entry::remove))
            }
            Message::Refused { reason } => Err(Ended::Refused(reason)),
            Message::Remove(_)
            | Message::Alive {}
            | Message::Hello(_)
            | Message::Welcome { .. } => Ok(()),
        }
    }

    fn change(
        &self,
        place: &Place,
        change: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), Ended> {
        let Some(path) = place.path(&self.layout, &self.node.name()) else {
            tracing::warn!(?place, "home names a file that there is not");
            return Ok(());
        };
        change(&path).map_err(|source| Ended::File { path, source })
    }

    /// Whether home says it: all but what this node says of its own pods.
    fn is_homes(&self, place: &Place) -> bool {
        match place {
            Place::Object { .. } | Place::Credential { .. } => true,
            Place::Status { namespace, name } => {
                let own = self.own_status(&self.layout.pod_status(namespace, name));
                own.is_none()
            }
            Place::Captured { .. } | Place::Uncaptured { .. } => false,
        }
    }

    /// The status at a path, if it is of a pod of this node.
    fn own_status(&self, path: &Path) -> Option<PodStatus> {
        let status: PodStatus = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (status.node == self.node.name()).then_some(status)
    }

    /// The objects and statuses that are there.
    fn present(&self) -> Vec<Place> {
        let mut found = Vec::new();
        for [plural, namespace, name] in names(&self.layout.objects()) {
            let Some(name) = name.strip_suffix(".json").map(str::to_owned) else { continue };
            let namespace = Some(namespace).filter(|it| it != "_");
            found.push(Place::Object { plural, namespace, name });
        }
        for [namespace, name] in names(&self.layout.pod_statuses()) {
            let Some(name) = name.strip_suffix(".json").map(str::to_owned) else { continue };
            found.push(Place::Status { namespace, name });
        }
        found
    }

    /// Sends what this node says of its pods, for as long as anybody listens.
    async fn report(&self, mut outbox: Outbox) -> Ended {
        let roots = [
            self.layout.pod_statuses(),
            self.layout.captured_directory(),
            self.layout.uncaptured_directory(),
        ];
        let mut watch = match Watch::new(&roots) {
            Ok(watch) => watch,
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::error!(error, "cannot follow the reports on pods");
                return Ended::Closed("the reports on pods cannot be followed");
            }
        };
        loop {
            if outbox.bring(self.reports()).await.is_err() {
                return Ended::Closed("nothing more is sent");
            }
            if watch.changes().await.is_err() {
                return Ended::Closed("the reports on pods cannot be followed");
            }
        }
    }

    fn reports(&self) -> BTreeMap<Place, String> {
        let mut found = BTreeMap::new();
        for [namespace, file] in names(&self.layout.pod_statuses()) {
            let Some(name) = file.strip_suffix(".json") else { continue };
            let status = self.own_status(&self.layout.pod_status(&namespace, name));
            if let Some(status) = status {
                let text = serde_json::to_string(&status).expect("a status is JSON");
                found.insert(Place::Status { namespace, name: name.to_owned() }, text);
            }
        }
        for (directory, is_captured) in
            [(self.layout.captured_directory(), true), (self.layout.uncaptured_directory(), false)]
        {
            for [namespace, name] in names(&directory) {
                let read = fs::read_to_string(directory.join(&namespace).join(&name));
                let Ok(text) = read else { continue };
                let place = match is_captured {
                    true => Place::Captured { namespace, name },
                    false => Place::Uncaptured { namespace, name },
                };
                found.insert(place, text);
            }
        }
        found
    }
}

/// The files exactly so deep below a directory, each as the names that lead to it. Files whose
/// names begin with a dot are still being written.
fn names<const DEPTH: usize>(directory: &Path) -> Vec<[String; DEPTH]> {
    let mut found = vec![Vec::new()];
    for _ in 0..DEPTH {
        let mut deeper = Vec::new();
        for names in found {
            let path = names.iter().fold(directory.to_owned(), |path, name| path.join(name));
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                let name = entry.file_name().into_string().unwrap_or_default();
                if !name.is_empty() && !name.starts_with('.') {
                    deeper.push([names.as_slice(), &[name]].concat());
                }
            }
        }
        found = deeper;
    }
    found.into_iter().filter_map(|names: Vec<String>| names.try_into().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn files_are_found_by_their_depth() {
        let directory = tempfile::tempdir().expect("a directory");
        for path in ["a/b.json", "a/.c.new", "d/e.json", "f"] {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, "").expect("written");
        }
        let mut found = names::<2>(directory.path());
        found.sort();
        assert_eq!(found, [["a", "b.json"], ["d", "e.json"]]);
        assert!(names::<2>(&directory.path().join("absent")).is_empty());
    }
}
