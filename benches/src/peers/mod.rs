//! The contenders, one in each file.

pub mod btree;
pub mod hashed;
pub mod heap;
pub mod hierarchical;
pub mod nexus;
