//! Linux capabilities of the calling thread.
//!
//! A pod gets what container runtimes give by default, except two. With `NET_RAW` it could forge
//! the addresses by which its neighbours identify it. With `MKNOD` it could leave a device file for
//! the host's users in a directory of the host that it may write: it cannot use devices itself.

use std::io;

use super::check;
use super::process::prctl;

const VERSION_3: u32 = 0x2008_0522;
const LAST_EVER: u32 = 63;

const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const SETPCAP: u32 = 8;
const NET_BIND_SERVICE: u32 = 10;
const SYS_CHROOT: u32 = 18;
const AUDIT_WRITE: u32 = 29;
const SETFCAP: u32 = 31;

/// The container default set without `NET_RAW` and `MKNOD`.
const POD: u64 = (1 << CHOWN)
    | (1 << DAC_OVERRIDE)
    | (1 << FOWNER)
    | (1 << FSETID)
    | (1 << KILL)
    | (1 << SETGID)
    | (1 << SETUID)
    | (1 << SETPCAP)
    | (1 << NET_BIND_SERVICE)
    | (1 << SYS_CHROOT)
    | (1 << AUDIT_WRITE)
    | (1 << SETFCAP);

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops every capability that a pod must not have, from all sets including the bounding one.
/// Irrevocable.
///
/// Must run while the caller still has `SETPCAP`, before `become_user`.
pub fn keep_pod_defaults() -> io::Result<()> {
    keep(POD)
}

/// Drops every capability, for processes that need none. Irrevocable.
pub fn drop_all() -> io::Result<()> {
    keep(0)
}

/// The effective set, one bit per capability number.
pub fn effective() -> io::Result<u64> {
    let data = read()?;
    Ok(u64::from(data[0].effective) | u64::from(data[1].effective) << 32)
}

fn keep(wanted: u64) -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong)?;
    for number in (0..=LAST_EVER).filter(|number| wanted & (1 << number) == 0) {
        match prctl(libc::PR_CAPBSET_DROP, number.into()) {
            Ok(()) => {}
            // The first number that the kernel does not know ends the list.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    let held = read()?;
    let words = [wanted as u32, (wanted >> 32) as u32];
    let kept = [0, 1].map(|word| {
        let permitted = held[word].permitted & words[word];
        Data { effective: permitted, permitted, inheritable: 0 }
    });
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: version 3 takes one header and two data blocks, both laid out as in
    // linux/capability.h.
    check(unsafe { libc::syscall(libc::SYS_capset, &header, kept.as_ptr()) } as libc::c_int)
        .map(drop)
}

fn read() -> io::Result<[Data; 2]> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 takes one header and fills two data blocks.
    check(
        unsafe { libc::syscall(libc::SYS_capget, &mut header, data.as_mut_ptr()) } as libc::c_int
    )?;
    Ok(data)
}
