//! The same work on filesystems made with different mkfs and mount options, on one device.

pub mod credibility;
pub mod device;
pub mod ground;
pub mod plan;
pub mod recipe;
pub mod run;
pub mod table;
pub mod workload;

pub use plan::{Place, Plan};
pub use run::run;
