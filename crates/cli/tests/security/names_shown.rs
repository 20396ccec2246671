//! Names that a user is not shown.
