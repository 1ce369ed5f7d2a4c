//! The replication state machine of one chain: pure, synchronous.
