//! Receiving what other nodes say of chains: a message and, straight into a buffer of the pool,
//! the chunk's bytes.

use std::rc::Rc;
use std::sync::Arc;

use millpond_chain::Head;
use millpond_types::wire::{FrameHeader, SlotAnswer, SlotAsk, SlotOp, Verb, WireError};

use super::conn::Conn;
use super::frames::{Ended, Frames};
use super::session::run_now_or_spawn;
use crate::replica::{Blob, Host};

/// The host of replicas that a message from another node is for. A credential for some namespaces
/// only does not allow to speak as a node.
fn host(conn: &Conn) -> Option<Arc<Host>> {
    let allowed = conn.scope().is_some_and(|scope| scope.is_unlimited());
    conn.shared.service.host().cloned().filter(|_| allowed)
}

/// Receives a payload into a buffer of the pool; `None` when that is full: the message is lost, and
/// will be said again.
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
/// [`Ended`] when the connection ends, breaks the protocol, or its credential does not allow this.
pub(super) async fn receive(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
) -> Result<(), Ended> {
    let head = Head::decode(frames.meta(header).await?);
    let len = header.payload_len as usize;
    let Some(host) = host(conn) else {
        frames.skip(len).await?;
        return Err(Ended::Refused);
    };
    let head = head?;
    let blob = match &head.payload {
        Some(expected) if expected.len as usize == len => {
            let blob = payload(conn, frames, (len, &expected.attrs)).await?;
            let Some(blob) = blob else { return Ok(()) };
            Some(blob)
        }
        None if len == 0 => None,
        _ => return Err(WireError::Field("payload length").into()),
    };
    host.deliver(head.finish(blob)?);
    Ok(())
}

/// Receives what the head of one chain asks, or answers, that of another about a slot that moves.
///
/// # Errors
/// As for [`receive`].
pub(super) async fn receive_slot(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
    verb: Verb,
) -> Result<(), Ended> {
    let meta = frames.meta(header).await?.to_vec();
    let len = header.payload_len as usize;
    let Some(host) = host(conn) else {
        frames.skip(len).await?;
        return Err(Ended::Refused);
    };
    if verb == Verb::SlotAnswer && len == 0 {
        host.slot_answered(SlotAnswer::decode(&meta)?);
        return Ok(());
    }
    let ask = SlotAsk::decode(&meta, len)?;
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
