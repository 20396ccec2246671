//! The functions of libc that are taken over, and the system calls beneath them.

mod calls;
mod exports;
mod known;
mod locks;
mod real;
mod shell;
mod sides;
mod stats;
mod streams;
mod swap;
mod trust;
