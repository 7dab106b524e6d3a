//! How objects refer to one another: checked before anything is applied.
