//! Queries through real sockets.
