//! Role: the node agent and CNI plugin: enrolment and capture
