//! Membership, target states, placement and routing: pure, synchronous.
