//! The messages as generated from `proto/`, one module per package.
//!
//! Nothing here judges a value: [`crate::convert`] does. Never base a decision on these types.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used)]

use bytes::Bytes;

/// `google.protobuf.Any`, with a value that shares the buffer it was received in.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Any {
    /// `type.googleapis.com/<message name>`.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// Workload discovery, policies, pod enrolment and certificates, as Istio names them.
pub mod istio {
    /// `istio.security`: layer-4 authorization.
    pub mod security {
        tonic::include_proto!("istio.security");
    }
    /// `istio.workload`: the mesh's address book.
    pub mod workload {
        tonic::include_proto!("istio.workload");
        /// `istio.workload.zds`: node agent to node proxy.
        pub mod zds {
            tonic::include_proto!("istio.workload.zds");
        }
    }
    /// `istio.v1`.
    pub mod v1 {
        /// `istio.v1.auth`: the certificate authority.
        pub mod auth {
            tonic::include_proto!("istio.v1.auth");
        }
    }
}

/// Envoy's discovery transport.
pub mod envoy {
    /// `envoy.config`.
    pub mod config {
        /// `envoy.config.core`.
        pub mod core {
            /// `envoy.config.core.v3`: who is asking.
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    /// `envoy.service`.
    pub mod service {
        /// `envoy.service.auth`.
        pub mod auth {
            /// `envoy.service.auth.v3`: who may do what, asked of a service.
            pub mod v3 {
                tonic::include_proto!("envoy.service.auth.v3");
            }
        }
        /// `envoy.service.discovery`.
        pub mod discovery {
            /// `envoy.service.discovery.v3`: the discovery service itself.
            pub mod v3 {
                tonic::include_proto!("envoy.service.discovery.v3");
            }
        }
        /// `envoy.service.ratelimit`.
        pub mod ratelimit {
            /// `envoy.service.ratelimit.v3`: how many may come, asked of a service.
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }
}

/// `google.rpc`.
pub mod google {
    /// `google.rpc`: the status that carries a refusal.
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// The parts of the Kubernetes API server's own encoding that are read.
pub mod kubernetes {
    tonic::include_proto!("kubernetes");
}

/// This project's own messages.
pub mod ambit {
    /// `ambit.http`: what a waypoint knows of services, and policies that read requests.
    pub mod http {
        tonic::include_proto!("ambit.http");

        impl std::fmt::Debug for Certificate {
            /// Never the key.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "Certificate({}/{}, redacted)", self.gateway, self.secret)
            }
        }
    }
    /// `ambit.snapshot`: the last accepted view, as the supervisor keeps it.
    pub mod snapshot {
        tonic::include_proto!("ambit.snapshot");
    }
}

/// What is sent to a collector of OpenTelemetry.
pub mod opentelemetry {
    tonic::include_proto!("opentelemetry");
}
