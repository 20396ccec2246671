//! What programs that watch the pool hear of.
