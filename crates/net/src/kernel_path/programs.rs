//! The three programs, and what they share with this process.
//!
//! `watch` runs for each message that a joined application sends, and decides whether the kernel
//! puts it straight into the queue of the proxy's socket on the other side. `join` finds the
//! application's socket and has `watch` look after it. `measure` says how full that queue is.
//!
//! They are assembled here, for the kernel that runs: neither a build nor a machine needs a
//! compiler for them.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::assembly::{Assembly, Condition, Function, Label, Register, Width};
use super::types::{Types, TypesError};
use crate::sys::bpf::Line;

use Condition::{AtLeast, Equal, Greater, NotEqual};
use Function::{
    MapLookupElem, MapUpdateElem, MsgRedirectMap, RingbufOutput, SkLookupTcp, SkRelease,
    SkStorageGet, SkcToTcpSock,
};
use Register::{FP, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};

/// What a message costs besides its bytes: the kernel's own memory for a queued one, rounded up.
pub(super) const MESSAGE_COST: i32 = 1536;

// The fields of a lane, which is one direction: from an application to the socket of the proxy that
// leads to the other one. Programs and this process write them, each its own.

/// How many bytes of the sender the proxy has read and written itself. Only when that is all that
/// the sender ever sent over TCP may the next message go past the proxy.
pub(super) const RELAYED: Double = Double(0);
/// What [`COST`] may reach.
pub(super) const ALLOWED: Double = Double(1);
/// Bytes of what went past the proxy, and [`MESSAGE_COST`] for each message.
pub(super) const COST: Double = Double(2);
/// Bytes that went past the proxy.
pub(super) const BYTES: Double = Double(3);
/// The sequence number of the sender's first byte, once `watch` has run for it.
pub(super) const BASE: Word = Word(0);
/// Whether messages may go past the proxy at all.
pub(super) const IS_OPEN: Word = Word(1);
/// Whether somebody was asked to measure the queue.
pub(super) const IS_ASKED: Word = Word(2);
/// With less than this allowed, somebody is asked.
pub(super) const LOW: Word = Word(3);
/// How much may wait in the queue.
pub(super) const WINDOW: Word = Word(4);
/// Whether [`BASE`] is known.
pub(super) const HAS_BASE: Word = Word(5);
/// Which use of the lane this is. A socket keeps the number of its lane, and may still act on it,
/// when the lane serves another connection; then this differs.
pub(super) const GENERATION: Word = Word(6);

/// A field of eight bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Double(usize);

impl Double {
    /// The field of this lane.
    pub(super) fn of(self, lane: &Line) -> &AtomicU64 {
        &lane.doubles[self.0]
    }

    const fn at(self) -> i16 {
        (offset_of!(Line, doubles) + self.0 * 8) as i16
    }
}

/// A field of four bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word(usize);

impl Word {
    /// The field of this lane.
    pub(super) fn of(self, lane: &Line) -> &AtomicU32 {
        &lane.words[self.0]
    }

    const fn at(self) -> i16 {
        (offset_of!(Line, words) + self.0 * 4) as i16
    }
}

/// What `join` and `measure` return.
pub(super) mod said {
    /// Done; or the queue has room.
    pub(in super::super) const DONE: u32 = 0;
    /// The queue is still full.
    pub(in super::super) const FULL: u32 = 1;
    /// There is no such socket.
    pub(in super::super) const NO_SOCKET: u32 = 2;
    /// The socket is not established, has another protocol on top, or SO_ZEROCOPY.
    pub(in super::super) const UNSUITABLE: u32 = 3;
    /// Calls on the socket wait.
    pub(in super::super) const BLOCKING: u32 = 4;
}

/// `SK_PASS`: the message goes on over TCP, or where the program has sent it.
const PASS: i32 = 1;
/// `BPF_TCP_ESTABLISHED`.
const ESTABLISHED: i32 = 1;
/// `O_NONBLOCK`, of x86 and ARM.
const NONBLOCK: i32 = 0o4000;
/// `BPF_SK_STORAGE_GET_F_CREATE`.
const CREATE: i32 = 1;
/// What the kernel takes for an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Where `run`'s packets have the lane and behind it its generation, whether the addresses are
/// IPv6, and the addresses.
const AT_LANE: i32 = 16;
const AT_GENERATION: i32 = 20;
const AT_IS_V6: i32 = 24;
const AT_TUPLE: i32 = 28;
const V4_TUPLE_BYTES: i32 = 12;
const V6_TUPLE_BYTES: i32 = 36;
/// The packet of `join` and `measure`.
pub(super) const PACKET_BYTES: usize = 64;

// Fields of contexts (`include/uapi/linux/bpf.h`).
const MESSAGE_SIZE: i16 = 68;
const MESSAGE_SOCKET: i16 = 72;
const PACKET_START: i16 = 76;
const PACKET_END: i16 = 80;
const SOCKET_STATE: i16 = 72;

/// The packet by which `join` and `measure` learn what they are run for. `tuple`: the addresses and
/// ports of a segment that the socket would receive, in network order.
pub(super) fn packet(lane: u32, generation: u32, tuple: &[u8]) -> [u8; PACKET_BYTES] {
    const { assert!(AT_LANE as usize >= ETHERNET_BYTES) };
    const { assert!(AT_TUPLE as usize + V6_TUPLE_BYTES as usize == PACKET_BYTES) };
    let mut packet = [0; PACKET_BYTES];
    let mut put =
        |at: i32, bytes: &[u8]| packet[at as usize..][..bytes.len()].copy_from_slice(bytes);
    put(AT_LANE, &lane.to_ne_bytes());
    put(AT_GENERATION, &generation.to_ne_bytes());
    put(AT_IS_V6, &u32::from(tuple.len() == V6_TUPLE_BYTES as usize).to_ne_bytes());
    put(AT_TUPLE, tuple);
    packet
}

/// Where this kernel keeps what the programs read of a `tcp_sock`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    /// The sequence number after all that was sent, or waits to be.
    write_seq: i16,
    /// The sequence number after what has left.
    snd_nxt: i16,
    bytes_sent: i16,
    bytes_retrans: i16,
    /// Another protocol on top of TCP, such as TLS in the kernel.
    ulp: i16,
    /// How much memory the send queue holds.
    queued: i16,
    /// The `socket` of a process, its `file`, and whether calls on that wait.
    socket: i16,
    file: i16,
    file_flags: i16,
    /// The flags of a socket, and which of them SO_ZEROCOPY sets.
    flags: i16,
    zerocopy: i32,
}

impl Offsets {
    /// Finds them.
    pub(super) fn of(types: &Types<impl AsRef<[u8]>>) -> Result<Self, TypesError> {
        // A tcp_sock begins with an inet_connection_sock, that with an inet_sock, and so on.
        let connection = types.offset("tcp_sock", "inet_conn")?;
        let inet = connection + types.offset("inet_connection_sock", "icsk_inet")?;
        let sock = inet + types.offset("inet_sock", "sk")?;
        Ok(Self {
            write_seq: types.offset("tcp_sock", "write_seq")?,
            snd_nxt: types.offset("tcp_sock", "snd_nxt")?,
            bytes_sent: types.offset("tcp_sock", "bytes_sent")?,
            bytes_retrans: types.offset("tcp_sock", "bytes_retrans")?,
            ulp: connection + types.offset("inet_connection_sock", "icsk_ulp_ops")?,
            queued: sock + types.offset("sock", "sk_wmem_queued")?,
            socket: sock + types.offset("sock", "sk_socket")?,
            file: types.offset("socket", "file")?,
            file_flags: types.offset("file", "f_flags")?,
            flags: sock
                + types.offset("sock", "__sk_common")?
                + types.offset("sock_common", "skc_flags")?,
            zerocopy: 1i32
                .checked_shl(types.value("sock_flags", "SOCK_ZEROCOPY")?)
                .filter(|bit| *bit > 0)
                .ok_or(TypesError::Malformed)?,
        })
    }
}

/// Descriptors of the maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    /// The lane of a joined application's socket and its generation, beside the socket.
    pub(super) lane_of: i32,
    /// All [`Lane`]s.
    pub(super) lanes: i32,
    /// Joined applications' sockets.
    pub(super) senders: i32,
    /// Where each lane leads.
    pub(super) sinks: i32,
    /// Asks for `measure`.
    pub(super) bell: i32,
}

/// Runs for each message of a joined application.
pub(super) fn watch(maps: Maps, offsets: Offsets) -> Vec<u64> {
    let pass = Label(0);
    let mut it = Assembly::default();
    it.copy(R6, R1);
    it.load(Width::Double, R7, R6, MESSAGE_SOCKET);
    it.jump_if(R7, Equal, 0, pass);
    it.map(R1, maps.lane_of);
    it.copy(R2, R7);
    it.set(R3, 0);
    it.set(R4, 0);
    it.call(SkStorageGet);
    it.jump_if(R0, Equal, 0, pass);
    // Both at once: the lane in the lower half.
    it.load(Width::Double, R9, R0, 0);
    it.store(Width::Double, FP, -32, R9);
    lane(&mut it, maps, pass);
    // In this order, and nothing below is read before: it is written in the opposite one.
    it.load_ordered(Width::Word, R1, R8, IS_OPEN.at());
    it.jump_if(R1, Equal, 0, pass);
    it.load(Width::Word, R1, R8, GENERATION.at());
    it.load(Width::Double, R2, FP, -32);
    it.shift_right(R2, 32);
    it.jump_if_narrow(R1, NotEqual, R2, pass);
    it.load_ordered(Width::Double, R1, R8, RELAYED.at());
    it.store(Width::Double, FP, -24, R1);
    it.copy(R1, R7);
    it.call(SkcToTcpSock);
    it.jump_if(R0, Equal, 0, pass);
    // TLS in the kernel asks before it encrypts: what it would send is not what this is shown.
    it.load(Width::Double, R1, R0, offsets.ulp);
    it.jump_if(R1, NotEqual, 0, pass);
    base(&mut it, offsets, pass);
    // Has the proxy handed on all that went over TCP?
    it.load(Width::Word, R3, R0, offsets.write_seq);
    it.load(Width::Word, R4, R8, BASE.at());
    it.subtract_narrow(R3, R4);
    it.load(Width::Word, R4, FP, -24);
    it.jump_if_narrow(R3, NotEqual, R4, pass);
    // Is there room in the other socket's queue?
    it.load(Width::Word, R1, R6, MESSAGE_SIZE);
    it.load(Width::Double, R3, R8, COST.at());
    it.add_register(R3, R1);
    it.add(R3, MESSAGE_COST);
    it.store(Width::Double, FP, -16, R3);
    it.load(Width::Double, R4, R8, ALLOWED.at());
    it.jump_if_register(R3, Greater, R4, pass);
    it.copy(R1, R6);
    it.map(R2, maps.sinks);
    it.load(Width::Word, R3, FP, -4);
    it.set(R4, 0);
    it.call(MsgRedirectMap);
    it.jump_if(R0, NotEqual, PASS, pass);
    count(&mut it, pass);
    it.map(R1, maps.bell);
    it.address_on_stack(R2, 4);
    it.set(R3, 4);
    it.set(R4, 0);
    it.call(RingbufOutput);
    it.here(pass);
    it.set(R0, PASS);
    it.exit();
    it.finish()
}

/// Finds out the sequence number of the sender's first byte, once. The kernel holds the socket's
/// lock while `watch` runs, so nothing is sent meanwhile. `R0` is the `tcp_sock`.
fn base(it: &mut Assembly, offsets: Offsets, pass: Label) {
    let [known, found] = [Label(1), Label(2)];
    it.load(Width::Word, R1, R8, HAS_BASE.at());
    it.jump_if(R1, NotEqual, 0, known);
    // What was sent again counts twice, and not exactly: such a sender stays with the proxy.
    it.load(Width::Double, R1, R0, offsets.bytes_retrans);
    it.jump_if(R1, Equal, 0, found);
    it.set(R1, 0);
    it.store(Width::Word, R8, IS_OPEN.at(), R1);
    it.jump(pass);
    it.here(found);
    // What has left lies before snd_nxt.
    it.load(Width::Double, R1, R0, offsets.bytes_sent);
    it.load(Width::Word, R3, R0, offsets.snd_nxt);
    it.subtract(R3, R1);
    it.store(Width::Word, R8, BASE.at(), R3);
    it.set(R1, 1);
    it.store(Width::Word, R8, HAS_BASE.at(), R1);
    it.here(known);
}

/// Counts a message that goes past the proxy, and goes on only when somebody is to be asked.
fn count(it: &mut Assembly, done: Label) {
    it.load(Width::Double, R3, FP, -16);
    it.store(Width::Double, R8, COST.at(), R3);
    it.load(Width::Word, R1, R6, MESSAGE_SIZE);
    it.load(Width::Double, R2, R8, BYTES.at());
    it.add_register(R2, R1);
    it.store(Width::Double, R8, BYTES.at(), R2);
    it.load(Width::Double, R4, R8, ALLOWED.at());
    it.load(Width::Word, R5, R8, LOW.at());
    it.add_register(R3, R5);
    it.jump_if_register(R4, AtLeast, R3, done);
    it.load(Width::Word, R1, R8, IS_ASKED.at());
    it.jump_if(R1, NotEqual, 0, done);
    it.set(R1, 1);
    it.store(Width::Word, R8, IS_ASKED.at(), R1);
}

/// `R8 = the lane whose number is in the lower half of R9`, which is left on the stack too.
fn lane(it: &mut Assembly, maps: Maps, missing: Label) {
    it.store(Width::Word, FP, -4, R9);
    it.map(R1, maps.lanes);
    it.address_on_stack(R2, 4);
    it.call(MapLookupElem);
    it.jump_if(R0, Equal, 0, missing);
    it.copy(R8, R0);
}

/// `R9 = the lane of the packet`, `R3 = its start`.
fn open_packet(it: &mut Assembly, too_short: Label) {
    it.copy(R6, R1);
    it.load(Width::Word, R3, R6, PACKET_START);
    it.load(Width::Word, R4, R6, PACKET_END);
    it.copy(R5, R3);
    it.add(R5, PACKET_BYTES as i32);
    it.jump_if_register(R5, Greater, R4, too_short);
    it.load(Width::Word, R9, R3, AT_LANE as i16);
}

/// `R0 = result`, after the socket in `R7` was given back.
fn give_back(it: &mut Assembly, result: u32) {
    it.copy(R1, R7);
    it.call(SkRelease);
    result_is(it, result);
}

fn result_is(it: &mut Assembly, result: u32) {
    it.set(R0, i32::try_from(result).expect("a small number"));
    it.exit();
}

/// Finds the application's socket in the namespace that this is run in.
pub(super) fn join(maps: Maps, offsets: Offsets) -> Vec<u64> {
    let [no_socket, unsuitable, is_v6, found, blocking] = [0, 1, 2, 3, 4].map(Label);
    let mut it = Assembly::default();
    open_packet(&mut it, no_socket);
    it.load(Width::Double, R1, R3, AT_LANE as i16);
    it.store(Width::Double, FP, -16, R1);
    it.load(Width::Word, R8, R3, AT_IS_V6 as i16);
    it.copy(R2, R3);
    it.add(R2, AT_TUPLE);
    it.copy(R1, R6);
    it.set(R4, -1);
    it.set(R5, 0);
    it.jump_if(R8, NotEqual, 0, is_v6);
    it.set(R3, V4_TUPLE_BYTES);
    it.call(SkLookupTcp);
    it.jump_if(R0, NotEqual, 0, found);
    result_is(&mut it, said::NO_SOCKET);
    it.here(is_v6);
    it.set(R3, V6_TUPLE_BYTES);
    it.call(SkLookupTcp);
    it.jump_if(R0, Equal, 0, no_socket);
    it.here(found);
    it.copy(R7, R0);
    it.load(Width::Word, R1, R7, SOCKET_STATE);
    it.jump_if(R1, NotEqual, ESTABLISHED, unsuitable);
    it.copy(R1, R7);
    it.call(SkcToTcpSock);
    it.jump_if(R0, Equal, 0, unsuitable);
    it.load(Width::Double, R1, R0, offsets.ulp);
    it.jump_if(R1, NotEqual, 0, unsuitable);
    // The kernel would not say when the memory of a MSG_ZEROCOPY may be used again.
    it.load(Width::Double, R1, R0, offsets.flags);
    it.jump_if_bits(R1, offsets.zerocopy, unsuitable);
    // A joined socket that waits for bytes returns EAGAIN whenever it is woken for something else
    // (tcp_bpf_recvmsg). A program that does not wait asks again; others would not expect it.
    it.load(Width::Double, R1, R0, offsets.socket);
    it.load(Width::Double, R1, R1, offsets.file);
    it.load(Width::Word, R1, R1, offsets.file_flags);
    it.jump_unless_bits(R1, NONBLOCK, blocking);
    it.store(Width::Word, FP, -4, R9);
    it.map(R1, maps.lane_of);
    it.copy(R2, R7);
    it.address_on_stack(R3, 16);
    it.set(R4, CREATE);
    it.call(SkStorageGet);
    it.jump_if(R0, Equal, 0, unsuitable);
    it.load(Width::Double, R1, FP, -16);
    it.store(Width::Double, R0, 0, R1);
    it.map(R1, maps.senders);
    it.address_on_stack(R2, 4);
    it.copy(R3, R7);
    it.set(R4, 0);
    it.call(MapUpdateElem);
    it.jump_if(R0, NotEqual, 0, unsuitable);
    give_back(&mut it, said::DONE);
    it.here(blocking);
    give_back(&mut it, said::BLOCKING);
    it.here(unsuitable);
    give_back(&mut it, said::UNSUITABLE);
    it.here(no_socket);
    result_is(&mut it, said::NO_SOCKET);
    it.finish()
}

/// Allows as much more as there is room in the queue.
pub(super) fn measure(maps: Maps, offsets: Offsets) -> Vec<u64> {
    let [no_socket, unsuitable, is_full, some] = [0, 1, 2, 3].map(Label);
    let mut it = Assembly::default();
    open_packet(&mut it, no_socket);
    lane(&mut it, maps, no_socket);
    it.map(R1, maps.sinks);
    it.address_on_stack(R2, 4);
    it.call(MapLookupElem);
    it.jump_if(R0, Equal, 0, no_socket);
    it.copy(R7, R0);
    it.copy(R1, R7);
    it.call(SkcToTcpSock);
    it.jump_if(R0, Equal, 0, unsuitable);
    // In this order: what is sent meanwhile counts against the new room.
    it.load(Width::Double, R2, R8, COST.at());
    it.load(Width::Word, R3, R0, offsets.queued);
    it.load(Width::Word, R4, R8, WINDOW.at());
    it.jump_if_register(R4, Greater, R3, some);
    it.copy(R3, R4);
    it.here(some);
    it.subtract(R4, R3);
    it.add_register(R2, R4);
    it.store(Width::Double, R8, ALLOWED.at(), R2);
    it.load(Width::Word, R5, R8, LOW.at());
    it.jump_if_register(R5, Greater, R4, is_full);
    it.set(R1, 0);
    it.store(Width::Word, R8, IS_ASKED.at(), R1);
    give_back(&mut it, said::DONE);
    it.here(is_full);
    give_back(&mut it, said::FULL);
    it.here(unsuitable);
    give_back(&mut it, said::UNSUITABLE);
    it.here(no_socket);
    result_is(&mut it, said::NO_SOCKET);
    it.finish()
}
