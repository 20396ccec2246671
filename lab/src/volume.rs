//! Small requests at great depth on a file, a loop device over it, a loop device over a volume, and a
//! filesystem on that: what each step costs.

pub mod candidate;
pub mod run;
pub mod table;

pub use candidate::{Candidate, Io, Server};
pub use run::{JOBS, VolumePlan, run};
