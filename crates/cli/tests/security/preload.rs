//! Whom the preload library believes.
