//! The contenders, one in each file.

pub mod btree;
pub mod delay_queue;
pub mod hash_wheel;
pub mod hashed;
pub mod heap;
pub mod hierarchical;
pub mod nexus;
