//! Record locks: deadlocks, and who is listed.
