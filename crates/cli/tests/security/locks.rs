//! Whoever waits for a lock occupies nothing that others need.
