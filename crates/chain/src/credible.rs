//! Impossible messages: a message that no replica can send is refused and reported before it has
//! any effect.
//!
//! Peers are trusted with data, but not with this process: no assertion about local state may
//! depend on a peer's message.

use millpond_types::cluster::ChunkVersion;

use crate::message::{Answer, Meta, Payload, PeerBody, SyncBody, Update};

/// Highest credible version; no chunk changes that often. A version near the end of the number
/// range would leave none for the next update.
pub(crate) const VERSION_MAX: ChunkVersion = ChunkVersion(1 << 62);

/// The reason why the message is impossible; `None` for a possible one.
pub(crate) fn fault<P: Payload>(body: &PeerBody<P>) -> Option<&'static str> {
    match body {
        PeerBody::Forward { update, .. } => forward(update),
        PeerBody::Ready { version, .. } | PeerBody::TailAnswer { committed: version, .. } => {
            too_late(*version)
        }
        PeerBody::Ack { version, meta, .. } => {
            too_late(*version).or_else(|| meta.as_ref().and_then(known))
        }
        PeerBody::Fetched { meta, bytes, .. } => known(meta).or_else(|| fits(meta, bytes)),
        PeerBody::Sync(body) => sync(body),
        PeerBody::Stale
        | PeerBody::TailQuery { .. }
        | PeerBody::LeaseAsk { .. }
        | PeerBody::LeaseGrant { .. }
        | PeerBody::JoinAsk
        | PeerBody::JoinAnswer
        | PeerBody::Fetch { .. }
        | PeerBody::NoCopy { .. }
        | PeerBody::Room(_) => None,
    }
}

fn sync<P: Payload>(body: &SyncBody<P>) -> Option<&'static str> {
    match body {
        SyncBody::Hello | SyncBody::Progress { .. } => None,
        SyncBody::List { items, .. } => items.iter().find_map(|(_, meta)| known(meta)),
        SyncBody::Differ { items, .. } => {
            items.iter().filter_map(|(_, meta)| meta.as_ref()).find_map(known)
        }
        SyncBody::Put { expect, meta, bytes, .. } => {
            let versions = expect.iter().chain(meta).find_map(known);
            let both = meta.as_ref().zip(bytes.as_ref());
            versions.or_else(|| both.and_then(|(meta, bytes)| fits(meta, bytes)))
        }
        SyncBody::Lost { expect, meta, label, .. } => {
            let text = "bytes in a message about a lost version";
            let none = (label.len() > 0).then_some(text);
            none.or_else(|| expect.iter().chain([meta]).find_map(known))
        }
        SyncBody::Has { meta, .. } => meta.as_ref().and_then(known),
        SyncBody::Finish { lanes, .. } => lanes.iter().find_map(|lane| match lane.answer {
            Answer::Done(outcome) => too_late(outcome.version),
            Answer::Exists(version) => too_late(version),
            Answer::NotFound => None,
        }),
    }
}

fn forward<P>(update: &Update<P>) -> Option<&'static str> {
    let follows = update.base.0.checked_add(1) == Some(update.version.0);
    let text = "an update with a version that does not follow its base";
    if follows { too_late(update.version) } else { Some(text) }
}

fn known(meta: &Meta) -> Option<&'static str> {
    too_late(meta.version)
}

fn too_late(version: ChunkVersion) -> Option<&'static str> {
    (version > VERSION_MAX).then_some("a version above the limit")
}

fn fits<P: Payload>(meta: &Meta, bytes: &P) -> Option<&'static str> {
    let wrong = meta.data().is_some_and(|(len, _)| len as usize != bytes.len());
    wrong.then_some("bytes of a different length than their version")
}
