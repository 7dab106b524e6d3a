//! Machines of namespaces, sample applications, load generator
