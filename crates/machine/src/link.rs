//! `ambit lab-link`: carries the packets and the registry's files between a machine and one that
//! joined it.
//!
//! A process of its own on each side, with the one socket of the host's network that the user's
//! command has opened as its standard input. It reads and writes the registry's files, and tells
//! process 1 who is connected. It never decides who may join: process 1 of home does. See
//! `docs/design/join.md`.

mod device;
mod entry;
mod filter;
mod frame;
mod home;
mod identity;
mod joined;
mod outbox;
mod ready;
mod report;
mod session;
mod share;
mod word;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::addresses::NodeNetwork;
use crate::layout::Layout;
use crate::node::start_log;

pub(crate) use device::{JOINED_LINK, make_joined_device};
pub(crate) use identity::{Access, Identity};

/// The first word of home's side.
pub(crate) const HOME: &str = "home";
/// The first word of the joined machine's side.
pub(crate) const JOINED: &str = "joined";

#[derive(Debug, Parser)]
#[command(name = "lab-link", hide = true)]
struct Arguments {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// The machine that others join; standard input is a socket that listens.
    Home {
        /// The machine's state directory.
        #[arg(long)]
        state: PathBuf,
    },
    /// The machine that joins; standard input is a TCP socket.
    Joined {
        /// The machine's state directory.
        #[arg(long)]
        state: PathBuf,
        /// Which node it is.
        #[arg(long)]
        node_name: String,
    },
}

/// Runs one side until it is killed.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    start_log();
    let name = OsString::from("lab-link");
    let arguments = Arguments::try_parse_from(std::iter::once(&name).chain(words))?;
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned().context("take the socket")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match arguments.side {
            Side::Home { state } => home::run(Layout::new(state), socket).await,
            Side::Joined { state, node_name } => {
                let node = NodeNetwork::of_name(&node_name)
                    .with_context(|| format!("{node_name:?} is not the name of a node"))?;
                joined::run(Layout::new(state), node, socket).await
            }
        }
    })
}

/// What the fuzzer drives: any bytes as what the other end sends, before and after it has proven
/// itself. What passes is a node's own, and no name leads out of the state directory.
#[cfg(any(fuzzing, test))]
pub fn fuzz(bytes: &[u8]) {
    use futures::executor::block_on;

    let (node, layout) = (NodeNetwork::new(3), Layout::new("/state"));
    for limits in [frame::Limits::GREETING, frame::Limits::SESSION] {
        let mut stream = bytes;
        while let Ok(frame) = block_on(frame::read(&mut stream, limits)) {
            match frame {
                frame::Frame::Packet(packet) => fuzz_packet(&packet, node),
                frame::Frame::Message(frame::Message::Put(entry)) => {
                    fuzz_place(&entry.place, &layout);
                    // Home has no pod.
                    let mirror = crate::registry::Mirror::new(&layout);
                    assert!(report::taken(&entry, node, &mirror).is_err(), "{entry:?}");
                    let _judged = word::heard(&entry, node);
                }
                frame::Frame::Message(frame::Message::Remove(place)) => fuzz_place(&place, &layout),
                frame::Frame::Message(_) => {}
            }
        }
    }
}

#[cfg(any(fuzzing, test))]
fn fuzz_packet(packet: &[u8], node: NodeNetwork) {
    let filter = filter::Filter { node };
    let passes = [filter::Way::Home, filter::Way::Joined].map(|way| filter.passes(packet, way));
    assert_ne!(passes, [true, true], "one packet passes both ways");
}

#[cfg(any(fuzzing, test))]
fn fuzz_place(place: &entry::Place, layout: &Layout) {
    use std::path::Component;

    if let Some(path) = place.path(layout, "node-3") {
        let is_below = path.starts_with(layout.root());
        assert!(is_below && path.components().all(|it| it != Component::ParentDir), "{path:?}");
    }
}

#[cfg(test)]
mod tests {
    /// What the fuzzer begins with.
    #[test]
    fn frames_of_every_kind_are_read() {
        let packet = [&[1, 0, 0, 0, 20, 0x45, 0, 0, 20][..], &[0; 16]].concat();
        let put =
            br#"{"put":{"place":{"status":{"namespace":"shop","name":"../.."}},"content":""}}"#;
        let length = u32::try_from(put.len()).unwrap().to_be_bytes();
        let message = [&[2][..], &length, put].concat();
        for bytes in [&packet[..], &message, &[packet.clone(), message.clone()].concat(), &[9; 40]]
        {
            super::fuzz(bytes);
        }
    }
}
