//! Role: the control plane: registry, view, delta xDS and certificate authority
