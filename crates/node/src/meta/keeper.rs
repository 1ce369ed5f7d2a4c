//! What a meta does by itself: it learns how much room there is, and one of them (that of the primary
//! manager) removes what nobody can reach any more.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use millpond_client::{ChunkCut, Client, ClientOptions};
use millpond_env::{RealClock, sleep, thread};
use millpond_meta::Garbage;
use millpond_types::limits::GARBAGE_KEEP_MS;
use millpond_types::wire::Verb;
use millpond_types::{DataId, FileChunk, Tick};
use tokio::sync::oneshot;

use super::MetaRole;
use crate::admin::{self, Answer, Command};
use crate::member::Member;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);
/// Rounds between two looks at how much room there is: in a large cluster the answer is some MiB.
const ROOM_ROUNDS: u32 = 10;
/// Time for one question to the manager or the store.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files whose chunks are removed in one go.
const FILES_MAX: usize = 256;
/// Chunks removed by one call.
const CUTS_MAX: u32 = 1024;
/// Time for one such call.
const REMOVAL: Duration = Duration::from_secs(30);

/// Bytes to be removed, and where to say which of them are.
type Order = (Vec<Garbage>, oneshot::Sender<Vec<u64>>);

/// Runs on the control thread until the process stops.
pub(crate) async fn keep(member: Arc<Member>, token: Vec<u8>) {
    let Some(meta) = member.meta() else { return };
    let (mut remover, mut rounds) = (None, 0_u32);
    while !member.is_stopping() {
        sleep(EVERY).await;
        if !meta.knows_room() || rounds.is_multiple_of(ROOM_ROUNDS) {
            learn_room(&member, meta).await;
        }
        rounds = rounds.wrapping_add(1);
        if !member.manager().is_some_and(|manager| manager.is_primary()) {
            continue;
        }
        if let Err(failure) = meta.collect(until(PATIENCE)).await {
            tracing::debug!("removing what no name leads to: {failure}");
        }
        while let Ok(mut garbage) = meta.garbage(FILES_MAX, until(PATIENCE)).await {
            garbage.retain(is_old);
            if garbage.is_empty() || member.is_stopping() {
                break;
            }
            let orders = match &remover {
                Some(orders) => SyncSender::clone(orders),
                None => match start_remover(&member, &token) {
                    Ok(orders) => remover.insert(orders).clone(),
                    Err(error) => {
                        tracing::error!("removing bytes of files: {error}");
                        break;
                    }
                },
            };
            if !remove(meta, &orders, garbage).await {
                break;
            }
        }
    }
}

fn until(time: Duration) -> Tick {
    RealClock::tick().plus(time)
}

/// Whether nobody reads these bytes any more by what it heard of their file before.
fn is_old(garbage: &Garbage) -> bool {
    let since = garbage.record.since;
    let since_ms =
        u64::try_from(since.secs).unwrap_or(0) * 1000 + u64::from(since.nanos / 1_000_000);
    RealClock::wall_ms().saturating_sub(since_ms) >= GARBAGE_KEEP_MS
}

async fn learn_room(member: &Member, meta: &MetaRole) {
    let question = admin::encode_command(&Command::Status {});
    let Ok(reply) = member.answer(Verb::Admin, &question, until(PATIENCE)).await else { return };
    if let Ok(Answer::Status(status)) = admin::decode_answer(&reply) {
        meta.note_room(&status);
    }
}

/// Has chunks removed and then forgets them; false when nothing could be removed.
async fn remove(meta: &MetaRole, orders: &SyncSender<Order>, garbage: Vec<Garbage>) -> bool {
    let (sender, removed) = oneshot::channel();
    if orders.try_send((garbage, sender)).is_err() {
        return false;
    }
    let Ok(removed) = removed.await else { return false };
    let any = !removed.is_empty();
    any && meta.forget_garbage(removed, until(PATIENCE)).await.is_ok()
}

/// A thread of its own, since calls to the cluster block. It ends when nobody has orders any more.
fn start_remover(member: &Member, token: &[u8]) -> anyhow::Result<SyncSender<Order>> {
    let addresses = member.identity().addresses.join(",").parse()?;
    let mut options = ClientOptions::new(addresses);
    options.token = String::from_utf8_lossy(token).into_owned();
    let client = Client::new(options)?;
    let (orders, inbox) = sync_channel(1);
    let _runs_until_its_inbox_closes = thread("mp-remover", move || run(&client, &inbox))?;
    Ok(orders)
}

fn run(client: &Client, inbox: &Receiver<Order>) {
    for (garbage, answer) in inbox {
        let removed = garbage.iter().filter(|garbage| remove_chunks(client, garbage));
        let _ = answer.send(removed.map(|garbage| garbage.data).collect());
    }
}

/// Removes the chunks of some bytes; false when that must be tried again.
fn remove_chunks(client: &Client, garbage: &Garbage) -> bool {
    let Garbage { data, record } = garbage;
    // One more than its length asks for: a write that was cut off may have made it.
    let chunks = u32::try_from(record.layout.chunks(record.size) + 1).unwrap_or(u32::MAX);
    let mut index = 0;
    while index < chunks {
        let end = chunks.min(index + CUTS_MAX);
        let cut = |index| {
            let chunk = FileChunk { data: DataId(*data), index };
            ChunkCut { chain: record.layout.chain(index), chunk, to: None }
        };
        let cuts: Vec<ChunkCut> = (index..end).map(cut).collect();
        if let Err(error) = client.cut_chunks(&cuts, Some(REMOVAL)) {
            tracing::warn!("removing the bytes {data}: {error}");
            return false;
        }
        index = end;
    }
    true
}
