//! A listing shows what had been done before it began.
