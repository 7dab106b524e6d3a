//! How much memory the host has.

use std::fs;
use std::sync::OnceLock;

/// What is taken for it where the kernel does not say.
const UNKNOWN_BYTES: u64 = 2 << 30;

/// All memory of the host.
pub(super) fn total_bytes() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        read(&text).unwrap_or(UNKNOWN_BYTES)
    })
}

fn read(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_there_is() {
        assert_eq!(read("MemTotal:       24683520 kB\nMemFree: 1 kB\n"), Some(24_683_520 << 10));
        assert_eq!(read("MemFree: 1 kB\n"), None);
        assert_eq!(read("MemTotal: x kB\n"), None);
        let found = fs::read_to_string("/proc/meminfo").unwrap();
        assert_eq!(read(&found), Some(total_bytes()));
    }
}
