//! Records of moves and renames that somebody forged.
