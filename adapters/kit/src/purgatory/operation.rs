//! The trait of what waits in a purgatory.

/// Something to be done as soon as it can be done, or to be given up at its deadline.
///
/// The purgatory calls exactly one of [`completed`](Self::completed) and
/// [`expired`](Self::expired), once, unless the operation is cancelled and returned, or the
/// purgatory is dropped with the operation in it.
///
/// Nothing is borrowed while a method runs: it may watch, check, cancel and drop operations of any
/// purgatory, its own included. If a method panics, the shard counts the panic and goes on with the
/// next operation; a `try_complete` that panics counts as `false`.
///
/// An operation that holds its own [`Purgatory`](super::Purgatory) keeps it alive as long as it
/// waits there. To avoid that, put the purgatory into an `Rc` and give the operation a
/// [`std::rc::Weak`].
///
/// A purgatory for operations of many types holds an enum, or a struct of boxed closures.
pub trait Operation: 'static {
    /// Tells whether the operation can be completed now, and does what completing it takes. Called
    /// when the operation comes to the purgatory, and each time that one of its keys is checked,
    /// until it returns `true`.
    fn try_complete(&mut self) -> bool;

    /// The operation is complete. Called once, right after `try_complete` has returned `true`; the
    /// operation is in no list any more.
    fn completed(self);

    /// The deadline is reached. Called once, in the turn in which the timer fires, without another
    /// `try_complete` before.
    fn expired(self);
}
