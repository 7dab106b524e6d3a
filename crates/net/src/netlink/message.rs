//! Netlink messages.
