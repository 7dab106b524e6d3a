//! How large the proofs are: full, or small enough for every change.

/// Whether the proofs run at full size.
pub(crate) fn is_full() -> bool {
    match std::env::var("AMBIT_E2E_FULL").as_deref() {
        Err(std::env::VarError::NotPresent) | Ok("" | "0") => false,
        Ok("1") => true,
        other => panic!("AMBIT_E2E_FULL is {other:?}; set it to 1, or not at all"),
    }
}

/// The one or the other.
pub(crate) fn sized<T>(full: T, usual: T) -> T {
    if is_full() { full } else { usual }
}
