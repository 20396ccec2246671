//! `libstrandfs_preload.so`: with `LD_PRELOAD` a program's opens of a pool's files end in the
//! descriptor of the branch file, so that its reads and writes never meet the server. For kernels
//! and users without FUSE passthrough.
//!
//! Every call is made as the program asked for it first: the pool chooses the branch, creates,
//! truncates and checks rights. Only then is the branch file opened in the place of the pool's
//! descriptor, and only if everything fits; any doubt leaves the pool's own.

mod sys;
