//! What the bodies of an exchange lie in: that of a request in the exchange, and that of a response
//! beside it.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use super::super::exchange::{BodySide, Core, Exchange, Member};
use super::super::limits::Awaited;
use super::{Cell, Limited, Owner, arm, look};
use hyper::body::Body;

impl<B: Limited> Owner<B> for Core<Cell<B>> {
    fn cell(&self) -> &Cell<B> {
        &self.request
    }

    fn core(&self) -> &Core<dyn Member> {
        self
    }

    fn waker(self: Arc<Self>) -> Waker {
        Waker::from(self)
    }
}

impl<B: Limited> Wake for Core<Cell<B>> {
    fn wake(self: Arc<Self>) {
        let owner: Arc<dyn Owner<B>> = self;
        look(&owner);
    }
}

/// The body of a response, in its exchange.
struct OfResponse<B: Body> {
    exchange: Exchange,
    cell: Cell<B>,
}

/// The body of a response where its exchange reaches it. It is `None` while its consumer polls it.
pub(in crate::hyper) fn share<B: Limited>(
    exchange: &Exchange,
    body: Option<B>,
) -> Arc<dyn Owner<B>> {
    let (core, side) = (&exchange.core, BodySide::Response);
    let since = core.begin_wait(side, Awaited::Poll);
    let cell = Cell::new(side, body, since);
    let owner = Arc::new(OfResponse { exchange: exchange.clone(), cell });
    let weak: Weak<OfResponse<B>> = Arc::downgrade(&owner);
    let goes_on = core.add_response(weak);
    let owner: Arc<dyn Owner<B>> = owner;
    if !goes_on {
        owner.cell().cut();
    } else if since.is_some() {
        arm(&owner);
    }
    owner
}

impl<B: Limited> Owner<B> for OfResponse<B> {
    fn cell(&self) -> &Cell<B> {
        &self.cell
    }

    fn core(&self) -> &Core<dyn Member> {
        &self.exchange.core
    }

    fn waker(self: Arc<Self>) -> Waker {
        Waker::from(self)
    }
}

impl<B: Limited> Wake for OfResponse<B> {
    fn wake(self: Arc<Self>) {
        let owner: Arc<dyn Owner<B>> = self;
        look(&owner);
    }
}

impl<B: Limited> Member for OfResponse<B> {
    fn cut(&self) {
        self.exchange.core.response_cut();
        self.cell.cut();
    }
}
