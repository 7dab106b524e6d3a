//! Every flag and variable, by table.
