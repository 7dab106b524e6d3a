//! Rotation, failures and revocation, in simulated time with a scripted authority.
