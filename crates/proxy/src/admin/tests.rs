//! Requests against the admin API.
