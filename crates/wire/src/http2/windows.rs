//! Credit for bytes (RFC 9113 section 5.2).
//!
//! A window may become smaller while bytes are under way: by SETTINGS at once, so that the peer may
//! send less than nothing for a while, or by credit that is not given. Neither leaves a peer
//! waiting for ever: what is owed is said as soon as it is half of what the peer still has.
//!
//! What we may send on a stream is the size that the peer last said for all streams (section
//! 6.9.2), and beside it what the stream alone was given and has spent. So a new size costs nothing
//! for each stream. It must not make any window larger than 2^31-1, of which only the largest part
//! beside the size is remembered: streams are looked at when that would be too much.

/// The largest window that there may be.
pub(super) const MAX_WINDOW: i64 = (1 << 31) - 1;

/// What the peer may send, on a stream or on all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    /// What it may send now. Less than nothing after the window was made smaller.
    open: i64,
    /// Taken by its reader, or added to the window, and not yet said to the peer.
    owed: i64,
    /// The whole window.
    size: i64,
}

impl Incoming {
    /// A window that nothing was sent in.
    pub(super) fn new(size: u32) -> Self {
        Self { open: i64::from(size), owed: 0, size: i64::from(size) }
    }

    /// The peer has sent so much. `None`: it was not allowed to. Nothing may always be sent: a
    /// stream ends with it.
    pub(super) fn receive(&mut self, bytes: usize) -> Option<()> {
        self.open -= bytes as i64;
        (bytes == 0 || self.open >= 0).then_some(())
    }

    /// So much was taken.
    pub(super) fn release(&mut self, bytes: usize) {
        self.owed += bytes as i64;
    }

    /// Another size, of which the peer learns by credit: less of it until it is right.
    pub(super) fn resize(&mut self, size: u32) {
        self.owed += i64::from(size) - self.size;
        self.size = i64::from(size);
    }

    /// Another size, which the peer knows by SETTINGS.
    pub(super) fn shift(&mut self, size: u32) {
        self.open += i64::from(size) - self.size;
        self.size = i64::from(size);
    }

    /// Whether credit is due: half as much as the peer still has, so that not every read is a
    /// frame.
    pub(super) fn is_due(&self) -> bool {
        self.owed > 0 && 2 * self.owed >= self.open
    }

    /// Credit that is due.
    pub(super) fn announce(&mut self) -> Option<u32> {
        if !self.is_due() {
            return None;
        }
        let owed = self.owed.min(MAX_WINDOW - self.open);
        self.open += owed;
        self.owed -= owed;
        u32::try_from(owed).ok().filter(|owed| *owed > 0)
    }
}

/// What we may send, beside a size that the peer may change for all streams at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outgoing(i64);

impl Outgoing {
    /// What may be sent now in a window of this size.
    pub(super) fn open(self, size: u32) -> usize {
        usize::try_from(i64::from(size) + self.0).unwrap_or(0)
    }

    /// We have sent so much.
    pub(super) fn send(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// The peer allows so much more. `None`: more than a window can be.
    pub(super) fn add(&mut self, bytes: u32, size: u32) -> Option<()> {
        self.0 += i64::from(bytes);
        self.fits(size)
    }

    /// Whether a window of this size may be as large as this makes it.
    pub(super) fn fits(self, size: u32) -> Option<()> {
        (i64::from(size) + self.0 <= MAX_WINDOW).then_some(())
    }

    /// The one of two that makes a window larger.
    pub(super) fn larger(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_said_when_it_is_half_of_what_is_left() {
        let mut window = Incoming::new(1000);
        assert_eq!(window.receive(300), Some(()));
        window.release(300);
        assert_eq!(window.announce(), None);
        assert_eq!(window.receive(200), Some(()));
        assert_eq!(window.announce(), Some(300));
        window.release(200);
        assert_eq!(window.announce(), None);
        assert_eq!(window.receive(801), None);
    }

    #[test]
    fn a_window_grows_and_shrinks_by_credit() {
        let mut window = Incoming::new(1000);
        window.resize(3000);
        assert_eq!(window.announce(), Some(2000));
        window.resize(1000);
        assert_eq!(window.receive(2500), Some(()));
        window.release(2500);
        // 500 are open, and the window is 1,000.
        assert_eq!(window.announce(), Some(500));
        window.shift(100);
        assert_eq!(window.receive(101), None);
    }

    #[test]
    fn what_we_may_send_is_never_more_than_a_window() {
        let mut window = Outgoing::default();
        window.send(10);
        assert_eq!((window.open(10), window.open(5), window.open(30)), (0, 0, 20));
        assert_eq!(window.add(MAX_WINDOW as u32, 10), Some(()));
        assert_eq!(window.open(10), MAX_WINDOW as usize);
        assert_eq!((window.fits(11), window.add(1, 10)), (None, None));
    }
}
