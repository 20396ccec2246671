//! Times after stores through a mapping.
