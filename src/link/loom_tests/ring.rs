//! The SPSC ring of a lane under the model checker, which cannot look into `rtrb`.
//!
//! The part of `rtrb`'s interface that lanes use, with its atomics: the same loads and stores in
//! the same order, the same copies of the other side's index, the same orderings. The elements lie
//! under a lock that the model checker does not see, since a lock that it sees would order memory,
//! and hide a missing fence. The indices only grow.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Shared<T> {
    /// How many elements were taken out.
    head: AtomicUsize,
    /// How many elements were put in.
    tail: AtomicUsize,
    /// Whether one of the ends is dropped.
    is_abandoned: AtomicBool,
    elements: Mutex<VecDeque<T>>,
    capacity: usize,
}

impl<T> Shared<T> {
    fn put(&self, element: T) {
        self.elements.lock().unwrap_or_else(PoisonError::into_inner).push_back(element);
    }

    fn take(&self) -> T {
        let element = self.elements.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        element.expect("an element is put in before the tail says so")
    }
}

pub(crate) struct RingBuffer<T>(PhantomData<T>);

impl<T> RingBuffer<T> {
    #[allow(clippy::new_ret_no_self, reason = "the interface is that of `rtrb`")]
    pub(crate) fn new(capacity: usize) -> (Producer<T>, Consumer<T>) {
        let shared = Arc::new(Shared {
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            is_abandoned: AtomicBool::new(false),
            elements: Mutex::default(),
            capacity,
        });
        let producer = Producer { shared: Arc::clone(&shared), head: Cell::new(0), tail: 0 };
        (producer, Consumer { shared, head: 0, tail: Cell::new(0) })
    }
}

pub(crate) enum PushError<T> {
    Full(T),
}

pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// The head as this end has last loaded it.
    head: Cell<usize>,
    tail: usize,
}

impl<T> Producer<T> {
    pub(crate) fn push(&mut self, element: T) -> Result<(), PushError<T>> {
        if self.is_full() {
            return Err(PushError::Full(element));
        }
        self.shared.put(element);
        self.tail += 1;
        // Release: pairs with the loads of the tail.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.tail - self.head.get() == self.shared.capacity && self.slots() == 0
    }

    pub(crate) fn slots(&self) -> usize {
        // Acquire: pairs with the stores of the head.
        self.head.set(self.shared.head.load(Ordering::Acquire));
        self.shared.capacity - (self.tail - self.head.get())
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Release: pairs with the load in `is_abandoned`.
        self.shared.is_abandoned.swap(true, Ordering::Release);
    }
}

pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// The tail as this end has last loaded it.
    tail: Cell<usize>,
}

impl<T> Consumer<T> {
    pub(crate) fn pop(&mut self) -> Result<T, ()> {
        if self.is_empty() {
            return Err(());
        }
        let element = self.shared.take();
        self.head += 1;
        self.release_head();
        Ok(element)
    }

    pub(crate) fn slots(&self) -> usize {
        // Acquire: pairs with the stores of the tail.
        self.tail.set(self.shared.tail.load(Ordering::Acquire));
        self.tail.get() - self.head
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail.get() && self.slots() == 0
    }

    pub(crate) fn read_chunk(&mut self, len: usize) -> Result<ReadChunk<'_, T>, ()> {
        if self.tail.get() - self.head < len && self.slots() < len {
            return Err(());
        }
        Ok(ReadChunk { consumer: self, len })
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        // Acquire: pairs with the swap of the end that is dropped.
        self.shared.is_abandoned.load(Ordering::Acquire)
    }

    fn release_head(&self) {
        // Release: pairs with the load of the head in `slots` of the other end.
        self.shared.head.store(self.head, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Release: pairs with the load in `is_abandoned`.
        self.shared.is_abandoned.swap(true, Ordering::Release);
    }
}

pub(crate) struct ReadChunk<'a, T> {
    consumer: &'a mut Consumer<T>,
    len: usize,
}

/// Whether an element of a chunk, which is not taken out, has a property.
pub(crate) fn any_of<T>(chunk: &ReadChunk<'_, T>, is_so: impl FnMut(&T) -> bool) -> bool {
    let elements = chunk.consumer.shared.elements.lock();
    elements.unwrap_or_else(PoisonError::into_inner).iter().take(chunk.len).any(is_so)
}

impl<'a, T> IntoIterator for ReadChunk<'a, T> {
    type Item = T;
    type IntoIter = ReadChunkIntoIter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        ReadChunkIntoIter { consumer: self.consumer, left: self.len }
    }
}

/// Takes the elements of a chunk out. The head tells the other side so when this is dropped.
pub(crate) struct ReadChunkIntoIter<'a, T> {
    consumer: &'a mut Consumer<T>,
    left: usize,
}

impl<T> Iterator for ReadChunkIntoIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        self.consumer.head += 1;
        Some(self.consumer.shared.take())
    }
}

impl<T> Drop for ReadChunkIntoIter<'_, T> {
    fn drop(&mut self) {
        self.consumer.release_head();
    }
}
