//! Pod enrolment (ZDS): how a node agent hands pods to a node proxy.
//!
//! One protobuf message per SOCK_SEQPACKET packet. The proxy connects and says hello; the agent
//! then sends one request at a time and waits for its answer: first a snapshot of all pods, then
//! every change. A pod comes with one file descriptor, its network namespace, attached to the
//! packet. [`proxy`] and [`agent`] are the two ends; neither touches a socket, a descriptor or a
//! clock.

use std::time::Duration;

use prost::Message;

use ambit_model::Text;

use crate::proto::istio::workload::zds as proto;

pub mod agent;
pub mod proxy;

/// Size of both ends' buffers; a longer packet would be cut off.
pub const MAX_PACKET_BYTES: usize = 1024;
/// How long an agent waits for a hello or an answer before it gives the connection up.
pub const REPLY_DEADLINE: Duration = Duration::from_secs(5);
/// How many connections an agent accepts in a second.
pub const ACCEPTS_PER_SECOND: u32 = 5;
/// Longest reason that fits into an answer beside its framing.
const MAX_REASON_BYTES: usize = MAX_PACKET_BYTES - 16;

/// A pod as the agent knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Kubernetes' uid of the pod.
    pub uid: Text,
    /// Its name.
    pub name: Text,
    /// Its namespace.
    pub namespace: Text,
    /// Its service account.
    pub service_account: Text,
}

/// What an agent asks of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Serve this pod. Its namespace's descriptor comes along.
    Add(Pod),
    /// Go on serving this pod, whose namespace the agent has lost. Within the snapshot only.
    Keep(Text),
    /// Stop serving this pod.
    Del(Text),
    /// That were all: what was not named is gone.
    SnapshotSent,
}

/// A malformed or unexpected packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It was cut off, or would be.
    #[error("packet is longer than {MAX_PACKET_BYTES} bytes")]
    TooLong,
    /// It is not protobuf of its type.
    #[error("packet cannot be decoded")]
    Undecodable(#[source] prost::DecodeError),
    /// It is a message without content, or with content of a later version.
    #[error("packet carries no known payload")]
    Empty,
    /// The proxy speaks another version of the protocol.
    #[error("proxy speaks version {0} of the protocol; this agent speaks version 1")]
    Version(i32),
    /// A required field is absent.
    #[error("packet lacks {0}")]
    Missing(&'static str),
}

/// The proxy's first packet.
pub(crate) fn encode_hello() -> Vec<u8> {
    proto::ZdsHello { version: proto::Version::V1.into() }.encode_to_vec()
}

pub(crate) fn decode_hello(bytes: &[u8]) -> Result<(), PacketError> {
    match decode::<proto::ZdsHello>(bytes)?.version {
        version if version == proto::Version::V1 as i32 => Ok(()),
        version => Err(PacketError::Version(version)),
    }
}

/// The agent's packet for one request.
pub fn encode_request(request: &Request) -> Result<Vec<u8>, PacketError> {
    use proto::workload_request::Payload;
    let payload = match request {
        Request::Add(pod) => Payload::Add(proto::AddWorkload {
            uid: pod.uid.to_string(),
            workload_info: Some(proto::WorkloadInfo {
                name: pod.name.to_string(),
                namespace: pod.namespace.to_string(),
                service_account: pod.service_account.to_string(),
            }),
        }),
        Request::Keep(uid) => Payload::Keep(proto::KeepWorkload { uid: uid.to_string() }),
        Request::Del(uid) => Payload::Del(proto::DelWorkload { uid: uid.to_string() }),
        Request::SnapshotSent => Payload::SnapshotSent(proto::SnapshotSent {}),
    };
    let bytes = proto::WorkloadRequest { payload: Some(payload) }.encode_to_vec();
    if bytes.len() > MAX_PACKET_BYTES { Err(PacketError::TooLong) } else { Ok(bytes) }
}

/// The request in a packet.
pub fn decode_request(bytes: &[u8]) -> Result<Request, PacketError> {
    use proto::workload_request::Payload;
    let payload = decode::<proto::WorkloadRequest>(bytes)?.payload.ok_or(PacketError::Empty)?;
    Ok(match payload {
        Payload::Add(add) => {
            let info = add.workload_info.ok_or(PacketError::Missing("workload_info"))?;
            Request::Add(Pod {
                uid: required(add.uid, "uid")?,
                name: required(info.name, "workload_info.name")?,
                namespace: required(info.namespace, "workload_info.namespace")?,
                service_account: required(info.service_account, "workload_info.service_account")?,
            })
        }
        Payload::Keep(keep) => Request::Keep(required(keep.uid, "uid")?),
        Payload::Del(del) => Request::Del(required(del.uid, "uid")?),
        Payload::SnapshotSent(_) => Request::SnapshotSent,
    })
}

/// The proxy's answer to one request. A reason that does not fit is cut off.
pub(crate) fn encode_answer(outcome: Result<(), &str>) -> Vec<u8> {
    let reason = outcome.err().map(|reason| if reason.is_empty() { "refused" } else { reason });
    let error = bounded(reason.unwrap_or_default());
    let payload = proto::workload_response::Payload::Ack(proto::Ack { error });
    proto::WorkloadResponse { payload: Some(payload) }.encode_to_vec()
}

/// What a proxy answered: done, or the reason why not.
pub(crate) fn decode_answer(bytes: &[u8]) -> Result<Result<(), String>, PacketError> {
    match decode::<proto::WorkloadResponse>(bytes)?.payload.ok_or(PacketError::Empty)? {
        proto::workload_response::Payload::Ack(ack) if ack.error.is_empty() => Ok(Ok(())),
        proto::workload_response::Payload::Ack(ack) => Ok(Err(ack.error)),
    }
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, PacketError> {
    if bytes.len() > MAX_PACKET_BYTES {
        return Err(PacketError::TooLong);
    }
    M::decode(bytes).map_err(PacketError::Undecodable)
}

fn required(value: String, field: &'static str) -> Result<Text, PacketError> {
    if value.is_empty() { Err(PacketError::Missing(field)) } else { Ok(value.into()) }
}

fn bounded(reason: &str) -> String {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn pod(uid: &str) -> Pod {
        Pod {
            uid: uid.into(),
            name: "p".into(),
            namespace: "n".into(),
            service_account: "s".into(),
        }
    }

    fn check(request: Request) {
        let bytes = encode_request(&request).unwrap();
        assert_eq!(decode_request(&bytes), Ok(request));
    }

    #[test]
    fn requests_survive() {
        check(Request::Add(pod("1")));
        check(Request::Keep("1".into()));
        check(Request::Del("1".into()));
        check(Request::SnapshotSent);
    }

    #[test]
    fn field_numbers_are_istios() {
        let bytes = |request| encode_request(&request).unwrap();
        assert_eq!(encode_hello(), [8, 1]);
        assert_eq!(bytes(Request::SnapshotSent), [3 << 3 | 2, 0]);
        assert_eq!(bytes(Request::Del("u".into())), [2 << 3 | 2, 3, 2 << 3 | 2, 1, b'u']);
        assert_eq!(bytes(Request::Keep("u".into())), [5 << 3 | 2, 3, 1 << 3 | 2, 1, b'u']);
        assert_eq!(encode_answer(Ok(())), [1 << 3 | 2, 0]);
    }

    #[test]
    fn packets_are_bounded() {
        let long = "n".repeat(MAX_PACKET_BYTES);
        let request = Request::Del(long.as_str().into());
        assert_eq!(encode_request(&request), Err(PacketError::TooLong));
        assert_eq!(decode_request(&[0; MAX_PACKET_BYTES + 1]), Err(PacketError::TooLong));
        let answer = encode_answer(Err(&"é".repeat(MAX_PACKET_BYTES)));
        assert!(answer.len() <= MAX_PACKET_BYTES, "{}", answer.len());
        assert!(decode_answer(&answer).unwrap().is_err());
    }

    #[test]
    fn wrong_packets_are_named() {
        let check = |bytes: &[u8], expected: PacketError| {
            assert_eq!(decode_request(bytes), Err(expected));
        };
        check(&[], PacketError::Empty);
        check(&[3 << 3 | 2, 9], decode_request(&[3 << 3 | 2, 9]).unwrap_err());
        check(&[1 << 3 | 2, 0], PacketError::Missing("workload_info"));
        check(&[2 << 3 | 2, 0], PacketError::Missing("uid"));
        assert_eq!(decode_hello(&[8, 2]), Err(PacketError::Version(2)));
        assert_eq!(decode_hello(&[]), Err(PacketError::Version(0)));
        assert_eq!(decode_answer(&encode_answer(Err(""))), Ok(Err("refused".into())));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            let _ = decode_request(&bytes);
            let _ = decode_hello(&bytes);
            let _ = decode_answer(&bytes);
        }
    }
}
