//! Bytes to messages.

use super::{
    ATTRS_BYTES_MAX, Ack, Answer, CHUNK_BYTES_MAX, CONTENT_DATA, CONTENT_TOMBSTONE, ChainVersion,
    ChunkId, ChunkVersion, Content, Crc32c, DIFFER_ITEMS_MAX, LANES_MAX, Lane, LaneRecord, Meta,
    Outcome, PayloadHead, PeerBody, RESYNC_PAGE_CHUNKS, Reader, Space, SyncBody, Tag, Tick, Update,
    WireError, Write, answer_kind, kind, write_kind,
};

/// A message with `()` as its payload, and the description of the payload.
type Headless = (PeerBody<()>, Option<PayloadHead>);

/// A message's kind and fields.
pub(super) fn body(r: &mut Reader<'_>) -> Result<Headless, WireError> {
    let body = match r.u8()? {
        kind::FORWARD => return forward(r),
        kind::READY => PeerBody::Ready { chunk: chunk_id(r)?, version: version(r)? },
        kind::ACK => {
            PeerBody::Ack { chunk: chunk_id(r)?, version: version(r)?, meta: option(r, meta)? }
        }
        kind::STALE => PeerBody::Stale,
        kind::TAIL_QUERY => PeerBody::TailQuery { nonce: r.u64()?, chunk: chunk_id(r)? },
        kind::TAIL_ANSWER => PeerBody::TailAnswer { nonce: r.u64()?, committed: version(r)? },
        kind::LEASE_ASK => PeerBody::LeaseAsk { sent: Tick(r.u64()?) },
        kind::LEASE_GRANT => PeerBody::LeaseGrant { sent: Tick(r.u64()?) },
        kind::JOIN_ASK => PeerBody::JoinAsk,
        kind::JOIN_ANSWER => PeerBody::JoinAnswer,
        kind::FETCH_UNNAMED => PeerBody::Fetch { nonce: 0, chunk: chunk_id(r)? },
        kind::FETCH => PeerBody::Fetch { nonce: r.u64()?, chunk: chunk_id(r)? },
        kind::NO_COPY => PeerBody::NoCopy { nonce: r.u64()?, chunk: chunk_id(r)? },
        kind::FETCHED => {
            let body = PeerBody::Fetched { chunk: chunk_id(r)?, meta: meta(r)?, bytes: () };
            return Ok((body, Some(payload_head(r)?)));
        }
        kind::ROOM => PeerBody::Room(Space { room: flag(r)?, excess: r.u64()? }),
        kind => {
            let (body, payload) = sync(kind, r)?;
            return Ok((PeerBody::Sync(body), payload));
        }
    };
    Ok((body, None))
}

fn sync(kind: u8, r: &mut Reader<'_>) -> Result<(SyncBody<()>, Option<PayloadHead>), WireError> {
    let body = match kind {
        kind::SYNC_HELLO => SyncBody::Hello,
        kind::SYNC_PROGRESS => SyncBody::Progress { cursor: option(r, chunk_id)?, done: flag(r)? },
        kind::SYNC_LIST => SyncBody::List {
            nonce: r.u64()?,
            after: option(r, chunk_id)?,
            until: option(r, chunk_id)?,
            items: list(r, (RESYNC_PAGE_CHUNKS, 57), |r| Ok((chunk_id(r)?, meta(r)?)))?,
        },
        kind::SYNC_DIFFER => SyncBody::Differ {
            nonce: r.u64()?,
            until: option(r, chunk_id)?,
            items: list(r, (DIFFER_ITEMS_MAX, 17), |r| Ok((chunk_id(r)?, option(r, meta)?)))?,
        },
        kind::SYNC_PUT => {
            let (chunk, expect, wanted) = (chunk_id(r)?, option(r, meta)?, option(r, meta)?);
            let payload = option(r, payload_head)?;
            let bytes = payload.as_ref().map(|_| ());
            return Ok((SyncBody::Put { chunk, expect, meta: wanted, bytes }, payload));
        }
        kind::SYNC_LOST => {
            let (chunk, expect, lost) = (chunk_id(r)?, option(r, meta)?, meta(r)?);
            if !matches!(lost.content, Content::Data { len: 1.., .. }) {
                return Err(WireError::Field("lost content"));
            }
            let body = SyncBody::Lost { chunk, expect, meta: lost, label: () };
            return Ok((body, Some(payload_head(r)?)));
        }
        kind::SYNC_HAS => SyncBody::Has { chunk: chunk_id(r)?, meta: option(r, meta)? },
        kind::SYNC_FINISH => {
            let complete_since = ChainVersion(r.u32()?);
            SyncBody::Finish { lanes: list(r, (LANES_MAX, 29), lane)?, complete_since }
        }
        _ => return Err(WireError::Field("message kind")),
    };
    Ok((body, None))
}

fn forward(r: &mut Reader<'_>) -> Result<Headless, WireError> {
    let ready = flag(r)?;
    let chunk = chunk_id(r)?;
    let tag = tag(r)?;
    let base = version(r)?;
    let version = version(r)?;
    let written = ChainVersion(r.u32()?);
    let crc = Crc32c(r.u32()?);
    let durability = match r.u8()? {
        0 => Ack::Memory,
        1 => Ack::Disk,
        _ => return Err(WireError::Field("durability")),
    };
    let (write, payload) = write(r)?;
    let update = Update { chunk, tag, base, version, written, write, crc, durability };
    Ok((PeerBody::Forward { update, ready }, payload))
}

fn write(r: &mut Reader<'_>) -> Result<(Write<()>, Option<PayloadHead>), WireError> {
    Ok(match r.u8()? {
        write_kind::WHOLE => (Write::Whole(()), Some(payload_head(r)?)),
        write_kind::PART => {
            let offset = r.u32()?;
            let payload = payload_head(r)?;
            chunk_len(offset.checked_add(payload.len).ok_or(WireError::Field("part"))?)?;
            (Write::Part { offset, bytes: () }, Some(payload))
        }
        write_kind::TRUNCATE => (Write::Truncate { len: chunk_len(r.u32()?)? }, None),
        write_kind::TOMBSTONE => (Write::Tombstone, None),
        write_kind::COLLECT => (Write::Collect, None),
        _ => return Err(WireError::Field("write kind")),
    })
}

fn payload_head(r: &mut Reader<'_>) -> Result<PayloadHead, WireError> {
    let attrs = r.bytes16(ATTRS_BYTES_MAX, "attributes")?.to_vec();
    Ok(PayloadHead { attrs, len: chunk_len(r.u32()?)? })
}

fn lane(r: &mut Reader<'_>) -> Result<LaneRecord, WireError> {
    let tag = tag(r)?;
    let answer = match r.u8()? {
        answer_kind::DONE => Answer::Done(Outcome {
            chunk: chunk_id(r)?,
            version: version(r)?,
            content: content(r)?,
        }),
        answer_kind::EXISTS => Answer::Exists(version(r)?),
        answer_kind::NOT_FOUND => Answer::NotFound,
        _ => return Err(WireError::Field("answer")),
    };
    Ok(LaneRecord { tag, answer })
}

fn meta(r: &mut Reader<'_>) -> Result<Meta, WireError> {
    Ok(Meta {
        version: version(r)?,
        written: ChainVersion(r.u32()?),
        content: content(r)?,
        tag: tag(r)?,
    })
}

fn content(r: &mut Reader<'_>) -> Result<Content, WireError> {
    match r.u8()? {
        CONTENT_DATA => Ok(Content::Data { len: chunk_len(r.u32()?)?, crc: Crc32c(r.u32()?) }),
        CONTENT_TOMBSTONE => Ok(Content::Tombstone),
        _ => Err(WireError::Field("content")),
    }
}

fn tag(r: &mut Reader<'_>) -> Result<Tag, WireError> {
    let lane = Lane { client: u128::from_le_bytes(r.array()?), channel: r.u32()? };
    Ok(Tag { lane, sequence: r.u64()? })
}

fn chunk_id(r: &mut Reader<'_>) -> Result<ChunkId, WireError> {
    Ok(ChunkId(u128::from_le_bytes(r.array()?)))
}

fn version(r: &mut Reader<'_>) -> Result<ChunkVersion, WireError> {
    Ok(ChunkVersion(r.u64()?))
}

const fn chunk_len(len: u32) -> Result<u32, WireError> {
    if len as usize > CHUNK_BYTES_MAX { Err(WireError::Field("length")) } else { Ok(len) }
}

fn flag(r: &mut Reader<'_>) -> Result<bool, WireError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field("flag")),
    }
}

fn option<T>(
    r: &mut Reader<'_>,
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    Ok(if flag(r)? { Some(decode(r)?) } else { None })
}

/// At most `max` items of at least `each` bytes.
fn list<T>(
    r: &mut Reader<'_>,
    (max, each): (usize, usize),
    mut decode: impl FnMut(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let count = r.count(max, each, "count")?;
    (0..count).map(|_| decode(r)).collect()
}

/// Inserts the payload in its place.
pub(super) fn with_payload<P>(
    body: PeerBody<()>,
    payload: Option<P>,
) -> Result<PeerBody<P>, WireError> {
    let missing = WireError::Field("payload");
    Ok(match body {
        PeerBody::Forward { update, ready } => {
            let Update { chunk, tag, base, version, written, write, crc, durability } = update;
            let write = match write {
                Write::Whole(()) => Write::Whole(payload.ok_or(missing)?),
                Write::Part { offset, bytes: () } => {
                    Write::Part { offset, bytes: payload.ok_or(missing)? }
                }
                Write::Truncate { len } => Write::Truncate { len },
                Write::Tombstone => Write::Tombstone,
                Write::Collect => Write::Collect,
            };
            let update = Update { chunk, tag, base, version, written, write, crc, durability };
            PeerBody::Forward { update, ready }
        }
        PeerBody::Fetched { chunk, meta, bytes: () } => {
            PeerBody::Fetched { chunk, meta, bytes: payload.ok_or(missing)? }
        }
        PeerBody::Sync(step) => PeerBody::Sync(sync_with_payload(step, payload)?),
        PeerBody::Ready { chunk, version } => PeerBody::Ready { chunk, version },
        PeerBody::Ack { chunk, version, meta } => PeerBody::Ack { chunk, version, meta },
        PeerBody::Stale => PeerBody::Stale,
        PeerBody::TailQuery { nonce, chunk } => PeerBody::TailQuery { nonce, chunk },
        PeerBody::TailAnswer { nonce, committed } => PeerBody::TailAnswer { nonce, committed },
        PeerBody::LeaseAsk { sent } => PeerBody::LeaseAsk { sent },
        PeerBody::LeaseGrant { sent } => PeerBody::LeaseGrant { sent },
        PeerBody::JoinAsk => PeerBody::JoinAsk,
        PeerBody::JoinAnswer => PeerBody::JoinAnswer,
        PeerBody::Fetch { nonce, chunk } => PeerBody::Fetch { nonce, chunk },
        PeerBody::NoCopy { nonce, chunk } => PeerBody::NoCopy { nonce, chunk },
        PeerBody::Room(space) => PeerBody::Room(space),
    })
}

fn sync_with_payload<P>(step: SyncBody<()>, payload: Option<P>) -> Result<SyncBody<P>, WireError> {
    Ok(match step {
        SyncBody::Put { chunk, expect, meta, bytes: _ } => {
            SyncBody::Put { chunk, expect, meta, bytes: payload }
        }
        SyncBody::Lost { chunk, expect, meta, label: () } => {
            let label = payload.ok_or(WireError::Field("payload"))?;
            SyncBody::Lost { chunk, expect, meta, label }
        }
        SyncBody::Hello => SyncBody::Hello,
        SyncBody::Progress { cursor, done } => SyncBody::Progress { cursor, done },
        SyncBody::List { nonce, after, until, items } => {
            SyncBody::List { nonce, after, until, items }
        }
        SyncBody::Differ { nonce, until, items } => SyncBody::Differ { nonce, until, items },
        SyncBody::Has { chunk, meta } => SyncBody::Has { chunk, meta },
        SyncBody::Finish { lanes, complete_since } => SyncBody::Finish { lanes, complete_since },
    })
}
