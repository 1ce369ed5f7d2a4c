//! Records of completed updates: the last one of every lane (client and channel).
//!
//! A lane has one update in flight at a time, so one record per lane answers every retry. A client
//! gives up after `RETRY_HORIZON_MS`; a record older than twice that may go, so the table is
//! bounded and never takes a retry for a new update. A crash of the whole chain loses records: a
//! retry first issued before `complete_since` may have been done without a record.

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_types::Tick;
use millpond_types::cluster::ChainVersion;
use millpond_types::limits::{CHAIN_LANES_MAX, DEDUP_KEEP_MS};

use crate::message::{Answer, Lane, LaneRecord, Tag};

/// Most lanes in one replica's memory.
pub(crate) const DEDUP_LANES_MAX: usize = 2 * CHAIN_LANES_MAX;

#[derive(Clone, Copy, Debug)]
struct Record {
    sequence: u64,
    answer: Answer,
    at: Tick,
}

/// State of an update according to the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was answered.
    Answered(Answer),
    /// A later update of the same lane was answered.
    Superseded,
    /// There is no record.
    Unknown,
    /// There is no record and no room for one.
    Full,
}

#[derive(Debug, Default)]
pub(crate) struct Dedup {
    lanes: BTreeMap<Lane, Record>,
    /// Updates first issued before this chain version may be missing.
    pub(crate) complete_since: ChainVersion,
}

impl Dedup {
    pub(crate) fn seen(&mut self, tag: Tag, now: Tick) -> Seen {
        match self.lanes.get(&tag.lane) {
            Some(record) if record.sequence == tag.sequence => Seen::Answered(record.answer),
            Some(record) if record.sequence > tag.sequence => Seen::Superseded,
            Some(_) => Seen::Unknown,
            None if self.lanes.len() < CHAIN_LANES_MAX => Seen::Unknown,
            None => {
                self.expire(now);
                if self.lanes.len() < CHAIN_LANES_MAX { Seen::Unknown } else { Seen::Full }
            }
        }
    }

    /// Whether this update, or a later one of its lane, was answered.
    pub(crate) fn knows(&self, tag: Tag) -> bool {
        self.lanes.get(&tag.lane).is_some_and(|record| record.sequence >= tag.sequence)
    }

    pub(crate) fn record(&mut self, tag: Tag, answer: Answer, now: Tick) {
        // An update of the chain itself, which is never retried.
        if tag.lane.client == Lane::default().client {
            return;
        }
        let record = Record { sequence: tag.sequence, answer, at: now };
        let known = self.lanes.entry(tag.lane).or_insert(record);
        if known.sequence <= tag.sequence {
            *known = record;
        }
        // The head admits no new lane beyond the bound; lanes already in flight, or learned from
        // another head, may double that number.
        if self.lanes.len() > DEDUP_LANES_MAX {
            self.expire(now);
        }
        // Further lanes can only be those that the head has dropped already.
        if self.lanes.len() > DEDUP_LANES_MAX {
            let oldest = self.lanes.iter().min_by_key(|(_, record)| record.at);
            let oldest = *oldest.expect("there are many").0;
            self.lanes.remove(&oldest);
        }
    }

    fn expire(&mut self, now: Tick) {
        let keep = Duration::from_millis(DEDUP_KEEP_MS);
        self.lanes.retain(|_, record| now.since(record.at) < keep);
    }

    pub(crate) fn snapshot(&self) -> Vec<LaneRecord> {
        let record = |(lane, record): (&Lane, &Record)| LaneRecord {
            tag: Tag { lane: *lane, sequence: record.sequence },
            answer: record.answer,
        };
        self.lanes.iter().map(record).collect()
    }

    pub(crate) fn forget(&mut self, complete_since: ChainVersion) {
        self.lanes.clear();
        self.complete_since = complete_since;
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::ChunkId;
    use millpond_types::cluster::ChunkVersion;

    use super::*;
    use crate::message::{Content, Outcome};

    fn tag(client: u128, sequence: u64) -> Tag {
        Tag { lane: Lane { client, channel: 0 }, sequence }
    }

    fn outcome(version: u64) -> Answer {
        let version = ChunkVersion(version);
        Answer::Done(Outcome { chunk: ChunkId(1), version, content: Content::Tombstone })
    }

    #[test]
    fn a_retry_gets_the_recorded_outcome_and_a_late_copy_is_superseded() {
        let mut dedup = Dedup::default();
        assert_eq!(dedup.seen(tag(7, 5), Tick(0)), Seen::Unknown);
        dedup.record(tag(7, 5), outcome(3), Tick(0));
        assert_eq!(dedup.seen(tag(7, 5), Tick(1)), Seen::Answered(outcome(3)));
        assert_eq!(dedup.seen(tag(7, 4), Tick(1)), Seen::Superseded);
        assert_eq!(dedup.seen(tag(7, 6), Tick(1)), Seen::Unknown);
        // An update that a later one of its lane has overtaken does not replace the record.
        dedup.record(tag(7, 4), outcome(9), Tick(1));
        assert_eq!(dedup.seen(tag(7, 5), Tick(1)), Seen::Answered(outcome(3)));
    }

    #[test]
    fn memory_is_bounded_and_only_old_records_go() {
        let mut dedup = Dedup::default();
        for client in 0..CHAIN_LANES_MAX as u128 {
            dedup.record(tag(client + 1, 1), outcome(1), Tick(0));
        }
        let stranger = tag(u128::MAX, 1);
        assert_eq!(dedup.seen(stranger, Tick(1)), Seen::Full);
        assert_eq!(dedup.seen(tag(1, 1), Tick(1)), Seen::Answered(outcome(1)));
        let later = Tick(0).plus(Duration::from_millis(DEDUP_KEEP_MS));
        assert_eq!(dedup.seen(stranger, later), Seen::Unknown);
        assert!(dedup.snapshot().is_empty());
    }

    #[test]
    fn a_replica_that_learns_more_than_a_head_admits_lets_the_oldest_go() {
        let mut dedup = Dedup::default();
        for client in 0..DEDUP_LANES_MAX as u64 + 3 {
            dedup.record(tag(u128::from(client) + 1, 1), outcome(1), Tick(client));
        }
        assert_eq!(dedup.snapshot().len(), DEDUP_LANES_MAX);
        assert_eq!(dedup.seen(tag(4, 1), Tick(0)), Seen::Answered(outcome(1)));
        assert!(!dedup.lanes.contains_key(&tag(3, 1).lane));
    }
}
