//! The statistics of services in a registry of `prometheus_client`.
//!
//! A collector that reads the service at each scrape, not a registry of live metrics: the shards
//! publish their counts already, and a second set of counters would be a second truth.
//!
//! Invariants: no two services of a collector have the same name, which is the only label that
//! tells their samples apart.

use std::fmt;

use corewheel::ConfigError;
use corewheel::stats::ServiceStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::metrics;

/// Puts the statistics of services into a registry of `prometheus_client`, with the prefix
/// `corewheel` behind the registry's own. `read` reads them at each scrape.
///
/// It is for a program that has a registry and serves it already. The families and their names are
/// those of the endpoint's `/metrics`, and each sample has a label `service`. Services that share a
/// registry are registered by one call, since a text has each family once, and need different
/// [names](corewheel::TimerServiceBuilder::name), since that label alone tells their samples apart.
///
/// ```
/// use corewheel::TimerService;
/// use prometheus_client::registry::Registry;
///
/// let requests = TimerService::builder().shards(1).name("requests").start()?;
/// let jobs = TimerService::builder().shards(1).name("jobs").start()?;
///
/// let labels = [("region".into(), "north".into())];
/// let mut registry = Registry::with_labels(labels.into_iter());
/// let sources = [requests.stats_source(), jobs.stats_source()];
/// corewheel_stats::register(&mut registry, move || sources.iter().map(|read| read()).collect())?;
///
/// let mut text = String::new();
/// prometheus_client::encoding::text::encode(&mut text, &registry)?;
/// assert!(text.contains(r#"corewheel_pending{region="north",service="jobs",shard="0"} 0"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cost: encoding the registry reads each shard of each service, as a request for `/metrics` does.
///
/// # Errors
///
/// Two of the services have one name, as two services have that were not given one.
pub fn register<F>(registry: &mut Registry, read: F) -> Result<(), ConfigError>
where
    F: Fn() -> Vec<ServiceStats> + Send + Sync + 'static,
{
    let mut names: Vec<String> = read().into_iter().map(|service| service.name).collect();
    names.sort_unstable();
    if let Some([name, ..]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let limit = "another service of the registry has that name, so that no label would tell \
                     their samples apart";
        let remedy = "give each service a name of its own with `TimerServiceBuilder::name`";
        return Err(ConfigError::new("name", name, limit, remedy));
    }
    Collected(read).register(registry);
    Ok(())
}

/// Services whose names differ.
pub(super) struct Collected<F>(pub(super) F);

impl<F: Fn() -> Vec<ServiceStats> + Send + Sync + 'static> Collected<F> {
    pub(super) fn register(self, registry: &mut Registry) {
        registry.sub_registry_with_prefix("corewheel").register_collector(Box::new(self));
    }
}

impl<F: Fn() -> Vec<ServiceStats> + Send + Sync + 'static> Collector for Collected<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        metrics::encode(&mut encoder, &(self.0)())
    }
}

impl<F> fmt::Debug for Collected<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected").finish_non_exhaustive()
    }
}
