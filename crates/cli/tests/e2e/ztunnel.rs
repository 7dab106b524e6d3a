//! A real ztunnel in a proxy's place: under Ambit's control plane and agent, and opposite Ambit's proxy.
