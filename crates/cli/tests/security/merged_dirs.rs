//! A directory on several branches: who may pass through which copy.
