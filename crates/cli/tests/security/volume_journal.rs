//! Journals of volumes that somebody forged.
