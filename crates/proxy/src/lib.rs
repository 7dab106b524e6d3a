//! Role: the node proxy, layer 4.
//!
//! `ambit proxy` is two processes. The *supervisor* talks to the node agent, opens listeners in the
//! pods' network namespaces and keeps what must survive: listeners, the view as it came off the
//! wire, certificates and keys. The *worker* moves the bytes: one control thread, one DNS thread
//! and N data-plane threads. A dead worker is replaced in milliseconds and goes on where it was.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | flags and Istio's environment variables, as written and as used |
//! | `supervisor`, `handover`, `snapshot` | the process that stays, and what it hands to workers |
//! | `worker`, `shared` | the process that moves bytes, and what its threads share |
//! | `views`, `certificates` | clients of the control plane: xDS and the certificate authority |
//! | `dns` | names of the mesh, answered inside the pod |
//! | `admin`, `metrics`, `logging` | what an operator sees |
//! | `pods`, `dataplane` and its modules | connections, from accept to record |
//!
//! It never decides a plan or a permission (`ambit_model` does), and never talks to Kubernetes.

mod certificates;
mod choice;
pub mod config;
mod connections;
mod control_plane;
mod dataplane;
mod handover;
mod inbound;
mod judgement;
mod link;
mod local;
mod metrics;
mod outbound;
mod plaintext;
mod pods;
mod record;
mod shared;
mod snapshot;
mod supervisor;
mod tunnel;
mod views;

pub use config::Args;
