//! ZDS.
mod roster;
