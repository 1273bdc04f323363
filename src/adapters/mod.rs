//! What hyper, tower and quinn take their timers from.
