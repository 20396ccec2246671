//! The laboratory: workloads, what they are run on, and statistics that say how sure they are.
//!
//! Every comparison is interleaved: in each repetition all subjects run, in an order drawn anew,
//! and a result is the ratio of two times of the same repetition. What disturbs the machine then
//! disturbs both sides, and the interval beside the ratio says how much was left.
#![forbid(unsafe_code)]

pub mod blocksize;
pub mod compare;
mod comparer;
pub mod contents;
pub mod counters;
pub mod cpu;
pub mod credibility;
pub mod crosscheck;
pub mod data;
pub mod depth;
pub mod environment;
pub mod error;
pub mod expense;
pub mod export;
pub mod far;
pub mod fio;
pub mod fit;
pub mod format;
mod free_memory;
pub mod latency;
pub mod layers;
pub mod loop_image;
pub mod matrix;
pub mod metadata;
pub mod passthrough;
pub mod pattern;
pub mod probe;
pub mod progress;
pub mod regime;
pub mod report;
pub mod reproduce;
pub mod requests;
pub mod result;
pub mod scratch;
pub mod sentinel;
pub mod sequential;
pub mod spread;
pub mod stats;
pub mod storage;
pub mod subject;
pub mod tool;
pub mod trial;
pub mod verdict;
pub mod volume;

pub use error::BenchError;
