//! Capture rules in real namespaces.
