//! Keys, certificates, SPIFFE verification, rotation and revocation; the only crate that names rustls
