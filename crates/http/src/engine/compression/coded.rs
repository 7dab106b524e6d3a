//! A body on its way to the client, compressed if an encoder is given.
//!
//! What an encoder holds back is written out whenever the pump has nothing more for now, so that no
//! event of a stream waits for the next one.

use std::cell::Cell;
use std::io;

use bytes::Bytes;

use super::encoder::Encoder;
use super::wanted::OF_PLAIN_BYTES;
use crate::engine::piece::{Broken, Sink};
use crate::engine::respond::Respond;
use crate::fields::Fields;

/// So much is compressed in one go: behind it other requests of the thread have their turn. What an
/// encoder of Brotli takes grows with it.
const TURN_BYTES: usize = 32 * 1024;

/// The client's side of an exchange.
pub(crate) struct Coded<'a, R> {
    respond: &'a mut R,
    state: State,
    /// Bytes that are sent, where they are not those that came.
    sent: &'a Cell<Option<u64>>,
}

enum State {
    /// What comes is sent as it is.
    Plain,
    /// What comes is compressed.
    Coding {
        encoder: Box<Encoder>,
        /// Bytes that were put in since all was written out.
        unflushed: usize,
    },
    /// The encoder has failed: the response cannot be finished.
    Broken(io::ErrorKind),
}

impl<'a, R: Respond> Coded<'a, R> {
    /// Counts in `sent` what an encoder makes.
    pub(crate) fn new(
        respond: &'a mut R,
        encoder: Option<Box<Encoder>>,
        sent: &'a Cell<Option<u64>>,
    ) -> Self {
        sent.set(encoder.is_some().then_some(0));
        let state = match encoder {
            Some(encoder) => State::Coding { encoder, unflushed: 0 },
            None => State::Plain,
        };
        Self { respond, state, sent }
    }

    /// Sends on what an encoder has made.
    fn send(&mut self, coded: io::Result<Vec<u8>>) {
        match coded {
            Ok(coded) if coded.is_empty() => {}
            Ok(coded) => {
                let sent = self.sent.get().unwrap_or_default();
                self.sent.set(Some(sent + coded.len() as u64));
                self.respond.put(coded.into());
            }
            Err(error) => {
                tracing::debug!(%error, "a response cannot be compressed to its end");
                self.state = State::Broken(error.kind());
            }
        }
    }
}

impl<R: Respond> Sink for Coded<'_, R> {
    fn put(&mut self, data: Bytes) {
        match &mut self.state {
            State::Plain => self.respond.put(data),
            State::Coding { encoder, unflushed } => {
                *unflushed += data.len();
                let coded = encoder.write(&data);
                self.send(coded);
            }
            State::Broken(_) => {}
        }
    }

    fn finish(&mut self, mut trailers: Option<Fields>) {
        if let State::Coding { encoder, .. } = &mut self.state {
            if let Some(trailers) = &mut trailers {
                for name in OF_PLAIN_BYTES {
                    trailers.remove(name);
                }
            }
            let coded = encoder.finish();
            self.state = State::Plain;
            self.send(coded);
        }
        // An end in good order would make a part of a response a whole one.
        if matches!(self.state, State::Plain) {
            self.respond.finish(trailers);
        }
    }

    fn is_pending(&self) -> bool {
        let is_held = match &self.state {
            State::Plain => false,
            State::Coding { unflushed, .. } => *unflushed > 0,
            State::Broken(_) => true,
        };
        is_held || self.respond.is_pending()
    }

    fn is_full(&self) -> bool {
        let is_full = match &self.state {
            State::Plain => false,
            State::Coding { unflushed, .. } => *unflushed >= TURN_BYTES,
            State::Broken(_) => true,
        };
        is_full || self.respond.is_full()
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        let mut is_turn_over = false;
        if let State::Coding { encoder, unflushed } = &mut self.state
            && *unflushed > 0
        {
            is_turn_over = *unflushed >= TURN_BYTES;
            *unflushed = 0;
            let coded = encoder.flush();
            self.send(coded);
        }
        if let State::Broken(kind) = self.state {
            return Err(io::Error::from(kind).into());
        }
        self.respond.flush().await?;
        if is_turn_over {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn gone(&mut self) {
        self.respond.gone().await;
    }
}
