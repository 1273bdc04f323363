//! What goes from thread to thread, checked by the compiler.

use corewheel_http::hyper::{Exchange, HyperTimer, TimedHttp, TimedResponse};
use corewheel_http::tower::{Timeout, TimeoutLayer};

const _: () = {
    const fn is_shared<T: Clone + Send + Sync + Unpin + 'static>() {}
    const fn is_copied<T: Copy + Send + Sync + Unpin + 'static>() {}
    const fn is_sent<T: Send + Sync + 'static>() {}
    is_copied::<HyperTimer>();
    is_shared::<Exchange>();
    // With shared timers.
    is_shared::<TimedHttp<()>>();
    is_sent::<TimedResponse<()>>();
    is_shared::<TimeoutLayer>();
    is_shared::<Timeout<()>>();
    is_shared::<TimeoutLayer<fn()>>();
};
