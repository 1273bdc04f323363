//! The statistics of services in a registry of `prometheus_client`.
//!
//! A collector that reads the service at each scrape, not a registry of live metrics: the shards
//! publish their counts already, and a second set of counters would be a second truth.
//!
//! Invariants: no two services of a collector have the same name, which is the only label that
//! tells their samples apart.

use std::fmt;

use corewheel::ConfigError;
use corewheel::stats::{ServiceStats, StatsSource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::metrics;

/// Puts the statistics of services into a registry of `prometheus_client`.
///
/// It is for a program that has a registry and serves it already. The families and their names are
/// those of the endpoint's `/metrics`, and each sample has a label `service`. Services that share a
/// registry share one collector, since a text has each family once, and need different
/// [names](corewheel::TimerServiceBuilder::name), since that label alone tells their samples apart.
/// A second service of a name is refused.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel_stats::StatsCollector;
/// use prometheus_client::registry::Registry;
///
/// let requests = TimerService::builder().shards(1).name("requests").start()?;
/// let jobs = TimerService::builder().shards(1).name("jobs").start()?;
///
/// let labels = [("region".into(), "north".into())];
/// let mut registry = Registry::with_labels(labels.into_iter());
/// let collector = StatsCollector::new(requests.stats_source()).and(jobs.stats_source())?;
/// collector.register(&mut registry);
///
/// let mut text = String::new();
/// prometheus_client::encoding::text::encode(&mut text, &registry)?;
/// assert!(text.contains(r#"corewheel_pending{region="north",service="jobs",shard="0"} 0"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cost: encoding the registry reads each shard of each service, as a request for `/metrics` does.
#[derive(Clone, Debug)]
#[must_use = "a collector does nothing until it is registered"]
pub struct StatsCollector {
    sources: Vec<StatsSource>,
}

impl StatsCollector {
    /// A collector of one service, with a label `shard`.
    pub fn new(source: StatsSource) -> Self {
        Self { sources: vec![source] }
    }

    /// Collects another service, too.
    ///
    /// ```
    /// use corewheel::TimerService;
    /// use corewheel_stats::StatsCollector;
    ///
    /// let unnamed = || TimerService::builder().shards(1).start_attached();
    /// let (one, other) = (unnamed()?, unnamed()?);
    /// let collector = StatsCollector::new(one.stats_source());
    /// let refused = collector.and(other.stats_source()).unwrap_err();
    /// let text = r#"name is "corewheel", but another service of the collector has that name"#;
    /// assert!(refused.to_string().starts_with(text));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The collector has the service already, or another one of its name, as two services have that
    /// were not given one.
    pub fn and(mut self, source: StatsSource) -> Result<Self, ConfigError> {
        let name = source.read().name;
        if self.sources.iter().any(|source| source.read().name == name) {
            let limit = "another service of the collector has that name, so that no label would \
                         tell their samples apart";
            let remedy = "give each service a name of its own with `TimerServiceBuilder::name`";
            return Err(ConfigError::new("name", name, limit, remedy));
        }
        self.sources.push(source);
        Ok(self)
    }

    /// Registers the collector with the prefix `corewheel` behind the registry's own. A registry
    /// takes one collector, which has all services: a text has each family once. A caller that
    /// wants another prefix passes the collector to [`Registry::register_collector`].
    pub fn register(self, registry: &mut Registry) {
        registry.sub_registry_with_prefix("corewheel").register_collector(Box::new(self));
    }
}

impl Collector for StatsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let services: Vec<ServiceStats> = self.sources.iter().map(StatsSource::read).collect();
        metrics::encode(&mut encoder, &services)
    }
}
