//! The layers benchmark: the same work on levels that each add one thing, and whose time it is.

pub mod attribution;
mod distance;
pub mod judge;
mod knob;
pub(crate) mod placed;
pub mod plan;
pub mod run;
pub mod setup;
pub mod target;
pub mod text;

pub use plan::LayersPlan;
pub use run::run;
pub use target::Target;
