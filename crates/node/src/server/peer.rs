//! Receiving messages of other nodes about chains: a message and, straight into a buffer of the
//! pool, the chunk's bytes.

use std::rc::Rc;
use std::sync::Arc;

use millpond_chain::Head;
use millpond_types::wire::{FrameHeader, SlotAnswer, SlotAsk, SlotOp, Verb, WireError};

use super::conn::Conn;
use super::control::as_node;
use super::frames::{Ended, Frames};
use super::session::run_now_or_spawn;
use millpond_replica::{Blob, Host, LABEL_BYTES_MAX};

/// The host of replicas for a message from another node. A sender without the nodes' secret
/// receives an error, although these verbs have no reply, and the connection ends.
///
/// # Errors
/// [`Ended::Refused`].
fn host(conn: &Rc<Conn>, header: &FrameHeader, verb: Verb) -> Result<Arc<Host>, Ended> {
    if let Err(failure) = as_node(conn, verb) {
        conn.begin(header, verb).fail(&failure);
        return Err(Ended::Refused);
    }
    conn.shared.service.host().cloned().ok_or(Ended::Refused)
}

/// Receives a payload into a buffer of the pool; `None` if the pool is full: the message is lost
/// and will be repeated.
async fn payload(
    conn: &Conn,
    frames: &mut Frames,
    (len, attrs): (usize, &[u8]),
) -> Result<Option<Blob>, Ended> {
    let Ok(buf) = conn.shared.service.alloc(len) else {
        frames.skip(len).await?;
        return Ok(None);
    };
    let buf = frames.payload(buf, 0).await?;
    Ok(Some(Blob::arrived(buf.freeze(), attrs.into())))
}

/// Receives one message and hands it to its replica. Nothing is answered.
///
/// # Errors
/// [`Ended`] if the connection ends, breaks the protocol, or its credential does not allow this.
pub(super) async fn receive(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
) -> Result<(), Ended> {
    let head = Head::decode(frames.meta(header).await?);
    let len = header.payload_len as usize;
    let host = match host(conn, header, Verb::Peer) {
        Ok(host) => host,
        Err(refused) => {
            frames.skip(len).await?;
            return Err(refused);
        }
    };
    // Unreadable messages count as refused ones: no correct replica sends either.
    let refused = |error: WireError| {
        host.note_refused();
        Ended::from(error)
    };
    let head = head.map_err(refused)?;
    let blob = match &head.payload {
        // The disk has no room for more beside a chunk, and a refused write stops the replica as a
        // failed disk does.
        Some(expected) if expected.attrs.len() > LABEL_BYTES_MAX => {
            return Err(refused(WireError::Field("attributes")));
        }
        Some(expected) if expected.len as usize == len => {
            let blob = payload(conn, frames, (len, &expected.attrs)).await?;
            let Some(blob) = blob else { return Ok(()) };
            Some(blob)
        }
        None if len == 0 => None,
        _ => return Err(refused(WireError::Field("payload length"))),
    };
    host.deliver(head.finish(blob).map_err(refused)?);
    Ok(())
}

/// Receives a question, or an answer, of the head of another chain about a moving slot.
///
/// # Errors
/// Those of [`receive`].
pub(super) async fn receive_slot(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
    verb: Verb,
) -> Result<(), Ended> {
    let meta = frames.meta(header).await?.to_vec();
    let len = header.payload_len as usize;
    let host = match host(conn, header, verb) {
        Ok(host) => host,
        Err(refused) => {
            frames.skip(len).await?;
            return Err(refused);
        }
    };
    let refused = |error: WireError| {
        host.note_refused();
        Ended::from(error)
    };
    if verb == Verb::SlotAnswer && len == 0 {
        host.slot_answered(SlotAnswer::decode(&meta).map_err(refused)?);
        return Ok(());
    }
    let ask = SlotAsk::decode(&meta, len).map_err(refused)?;
    if ask.attrs.len() > LABEL_BYTES_MAX {
        return Err(refused(WireError::Field("attributes")));
    }
    let mut blob = None;
    if ask.op == SlotOp::Import {
        blob = payload(conn, frames, (len, &ask.attrs)).await?;
        if blob.is_none() {
            return Ok(());
        }
    }
    run_now_or_spawn(host.slot_asked(ask, blob)).await;
    Ok(())
}
