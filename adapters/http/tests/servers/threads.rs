//! What goes from thread to thread, checked by the compiler.

use std::fmt::Debug;
use std::future::Pending;

use corewheel_http::hyper::{Exchange, HyperTimer, TimedHttp, TimedResponse};
use corewheel_http::tower::{ResponseFuture, Timeout, TimeoutLayer};
use hyper::rt::Timer;

const _: () = {
    const fn is_shared<T: Clone + Debug + Send + Sync + Unpin + 'static>() {}
    const fn is_timer<T: Timer + Copy + Debug + Send + Sync + Unpin + 'static>() {}
    const fn is_sent<T: Send + Sync + 'static>() {}
    is_timer::<HyperTimer>();
    assert!(size_of::<HyperTimer>() <= 12);
    is_shared::<Exchange>();
    // With shared timers.
    is_shared::<TimedHttp<()>>();
    is_sent::<TimedResponse<()>>();
    is_shared::<TimeoutLayer>();
    is_shared::<Timeout<()>>();
    is_shared::<TimeoutLayer<fn()>>();
    is_shared::<Timeout<u32, fn() -> u32>>();
    is_sent::<ResponseFuture<Pending<()>>>();
};
