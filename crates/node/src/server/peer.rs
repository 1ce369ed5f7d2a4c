//! Receiving what replicas on other nodes say: a message and, straight into a buffer of the pool,
//! the chunk's bytes.

use std::rc::Rc;

use millpond_chain::Head;
use millpond_types::wire::{FrameHeader, WireError};

use super::conn::Conn;
use super::frames::{Ended, Frames};
use crate::replica::Blob;

/// Receives one message and hands it to its replica. Nothing is answered.
///
/// # Errors
/// [`Ended`] when the connection ends, breaks the protocol, or its credential does not allow this.
pub(super) async fn receive(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
) -> Result<(), Ended> {
    let allowed = conn.scope().is_some_and(|scope| scope.is_unlimited());
    let host = conn.shared.service.host().cloned().filter(|_| allowed);
    let head = Head::decode(frames.meta(header).await?);
    let len = header.payload_len as usize;
    let Some(host) = host else {
        // A node that was set up alone, or a token for some namespaces only.
        frames.skip(len).await?;
        return Err(Ended::Refused);
    };
    let head = head?;
    let payload = match &head.payload {
        Some(payload) if payload.len as usize == len => {
            let Ok(buf) = conn.shared.service.alloc(len) else {
                // The pool is full: the message is lost, and will be said again.
                return frames.skip(len).await;
            };
            let attrs = payload.attrs.as_slice().into();
            let buf = frames.payload(buf, 0).await?;
            Some(Blob::arrived(buf.freeze(), attrs))
        }
        None if len == 0 => None,
        _ => return Err(WireError::Field("payload length").into()),
    };
    host.deliver(head.finish(payload)?);
    Ok(())
}
