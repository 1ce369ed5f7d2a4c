//! Whole clusters on one thread from one seed.
