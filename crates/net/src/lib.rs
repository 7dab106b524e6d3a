//! Moves bytes: sockets, namespaces, netlink, HBONE, drain and gRPC transport
