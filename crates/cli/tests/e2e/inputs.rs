//! Wrong inputs: each gets one clear error and changes nothing.
