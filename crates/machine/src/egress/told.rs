//! Which addresses the log has named as refused.
//!
//! A program that tries a refused address again and again must not fill the log, so each address
//! is named once, and so many of them at most.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Refused addresses that the log names, each once.
const TOLD_MAX: usize = 256;

/// The addresses that were named.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<HashSet<IpAddr>>);

impl Told {
    /// Whether the log should name this address. It should not again.
    pub(super) fn is_new(&self, ip: IpAddr) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < TOLD_MAX && told.insert(ip)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_is_named_once_and_so_many_at_most() {
        let told = Told::default();
        let addresses = || (0..1000).map(|number| IpAddr::from(Ipv4Addr::from_bits(number)));
        assert!(told.is_new(Ipv4Addr::from_bits(0).into()));
        let named = addresses().chain(addresses()).filter(|ip| told.is_new(*ip)).count();
        assert_eq!(named, TOLD_MAX - 1);
    }
}
