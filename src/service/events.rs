//! The events of `tracing` that tell how services are started and dropped.

/// More services are alive than a process should need.
pub(super) fn many_services(services: usize) {
    tracing::warn!(
        name: "many-services",
        target: "corewheel::service",
        services, "many timer services live in this process; one is made to serve all of it"
    );
}

/// A service was dropped by a thread that cannot wait for its shards.
pub(super) fn dropped_with_pending(name: &str, pending: u64) {
    tracing::warn!(
        name: "dropped-with-pending",
        target: "corewheel::service",
        %name, pending, "a timer service was dropped without a shutdown"
    );
}

/// A service was dropped, and its shards have dropped timers.
pub(super) fn dropped_with_loss(name: &str, lost: u64) {
    tracing::warn!(
        name: "dropped-with-loss",
        target: "corewheel::service",
        %name, lost, "a timer service was dropped without a shutdown"
    );
}
