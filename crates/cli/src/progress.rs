//! A line at the terminal for what takes longer than a moment: what goes on, and for how long.
//!
//! It is on standard error, is gone when the work is done, and is not written into pipes and files.
//! What prints lines of its own meanwhile must not have one.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A wait that is shorter is not worth a word; the line changes as often.
const INTERVAL: Duration = Duration::from_secs(1);

/// A line for as long as this is kept.
#[must_use = "the line is gone with it"]
pub(crate) struct Shown(Option<(Sender<()>, JoinHandle<()>)>);

/// Says what goes on from now on, if that takes long and somebody sits there.
pub(crate) fn shown(what: &'static str) -> Shown {
    if !std::io::stderr().is_terminal() {
        return Shown(None);
    }
    let (going_on, done) = channel();
    let thread = thread::Builder::new().name("progress".to_owned());
    // A thread, because some work lets no task run beside it. Without one there is no line.
    let thread = thread.spawn(move || show(what, &done, INTERVAL, &mut std::io::stderr()));
    Shown(thread.ok().map(|thread| (going_on, thread)))
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((going_on, thread)) = self.0.take() {
            drop(going_on);
            let _shown = thread.join();
        }
    }
}

/// Writes the line again and again until the work is done. Who does not read it misses nothing.
fn show(what: &str, done: &Receiver<()>, interval: Duration, out: &mut impl Write) {
    let mut count = 0_u32;
    while done.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        count = count.saturating_add(1);
        let seconds = (interval * count).as_secs();
        let _unread = write!(out, "\r\x1b[K{seconds:>4} s {what}").and_then(|()| out.flush());
    }
    if count > 0 {
        let _unread = write!(out, "\r\x1b[K").and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends the work at the second line.
    struct Terminal {
        text: String,
        going_on: Option<Sender<()>>,
    }

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.text.push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            if self.text.matches("waiting").count() == 2 {
                self.going_on = None;
            }
            Ok(())
        }
    }

    #[test]
    fn what_takes_long_is_told_and_leaves_nothing() {
        let (going_on, done) = channel();
        let mut terminal = Terminal { text: String::new(), going_on: Some(going_on) };
        show("waiting", &done, Duration::from_millis(1), &mut terminal);
        let expected = "\r\x1b[K   0 s waiting\r\x1b[K   0 s waiting\r\x1b[K";
        assert_eq!(terminal.text, expected);
    }

    #[test]
    fn what_is_done_in_a_moment_is_not_told() {
        let (going_on, done) = channel();
        drop(going_on);
        let mut terminal = Terminal { text: String::new(), going_on: None };
        show("waiting", &done, INTERVAL, &mut terminal);
        assert_eq!(terminal.text, "");
    }
}
