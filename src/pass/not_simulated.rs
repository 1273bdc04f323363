//! The passes of simulated runtimes, in builds in which no runtime is simulated.
#![cfg_attr(
    not(all(feature = "tokio", unix)),
    allow(dead_code, reason = "there is no runtime that could be simulated")
)]

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Waker;

use super::{Asked, Wait};
use crate::link::thread_timers::Relay;

/// There is no simulated runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number(Infallible);

#[inline]
pub(super) fn host() -> Option<Number> {
    None
}

#[inline]
pub(super) fn has_budget() -> Option<bool> {
    None
}

#[inline]
pub(super) fn is_proven(_looks: u64, _time: u64) -> Option<bool> {
    None
}

#[inline]
pub(super) fn relay() -> Option<Arc<dyn Relay<Waker>>> {
    None
}

pub(super) fn ask(_wait: &Arc<Wait>) -> Asked {
    Asked::Unknown
}

pub(super) fn spawn(runtime: Number, _task: impl Future<Output = ()>) {
    match runtime.0 {}
}
