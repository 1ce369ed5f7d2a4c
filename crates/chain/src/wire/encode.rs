//! Messages to bytes.

use super::{
    ATTRS_BYTES_MAX, Ack, Answer, CONTENT_DATA, CONTENT_TOMBSTONE, ChunkId, ChunkVersion, Content,
    DIFFER_ITEMS_MAX, LANES_MAX, LaneRecord, Meta, Outcome, PayloadHead, PeerBody,
    RESYNC_PAGE_CHUNKS, Space, SyncBody, Tag, Update, Write, Writer, answer_kind, kind, write_kind,
};

/// A message's kind and fields.
pub(super) fn body<P>(body: &PeerBody<P>, payload: Option<&PayloadHead>, w: &mut Writer) {
    match body {
        PeerBody::Forward { update: what, ready } => {
            w.u8(kind::FORWARD);
            flag(*ready, w);
            update(what, payload, w);
        }
        PeerBody::Ready { chunk, version } => versioned(kind::READY, *chunk, *version, w),
        PeerBody::Ack { chunk, version, meta: committed } => {
            versioned(kind::ACK, *chunk, *version, w);
            option(committed.as_ref(), meta, w);
        }
        PeerBody::Stale => w.u8(kind::STALE),
        PeerBody::TailQuery { nonce, chunk } => {
            w.u8(kind::TAIL_QUERY);
            w.u64(*nonce);
            chunk_id(chunk, w);
        }
        PeerBody::TailAnswer { nonce, committed } => {
            w.u8(kind::TAIL_ANSWER);
            w.u64(*nonce);
            w.u64(committed.0);
        }
        PeerBody::LeaseAsk { sent } => {
            w.u8(kind::LEASE_ASK);
            w.u64(sent.0);
        }
        PeerBody::LeaseGrant { sent } => {
            w.u8(kind::LEASE_GRANT);
            w.u64(sent.0);
        }
        PeerBody::JoinAsk => w.u8(kind::JOIN_ASK),
        PeerBody::JoinAnswer => w.u8(kind::JOIN_ANSWER),
        PeerBody::Fetch { nonce, chunk } => {
            w.u8(kind::FETCH);
            w.u64(*nonce);
            chunk_id(chunk, w);
        }
        PeerBody::NoCopy { nonce, chunk } => {
            w.u8(kind::NO_COPY);
            w.u64(*nonce);
            chunk_id(chunk, w);
        }
        PeerBody::Fetched { chunk, meta: committed, .. } => {
            w.u8(kind::FETCHED);
            chunk_id(chunk, w);
            meta(committed, w);
            payload_head(payload, w);
        }
        PeerBody::Room(Space { room, excess }) => {
            w.u8(kind::ROOM);
            flag(*room, w);
            w.u64(*excess);
        }
        PeerBody::Sync(step) => sync(step, payload, w),
    }
}

fn sync<P>(step: &SyncBody<P>, payload: Option<&PayloadHead>, w: &mut Writer) {
    match step {
        SyncBody::Hello => w.u8(kind::SYNC_HELLO),
        SyncBody::Progress { cursor, done } => {
            w.u8(kind::SYNC_PROGRESS);
            option(cursor.as_ref(), chunk_id, w);
            flag(*done, w);
        }
        SyncBody::List { nonce, after, until, items } => {
            w.u8(kind::SYNC_LIST);
            w.u64(*nonce);
            option(after.as_ref(), chunk_id, w);
            option(until.as_ref(), chunk_id, w);
            assert!(items.len() <= RESYNC_PAGE_CHUNKS, "a page has a bound");
            w.count(items.len());
            for (chunk, committed) in items {
                chunk_id(chunk, w);
                meta(committed, w);
            }
        }
        SyncBody::Differ { nonce, until, items } => {
            w.u8(kind::SYNC_DIFFER);
            w.u64(*nonce);
            option(until.as_ref(), chunk_id, w);
            assert!(items.len() <= DIFFER_ITEMS_MAX, "two lists have bounds");
            w.count(items.len());
            for (chunk, mine) in items {
                chunk_id(chunk, w);
                option(mine.as_ref(), meta, w);
            }
        }
        SyncBody::Put { chunk, expect, meta: wanted, .. } => {
            w.u8(kind::SYNC_PUT);
            chunk_id(chunk, w);
            option(expect.as_ref(), meta, w);
            option(wanted.as_ref(), meta, w);
            option(payload, |head, w| payload_head(Some(head), w), w);
        }
        SyncBody::Lost { chunk, expect, meta: lost, .. } => {
            w.u8(kind::SYNC_LOST);
            chunk_id(chunk, w);
            option(expect.as_ref(), meta, w);
            meta(lost, w);
            payload_head(payload, w);
        }
        SyncBody::Has { chunk, meta: mine } => {
            w.u8(kind::SYNC_HAS);
            chunk_id(chunk, w);
            option(mine.as_ref(), meta, w);
        }
        SyncBody::Finish { lanes, complete_since } => {
            w.u8(kind::SYNC_FINISH);
            w.u32(complete_since.0);
            assert!(lanes.len() <= LANES_MAX, "a replica's memory of writers has a bound");
            w.count(lanes.len());
            for record in lanes {
                lane(record, w);
            }
        }
    }
}

fn update<P>(update: &Update<P>, payload: Option<&PayloadHead>, w: &mut Writer) {
    chunk_id(&update.chunk, w);
    tag(&update.tag, w);
    w.u64(update.base.0);
    w.u64(update.version.0);
    w.u32(update.written.0);
    w.u32(update.crc.0);
    w.u8(match update.durability {
        Ack::Memory => 0,
        Ack::Disk => 1,
    });
    match &update.write {
        Write::Whole(_) => {
            w.u8(write_kind::WHOLE);
            payload_head(payload, w);
        }
        Write::Part { offset, .. } => {
            w.u8(write_kind::PART);
            w.u32(*offset);
            payload_head(payload, w);
        }
        Write::Truncate { len } => {
            w.u8(write_kind::TRUNCATE);
            w.u32(*len);
        }
        Write::Tombstone => w.u8(write_kind::TOMBSTONE),
        Write::Collect => w.u8(write_kind::COLLECT),
    }
}

fn payload_head(head: Option<&PayloadHead>, w: &mut Writer) {
    let head = head.expect("this kind has a payload");
    assert!(head.attrs.len() <= ATTRS_BYTES_MAX, "the store keeps no longer ones");
    w.bytes16(&head.attrs);
    w.u32(head.len);
}

fn lane(record: &LaneRecord, w: &mut Writer) {
    tag(&record.tag, w);
    match record.answer {
        Answer::Done(Outcome { chunk, version, content: held }) => {
            versioned(answer_kind::DONE, chunk, version, w);
            content(&held, w);
        }
        Answer::Exists(version) => {
            w.u8(answer_kind::EXISTS);
            w.u64(version.0);
        }
        Answer::NotFound => w.u8(answer_kind::NOT_FOUND),
    }
}

fn versioned(kind: u8, chunk: ChunkId, version: ChunkVersion, w: &mut Writer) {
    w.u8(kind);
    chunk_id(&chunk, w);
    w.u64(version.0);
}

fn meta(meta: &Meta, w: &mut Writer) {
    w.u64(meta.version.0);
    w.u32(meta.written.0);
    content(&meta.content, w);
    tag(&meta.tag, w);
}

fn content(content: &Content, w: &mut Writer) {
    match content {
        Content::Data { len, crc } => {
            w.u8(CONTENT_DATA);
            w.u32(*len);
            w.u32(crc.0);
        }
        Content::Tombstone => w.u8(CONTENT_TOMBSTONE),
    }
}

fn tag(tag: &Tag, w: &mut Writer) {
    w.raw(&tag.lane.client.to_le_bytes());
    w.u32(tag.lane.channel);
    w.u64(tag.sequence);
}

fn chunk_id(chunk: &ChunkId, w: &mut Writer) {
    w.raw(&chunk.0.to_le_bytes());
}

fn flag(value: bool, w: &mut Writer) {
    w.u8(u8::from(value));
}

fn option<T>(value: Option<&T>, encode: impl FnOnce(&T, &mut Writer), w: &mut Writer) {
    flag(value.is_some(), w);
    if let Some(value) = value {
        encode(value, w);
    }
}
