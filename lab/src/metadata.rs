//! The metadata benchmark: the operations programs wait for, on the bare filesystem, on pools and
//! on their peers.

pub mod git;
pub mod plan;
pub mod report;
pub mod row;
pub mod run;
pub mod tree;
pub mod user;
pub mod workload;

pub use plan::MetadataPlan;
pub use row::Row;
pub use run::{Results, run};
pub use user::User;
pub use workload::Workload;
