//! Sizes after changes that failed or went only half way.
