//! How long single operations take: at full speed or at a fixed rate, over time, and until the figures are
//! steady.

mod caller;
mod check;
mod plan;
mod run;
mod steady;
pub mod text;

pub use plan::{LatencyPlan, Operation};
pub use run::run;
pub use steady::Window;
