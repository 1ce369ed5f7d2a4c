//! The transactional store: one trait, an embedded engine and etcd.
