//! INIT: what the kernel offers, what the filesystem wants, what both then do.

/// The outcome of INIT.
#[derive(Clone, Debug)]
pub struct Negotiated {}
