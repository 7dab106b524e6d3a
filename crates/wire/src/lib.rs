//! Wire formats: protobuf messages, conversions and protocol state machines without I/O
pub mod proto;
