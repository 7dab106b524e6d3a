//! What process 1 and the process on the host say to each other: one packet a question, one packet
//! an answer.
//!
//! A question is a number, what it is, and its content; an answer has the same number, an error or
//! 0, and its content. The number pairs them: answers come in any order. Numbers are big-endian.

use std::net::SocketAddr;

/// Longest DNS query.
pub(crate) const QUERY_SIZE_MAX_BYTES: usize = 4096;
/// Longest DNS message, as TCP can frame it.
pub(crate) const MESSAGE_SIZE_MAX_BYTES: usize = u16::MAX as usize;
/// Longest packet.
pub(super) const PACKET_SIZE_MAX_BYTES: usize = MESSAGE_SIZE_MAX_BYTES + 12;
/// Connections of pods that are being opened at a time.
pub(super) const DIALS_MAX: usize = 256;
/// The same of a proxy with control. It has two, and tries each address of control for 3 s, while
/// one that nobody answers is tried for 10 s here.
pub(super) const CONTROL_DIALS_MAX: usize = 32;
/// Queries that are under way at a time.
pub(super) const QUERIES_MAX: usize = 256;

const DIAL: u8 = 1;
const RESOLVE: u8 = 2;

/// What process 1 asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// A connection to this address.
    Dial(SocketAddr),
    /// The answer to this DNS query.
    Resolve(Vec<u8>),
}

/// What the process on the host answers; a connection comes along as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The question's number.
    pub(super) number: u64,
    /// The system's error number, 0 for success.
    pub(super) errno: i32,
    /// A DNS message.
    pub(super) content: Vec<u8>,
}

impl Question {
    pub(super) fn write(&self, number: u64) -> Vec<u8> {
        let address;
        let (kind, content) = match self {
            Self::Dial(to) => {
                address = to.to_string();
                (DIAL, address.as_bytes())
            }
            Self::Resolve(query) => (RESOLVE, query.as_slice()),
        };
        [&number.to_be_bytes()[..], &[kind], content].concat()
    }

    /// `None` if it is no question.
    pub(super) fn read(packet: &[u8]) -> Option<(u64, Self)> {
        let (number, rest) = packet.split_first_chunk()?;
        let question = match rest.split_first()? {
            (&DIAL, address) => Self::Dial(std::str::from_utf8(address).ok()?.parse().ok()?),
            (&RESOLVE, query) if query.len() <= QUERY_SIZE_MAX_BYTES => {
                Self::Resolve(query.to_owned())
            }
            _ => return None,
        };
        Some((u64::from_be_bytes(*number), question))
    }
}

impl Answer {
    pub(super) fn write(&self) -> Vec<u8> {
        let Self { number, errno, content } = self;
        [&number.to_be_bytes()[..], &errno.to_be_bytes(), content].concat()
    }

    /// `None` if it is no answer.
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let (number, rest) = packet.split_first_chunk()?;
        let (errno, content) = rest.split_first_chunk()?;
        let (number, errno) = (u64::from_be_bytes(*number), i32::from_be_bytes(*errno));
        Some(Self { number, errno, content: content.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for question in [
            Question::Dial("192.0.2.1:80".parse().unwrap()),
            Question::Dial("[2001:db8::1]:443".parse().unwrap()),
            Question::Resolve(vec![7; QUERY_SIZE_MAX_BYTES]),
        ] {
            assert_eq!(Question::read(&question.write(9)), Some((9, question)));
        }
        let content = vec![7; MESSAGE_SIZE_MAX_BYTES];
        let answer = Answer { number: u64::MAX, errno: -1, content };
        let packet = answer.write();
        assert_eq!(packet.len(), PACKET_SIZE_MAX_BYTES);
        assert_eq!(Answer::read(&packet), Some(answer));
    }

    #[test]
    fn what_is_no_question_is_not_read() {
        let number = [0; 8];
        for rest in [
            &b""[..],
            b"\x00",
            b"\x01",
            b"\x01localhost:80",
            b"\x01192.0.2.1",
            b"\x01\xff",
            b"\x03",
            &[&[RESOLVE][..], &[7; QUERY_SIZE_MAX_BYTES + 1]].concat(),
        ] {
            assert_eq!(Question::read(&[&number, rest].concat()), None, "{rest:?}");
        }
        assert_eq!(Question::read(&[0; 7]), None);
        assert_eq!(Answer::read(&[0; 11]), None);
    }
}
