//! The same work on filesystems made with different mkfs and mount options, on one device.

pub mod credibility;
pub mod device;
pub mod plan;
pub mod recipe;
pub mod run;
pub mod table;
pub mod test_device;
pub mod workload;

pub use plan::{Backing, MatrixPlan};
pub use run::run;
