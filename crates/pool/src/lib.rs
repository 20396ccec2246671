//! The union.
