//! Access lists where a branch has none.
