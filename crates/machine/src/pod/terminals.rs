//! Terminals that a command in a pod can use and cannot change.
//!
//! A command of `ambit exec` gets the terminal of its caller. With the caller's own descriptor the
//! pod's root could let every user of the host read and write that terminal, for the device is of
//! the same user. So the command gets another descriptor of it, on a mount that is read-only.

use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use ambit_net::sys::mount::{self, MountOptions};
use ambit_net::sys::terminal;

/// Where the host's terminals are.
const HOST: &str = "/dev/pts";
/// What their modes and owners are cannot be changed; the devices themselves can be used.
const OPTIONS: MountOptions =
    MountOptions { read_only: true, no_suid: true, no_dev: false, no_exec: true };

/// The number of `/dev/null`.
const NULL_DEVICE: u64 = 0x103;

/// Whether it is a `/dev/null`.
pub(crate) fn is_null(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == NULL_DEVICE
}

/// The host's terminals.
#[derive(Debug)]
pub(crate) struct Terminals(Option<OwnedFd>);

impl Terminals {
    /// Before the host's devices are out of reach. A host may have none.
    pub(crate) fn take() -> io::Result<Self> {
        if !Path::new(HOST).is_dir() {
            return Ok(Self(None));
        }
        let terminals = mount::detached(Path::new(HOST))?;
        mount::forbid_detached(&terminals, OPTIONS)?;
        Ok(Self(Some(terminals)))
    }

    /// The same, if it is no terminal of the host, or else a descriptor that cannot change it.
    pub(crate) fn protect(&self, given: OwnedFd) -> io::Result<OwnedFd> {
        let Some(terminals) = &self.0 else { return Ok(given) };
        Ok(terminal::reopen(terminals, &given)?.unwrap_or(given))
    }
}
