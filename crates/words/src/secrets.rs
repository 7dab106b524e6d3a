//! How Secrets and ConfigMaps with certificates are written: their types and keys.

/// The type of Secrets with a certificate and its key.
pub const SECRET_TYPE: &str = "kubernetes.io/tls";
/// Where such a Secret has the certificate, and those that vouch for it.
pub const SECRET_CHAIN: &str = "tls.crt";
/// Where it has the private key.
pub const SECRET_KEY: &str = "tls.key";
/// Where a ConfigMap has roots.
pub const ROOTS_KEY: &str = "ca.crt";
/// The type of the Secret of an account at a directory that speaks ACME.
pub const ACCOUNT_TYPE: &str = "ambit.io/acme-account";
/// Where it has the account.
pub const ACCOUNT_KEY: &str = "account.json";
