//! One netlink socket: requests, acknowledgements, dumps and transactions, synchronously.
//!
//! The kernel answers before `send` returns, so no call waits for long; a timeout covers the case
//! that it does not answer at all. Answers to earlier requests that failed half-way are recognised
//! by their number and dropped.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;

use super::NetlinkError;
use super::message::{self, Answer, HEADER_BYTES, Request};
use crate::sys::{self, packet_socket, socket_option};

/// Larger than what the kernel puts into one datagram of a dump.
const RECEIVE_BUFFER_BYTES: usize = 128 * 1024;

/// Requests up to here fit the default send buffer.
const DEFAULT_SEND_BYTES: usize = 64 * 1024;

/// No kernel takes that long; beyond it something is wrong and the caller should hear.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a dump is begun again because the content changed meanwhile.
const MAX_DUMP_ATTEMPTS: usize = 20;

/// `NLMSGERR_ATTR_MSG`: the kernel's explanation of an error.
const EXPLANATION: u16 = 1;

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;

/// A socket of one netlink protocol in one network namespace.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// In the calling thread's namespace.
    pub(crate) fn open(protocol: i32) -> Result<Self, NetlinkError> {
        let open = || -> io::Result<Socket> {
            let domain = Domain::from(libc::AF_NETLINK);
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(protocol)))?;
            socket_option::netlink_explain_errors(&socket)?;
            socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            Ok(socket)
        };
        let socket = open().map_err(NetlinkError::Open)?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; RECEIVE_BUFFER_BYTES] })
    }

    /// Subscribes to a multicast group and gives up the socket, which is for receiving from then
    /// on.
    fn into_subscription(self, group: u32) -> Result<OwnedFd, NetlinkError> {
        let subscribe = || -> io::Result<()> {
            socket_option::netlink_join(&self.socket, group)?;
            self.socket.set_nonblocking(true)
        };
        subscribe().map_err(NetlinkError::Open)?;
        Ok(self.socket.into())
    }

    /// Sends a request and collects everything that the kernel says before it acknowledges or
    /// refuses.
    pub(crate) fn request(
        &mut self,
        mut request: Request,
        operation: &str,
    ) -> Result<Vec<Answer>, NetlinkError> {
        request.add_flags(libc::NLM_F_ACK);
        let sequence = self.next_sequence();
        self.send(&request.finish(sequence), operation)?;
        self.collect(sequence, operation).map(|(answers, _)| answers)
    }

    /// Lists what the request asks for, as of one moment.
    pub(crate) fn dump(
        &mut self,
        mut request: Request,
        operation: &str,
    ) -> Result<Vec<Answer>, NetlinkError> {
        request.add_flags(libc::NLM_F_DUMP);
        for _ in 0..MAX_DUMP_ATTEMPTS {
            let sequence = self.next_sequence();
            self.send(&request.clone().finish(sequence), operation)?;
            let (answers, interrupted) = self.collect(sequence, operation)?;
            if !interrupted {
                return Ok(answers);
            }
        }
        Err(malformed(operation, "the list changed each time while it was read"))
    }

    /// Sends several requests as one datagram, which the kernel applies as a whole or not at all.
    ///
    /// `describe` names the request (by position) that the kernel refused, for the error.
    pub(crate) fn transaction(
        &mut self,
        mut requests: Vec<Request>,
        describe: impl Fn(Option<usize>) -> String,
    ) -> Result<(), NetlinkError> {
        // The last message ends the batch and is never acknowledged; the one before acknowledges
        // all.
        let acknowledged = requests.len().checked_sub(2).expect("a batch has a begin and an end");
        requests[acknowledged].add_flags(libc::NLM_F_ACK);
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        for request in requests {
            let sequence = self.next_sequence();
            datagram.extend(request.finish(sequence));
        }
        self.send(&datagram, &describe(None))?;
        loop {
            for answer in self.receive(&describe(None))? {
                let position = answer.sequence.wrapping_sub(first) as usize;
                if answer.kind != NLMSG_ERROR || position > acknowledged {
                    continue;
                }
                refusal(&answer).map_or(Ok(()), |(source, explanation)| {
                    let operation = with_explanation(&describe(Some(position)), explanation);
                    Err(NetlinkError::Refused { operation, source })
                })?;
                if position == acknowledged {
                    return Ok(());
                }
            }
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&mut self, datagram: &[u8], operation: &str) -> Result<(), NetlinkError> {
        let failed = |source| NetlinkError::Refused { operation: operation.to_owned(), source };
        if datagram.len() > DEFAULT_SEND_BYTES {
            let size = i32::try_from(datagram.len() * 2)
                .map_err(|_| failed(io::Error::from_raw_os_error(libc::EMSGSIZE)))?;
            socket_option::grow_send_buffer(&self.socket, size).map_err(failed)?;
        }
        self.socket.send(datagram).map(drop).map_err(failed)
    }

    /// Everything up to the acknowledgement or the end of the dump, and whether the dump was torn.
    fn collect(
        &mut self,
        sequence: u32,
        operation: &str,
    ) -> Result<(Vec<Answer>, bool), NetlinkError> {
        let mut collected = Vec::new();
        let mut interrupted = false;
        loop {
            for answer in self.receive(operation)? {
                if answer.sequence != sequence {
                    continue;
                }
                interrupted |= answer.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match answer.kind {
                    NLMSG_ERROR | NLMSG_DONE => match refusal(&answer) {
                        None => return Ok((collected, interrupted)),
                        Some((source, explanation)) => {
                            let operation = with_explanation(operation, explanation);
                            return Err(NetlinkError::Refused { operation, source });
                        }
                    },
                    _ => collected.push(answer),
                }
            }
        }
    }

    fn receive(&mut self, operation: &str) -> Result<Vec<Answer>, NetlinkError> {
        loop {
            match packet_socket::receive(&self.socket, &mut self.buffer) {
                Ok(length) => {
                    let datagram = self.buffer.get(..length);
                    let datagram =
                        datagram.ok_or_else(|| malformed(operation, "it is too long"))?;
                    return Ok(message::answers(datagram));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(NetlinkError::Refused { operation: operation.to_owned(), source });
                }
            }
        }
    }
}

/// The error in an acknowledgement, if it is one, with the kernel's explanation.
fn refusal(answer: &Answer) -> Option<(io::Error, Option<String>)> {
    let code = message::read_u32(&answer.payload).cast_signed();
    if code == 0 {
        return None;
    }
    let explanation = (answer.flags & libc::NLM_F_ACK_TLVS as u16 != 0)
        .then(|| answer.payload.get(4 + HEADER_BYTES..))
        .flatten()
        .and_then(|attributes| message::find(attributes, EXPLANATION))
        .map(message::read_text);
    Some((io::Error::from_raw_os_error(-code), explanation))
}

fn with_explanation(operation: &str, explanation: Option<String>) -> String {
    match explanation {
        Some(text) => format!("{operation} ({text})"),
        None => operation.to_owned(),
    }
}

/// The error for an answer that makes no sense.
pub(crate) fn malformed(operation: &str, reason: &'static str) -> NetlinkError {
    NetlinkError::Malformed { operation: operation.to_owned(), reason }
}

/// Turns "there was nothing to delete" into `false`.
pub(crate) fn deleted<T>(
    result: Result<T, NetlinkError>,
    absent: &[i32],
) -> Result<bool, NetlinkError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.errno().is_some_and(|errno| absent.contains(&errno)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reports changes in a namespace, whichever process makes them.
#[derive(Debug)]
pub(crate) struct Subscription(AsyncFd<OwnedFd>);

impl Subscription {
    /// To a multicast group, in the calling thread's namespace. Needs a tokio runtime.
    pub(crate) fn open(protocol: i32, group: u32) -> Result<Self, NetlinkError> {
        let socket = NetlinkSocket::open(protocol)?.into_subscription(group)?;
        sys::watch(socket).map(Self).map_err(NetlinkError::Open)
    }

    /// Waits for the next change; several at once count as one. Cancel safe.
    pub(crate) async fn changed(&mut self, operation: &'static str) -> Result<(), NetlinkError> {
        let failed = |source| NetlinkError::Refused { operation: operation.to_owned(), source };
        loop {
            let mut ready = self.0.readable().await.map_err(failed)?;
            if take_all(self.0.get_ref()).map_err(failed)? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

/// Empties the queue; whether there was anything in it.
fn take_all(socket: &OwnedFd) -> io::Result<bool> {
    let mut taken = false;
    loop {
        // The content does not matter, so the kernel may cut it.
        match packet_socket::receive(socket, &mut [0; 64]) {
            Ok(_) => taken = true,
            // More changes than the queue holds are changes, too.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => taken = true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
            Err(error) => return Err(error),
        }
    }
}
