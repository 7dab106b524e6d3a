//! Waits more exact than the runtime's timer, and the processor time that a thread has used.
//!
//! The runtime counts in milliseconds and rounds up, which is right for timeouts and useless to
//! send a request every hundred microseconds.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;

use super::{check, watch};

/// An alarm clock of the kernel (`timerfd`), for one waiter at a time.
#[derive(Debug)]
pub struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// Makes one; it is never early and, on an idle machine, some tens of microseconds late.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: the call takes no pointers.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the kernel just gave this descriptor to us alone.
        watch(unsafe { OwnedFd::from_raw_fd(fd) }).map(Self)
    }

    /// Waits until `moment`. Cancel safe: a dropped wait leaves nothing behind.
    pub async fn sleep_until(&mut self, moment: Instant) -> io::Result<()> {
        loop {
            let left = moment.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.set(left)?;
            // Setting it again cancels an unread expiry, so nothing needs reading.
            self.0.readable().await?.clear_ready();
        }
    }

    fn set(&self, left: Duration) -> io::Result<()> {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(left.subsec_nanos().cast_signed()),
        };
        let timer = libc::itimerspec { it_interval: zero, it_value: value };
        let fd = self.0.as_raw_fd();
        // SAFETY: the descriptor is open, `timer` outlives the call, the old value is not wanted.
        check(unsafe { libc::timerfd_settime(fd, 0, &raw const timer, std::ptr::null_mut()) })?;
        Ok(())
    }
}

/// The processor time that the calling thread has used.
pub fn thread_cpu_time() -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the length of the call.
    check(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) })?;
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
}

/// What the calling process has used, all its threads, the ended ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Outside the kernel.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
    /// Context switches because a thread waited.
    pub voluntary_switches: u64,
    /// Context switches because a thread's time was up.
    pub involuntary_switches: u64,
}

impl ProcessUsage {
    /// Of the calling process.
    pub fn now() -> io::Result<Self> {
        // SAFETY: a structure of numbers alone may be all zeroes.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable for the length of the call.
        check(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) })?;
        let time = |time: libc::timeval| {
            let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
            Duration::from_secs(seconds)
                + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default())
        };
        Ok(Self {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            voluntary_switches: u64::try_from(usage.ru_nvcsw).unwrap_or_default(),
            involuntary_switches: u64::try_from(usage.ru_nivcsw).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timer_is_never_early_and_can_be_set_again() {
        let mut timer = Timer::new().unwrap();
        for micros in [0, 1, 300, 2500] {
            let moment = Instant::now() + Duration::from_micros(micros);
            timer.sleep_until(moment).await.unwrap();
            assert!(Instant::now() >= moment);
        }
        let long = timer.sleep_until(Instant::now() + Duration::from_secs(3600));
        tokio::time::timeout(Duration::from_millis(5), long).await.unwrap_err();
        timer.sleep_until(Instant::now() + Duration::from_millis(1)).await.unwrap();
    }

    #[test]
    fn processor_time_grows_with_work() {
        let before = thread_cpu_time().unwrap();
        let end = Instant::now() + Duration::from_secs(5);
        while thread_cpu_time().unwrap() == before {
            assert!(Instant::now() < end, "work costs processor time");
        }
        let all = ProcessUsage::now().unwrap();
        assert!(all.user + all.system > Duration::ZERO);
    }
}
