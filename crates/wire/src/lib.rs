//! Wire formats: protobuf messages, conversions and protocol state machines without I/O
pub mod convert;
pub mod proto;
pub mod xds;
