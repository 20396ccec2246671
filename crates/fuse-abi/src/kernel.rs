//! The wire structures of the kernel's FUSE protocol, `linux/fuse.h`, up to ABI 7.45.
//!
//! Every structure is plain old data in the kernel's layout (native endianness, 8-byte aligned
//! size), read and written by copy: message buffers need no alignment. Names follow the
//! kernel's without the `fuse_` prefix; field names too, so that the two can be read side by
//! side. Offsets and lengths are in bytes unless the field says otherwise. Only layout and
//! numbers live here; meaning is in the crate's own types.

mod attr;
mod device;
mod dir;
mod entry;
mod extension;
mod init;
mod io;
mod lock;
mod notify;
mod opcode;
mod open;
mod statx;
mod uring;
mod xattr;

#[cfg(test)]
mod layout_tests;

pub use attr::*;
pub use device::*;
pub use dir::*;
pub use entry::*;
pub use extension::*;
pub use init::*;
pub use io::*;
pub use lock::*;
pub use notify::*;
pub use opcode::*;
pub use open::*;
pub use statx::*;
pub use uring::*;
pub use xattr::*;

/// Derives what every wire structure needs: reading from and writing to bytes without `unsafe`.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(
                Clone, Copy, Debug, Default,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
            )]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }
        )*
    };
}
use wire;
