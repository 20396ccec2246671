//! Set-id bits and flags after changes by others.
