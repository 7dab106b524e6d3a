//! What one end has sent of its files, so that only what is new goes over the link.

use std::collections::BTreeMap;

use ambit_image::Digest;
use tokio::sync::mpsc;

use super::entry::{Entry, Place};
use super::frame::{Limits, Message};

/// The other end does not listen any more.
#[derive(Debug)]
pub(super) struct Gone;

/// Sends files of one session.
pub(super) struct Outbox {
    messages: mpsc::Sender<Message>,
    /// What the other end reads.
    limits: Limits,
    /// As last sent; `None` until everything was sent once.
    sent: Option<BTreeMap<Place, Digest>>,
}

impl Outbox {
    /// Nothing was sent yet.
    pub(super) fn new(messages: mpsc::Sender<Message>, limits: Limits) -> Self {
        Self { messages, limits, sent: None }
    }

    /// Brings the other end from what was sent last to this. The first time everything is sent,
    /// and then that this is all. Not cancel safe.
    pub(super) async fn bring(&mut self, now: BTreeMap<Place, String>) -> Result<(), Gone> {
        let is_first = self.sent.is_none();
        let before = self.sent.take().unwrap_or_default();
        let (mut sent, mut new) = (BTreeMap::new(), Vec::new());
        for (place, content) in now {
            let digest = Digest::of(content.as_bytes());
            if before.get(&place) != Some(&digest) {
                let message = Message::Put(Entry { place: place.clone(), content });
                // What does not fit counts as not there, here as there.
                if !message.fits(self.limits) {
                    tracing::error!(?place, "it is too long for the link, and is not sent");
                    continue;
                }
                new.push(message);
            }
            sent.insert(place, digest);
        }
        for place in before.keys().filter(|place| !sent.contains_key(place)) {
            self.say(Message::Remove(place.clone())).await?;
        }
        for message in new {
            self.say(message).await?;
        }
        if is_first {
            self.say(Message::Whole {}).await?;
        }
        self.sent = Some(sent);
        Ok(())
    }

    /// Sends a message.
    pub(super) async fn say(&self, message: Message) -> Result<(), Gone> {
        self.messages.send(message).await.map_err(|_| Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> BTreeMap<Place, String> {
        let place = |name: &str| {
            let (namespace, name) = ("shop".to_owned(), name.to_owned());
            Place::Status { namespace, name }
        };
        all.iter().map(|(name, content)| (place(name), (*content).to_owned())).collect()
    }

    #[tokio::test]
    async fn only_what_is_new_is_sent() {
        let (sender, mut messages) = mpsc::channel(16);
        let mut outbox = Outbox::new(sender, Limits::SESSION);
        let long = "x".repeat(8 << 20);
        let mut check = async |now: &[(&str, &str)], expected: &[&str]| {
            outbox.bring(files(now)).await.expect("somebody listens");
            let mut said = Vec::new();
            while let Ok(message) = messages.try_recv() {
                said.push(match message {
                    Message::Put(Entry { place: Place::Status { name, .. }, content }) => {
                        format!("{name}={content}")
                    }
                    Message::Remove(Place::Status { name, .. }) => format!("-{name}"),
                    Message::Whole {} => "whole".to_owned(),
                    other => panic!("{other:?}"),
                });
            }
            assert_eq!(said, expected);
        };
        check(&[("a", "1"), ("b", "1")], &["a=1", "b=1", "whole"]).await;
        check(&[("a", "1"), ("b", "1")], &[]).await;
        check(&[("a", "2"), ("c", "1")], &["-b", "a=2", "c=1"]).await;
        check(&[("a", &long), ("c", "1")], &["-a"]).await;
        check(&[("a", &long), ("c", "1")], &[]).await;
        check(&[], &["-c"]).await;
    }
}
