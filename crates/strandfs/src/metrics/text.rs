//! The text that collectors of metrics read.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as TextUnit};
use strandfs_pool::metrics::{Latency, Metrics};

use super::families::{FAMILIES, Family, Unit, Value};

/// In the form of OpenMetrics 1.0.
///
/// # Errors
/// None that is known of.
pub fn openmetrics(pools: Vec<Metrics>) -> Result<String, fmt::Error> {
    let mut text = String::new();
    text::encode(&mut text, &registry(pools))?;
    Ok(text)
}

/// In the older form of Prometheus, 0.0.4.
///
/// # Errors
/// None that is known of.
pub fn prometheus(pools: Vec<Metrics>) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry(pools))?;
    Ok(text)
}

fn registry(pools: Vec<Metrics>) -> Registry {
    let mut registry = Registry::with_prefix("strandfs");
    registry.register_collector(Box::new(Pools(pools)));
    registry
}

/// What pools have counted.
#[derive(Debug)]
struct Pools(Vec<Metrics>);

impl Collector for Pools {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        FAMILIES
            .iter()
            .try_for_each(|family| encode(&self.0, family, &mut encoder))
    }
}

fn encode(pools: &[Metrics], family: &Family, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let unit = match family.unit {
        Unit::None => None,
        Unit::Seconds => Some(TextUnit::Seconds),
        Unit::Bytes => Some(TextUnit::Bytes),
    };
    let help = format!("{}.", family.help);
    let mut encoder = encoder.encode_descriptor(family.name, &help, unit.as_ref(), family.kind)?;
    for pool in pools {
        let mountpoint = pool.mountpoint.clone().unwrap_or_default();
        for (further, value) in (family.samples)(pool) {
            let mut labels = vec![("pool", mountpoint.clone())];
            labels.extend(further);
            let sample = encoder.encode_family(&labels)?;
            encode_value(sample, family.kind, pool, value)?;
        }
    }
    Ok(())
}

fn encode_value(
    mut sample: MetricEncoder<'_>,
    kind: MetricType,
    pool: &Metrics,
    value: Value,
) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Number(number)) => {
            sample.encode_counter::<NoLabelSet, _, f64>(&number, None)
        }
        (_, Value::Number(number)) => sample.encode_gauge(&number),
        (_, Value::Milliseconds(ms)) => sample.encode_gauge(&(ms as f64 / 1e3)),
        (_, Value::Took(latency)) => {
            let sum = seconds(latency.total_ns);
            let buckets = buckets(&pool.bucket_bounds_ns, &latency);
            sample.encode_histogram::<NoLabelSet>(sum, latency.count, &buckets, None)
        }
    }
}

/// The buckets with their upper bounds in seconds.
fn buckets(bounds_ns: &[u64], latency: &Latency) -> Vec<(f64, u64)> {
    let bounds = bounds_ns.iter().map(|ns| seconds(*ns));
    let bounds = bounds.chain([f64::INFINITY]);
    bounds.zip(latency.buckets.iter().copied()).collect()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
