//! Background work of metas: each learns the free space. The one beside the primary manager also
//! removes unreachable data and moves files with many bytes in the store to chunks.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use millpond_client::{Address, ChunkCut, Client, ClientError, ClientOptions, OwnPlace, Volume};
use millpond_env::{RealClock, sleep, thread};
use millpond_meta::Garbage;
use millpond_types::cluster::Routing;
use millpond_types::limits::GARBAGE_KEEP_MS;
use millpond_types::meta::Ino;
use millpond_types::wire::{ChunkChange, PlacedChunk, Verb};
use millpond_types::{DataId, FileChunk, Tick};
use tokio::sync::oneshot;

use super::MetaRole;
use crate::admin::{self, Answer, Command};
use crate::member::Member;

/// Interval of rounds.
const EVERY: Duration = Duration::from_secs(1);
/// Rounds between two requests for the free space: in a large cluster the answer takes some MiB.
const ROOM_ROUNDS: u32 = 10;
/// Up to this number of disks the answer is small, and is requested every round.
const DISKS_FEW: usize = 64;
/// Pause between two rounds of collection while there is work: one round handles a thousand
/// orphans.
const GOES_ON: Duration = Duration::from_millis(50);
/// Time limit for one request to the manager or the store.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files per order to remove chunks.
const FILES_MAX: usize = 256;
/// Chunks removed by one call.
const CUTS_MAX: u32 = 1024;
/// Chunks beyond the end of a file that are looked for after its own were removed, and as many
/// again after each find. Writes with a length that no meta took (over a quota, or of a dead host)
/// made them.
const BEHIND: u32 = 16;
/// Time limit for one such call.
const REMOVAL: Duration = Duration::from_secs(30);

/// Pages of garbage without a removal after which a round ends.
const PAGES_IN_VAIN: u32 = 16;
/// Time from a start until answers are first forgotten, so that clients which waited for a meta
/// repeat their requests before; and the interval from then on.
const FORGET_FIRST: Duration = Duration::from_mins(1);
const FORGET_EVERY: Duration = Duration::from_mins(10);

/// Files moved to chunks in one go; and failures, each of which may take a time limit, after which
/// others get their turn.
const LARGE_MAX: usize = 64;
const FAILED_MAX: usize = 3;

/// Work with chunks.
enum Order {
    /// Bytes to be removed, and the sender for the data ids that were.
    Remove(Vec<Garbage>, oneshot::Sender<Vec<u64>>),
    /// Files to be moved to chunks, and the sender for the end of the attempt.
    Bring(Vec<Ino>, oneshot::Sender<()>),
}

/// Runs on the control thread until the process stops.
pub async fn keep(member: Arc<Member>, token: Vec<u8>) {
    let Some(meta) = member.meta() else { return };
    // A chain that does not answer, or a store with much to forget, must not delay the end of
    // sessions.
    tokio::join!(look(&member, meta), clean(&member, meta, &token), forget(&member, meta));
}

fn is_primary(member: &Member) -> bool {
    member.manager().is_some_and(|manager| manager.is_primary())
}

/// Learns the free space, ends sessions and advances orphans.
async fn look(member: &Member, meta: &MetaRole) {
    let (mut pause, mut room) = (EVERY, RealClock::tick());
    while !member.is_stopping() {
        sleep(pause).await;
        pause = EVERY;
        let now = RealClock::tick();
        if !meta.knows_room() || now >= room {
            let disks = learn_room(member, meta).await;
            let rounds = if disks <= DISKS_FEW { 1 } else { ROOM_ROUNDS };
            room = now.plus(EVERY * rounds);
        }
        if !is_primary(member) {
            continue;
        }
        match meta.collect(until(PATIENCE)).await {
            // Sessions that were asked about their orphans mostly answer soon; other open orphans
            // may stay for any time.
            Ok(done) if done.inodes > 0 || done.marked > 0 => pause = GOES_ON,
            Ok(_) => {}
            Err(failure) => tracing::debug!("cannot remove inodes without names: {failure}"),
        }
    }
}

/// Forgets answers of requests.
async fn forget(member: &Member, meta: &MetaRole) {
    let mut due = until(FORGET_FIRST);
    while !member.is_stopping() {
        sleep(EVERY).await;
        if !is_primary(member) {
            due = until(FORGET_FIRST);
        } else if RealClock::tick() >= due {
            // Answers left at the deadline are forgotten the next time.
            if let Err(failure) = meta.forget_answers(until(FORGET_EVERY)).await {
                tracing::debug!("cannot remove remembered answers: {failure}");
            }
            due = until(FORGET_EVERY);
        }
    }
}

/// Removes bytes, and moves files to chunks.
async fn clean(member: &Member, meta: &MetaRole, token: &[u8]) {
    let (mut worker, mut from) = (None, 0);
    while !member.is_stopping() {
        sleep(EVERY).await;
        if !is_primary(member) {
            continue;
        }
        let orders = match &worker {
            Some(orders) => SyncSender::clone(orders),
            None => match start_worker(member, token) {
                Ok(orders) => worker.insert(orders).clone(),
                Err(error) => {
                    tracing::error!("cannot start the removal of bytes of files: {error}");
                    continue;
                }
            },
        };
        from = remove_from(from, (member, meta), &orders).await;
        while let Ok(large) = meta.large(LARGE_MAX, until(PATIENCE)).await {
            let is_over = large.is_empty() || member.is_stopping();
            if is_over || !bring(meta, &orders, large).await {
                break;
            }
        }
    }
}

/// Removes garbage from a data id on while there is some; returns the id to continue at in the next
/// round.
async fn remove_from(
    mut from: u64,
    (member, meta): (&Member, &MetaRole),
    orders: &SyncSender<Order>,
) -> u64 {
    let mut in_vain = 0;
    while in_vain < PAGES_IN_VAIN && !member.is_stopping() {
        let page = meta.garbage((from, FILES_MAX), until(PATIENCE)).await;
        let Ok(mut garbage) = page else { return from };
        let Some(last) = garbage.last().map(|it| it.data) else { return 0 };
        let is_end = garbage.len() < FILES_MAX;
        let routing = member.routing();
        garbage.retain(|it| is_old(it) && is_served(it, &routing));
        if garbage.is_empty() || !remove(meta, orders, garbage).await {
            in_vain += 1;
        }
        if is_end {
            return 0;
        }
        from = last.saturating_add(1);
    }
    from
}

/// Whether all chains with chunks of this garbage serve; garbage on other chains is skipped.
fn is_served(garbage: &Garbage, routing: &Routing) -> bool {
    let chain = |index| routing.chains.get(&garbage.record.layout.chain(index));
    let some = 0..chunk_count(garbage).min(u32::from(garbage.record.layout.stripe.max(1)));
    some.map(chain).all(|chain| chain.is_some_and(|chain| chain.serving().next().is_some()))
}

fn until(time: Duration) -> Tick {
    RealClock::tick().plus(time)
}

/// Whether these bytes are so old that no client still reads them by its earlier knowledge of the
/// file.
fn is_old(garbage: &Garbage) -> bool {
    let since = garbage.record.since;
    let since_ms =
        u64::try_from(since.secs).unwrap_or(0) * 1000 + u64::from(since.nanos / 1_000_000);
    RealClock::wall_ms().saturating_sub(since_ms) >= GARBAGE_KEEP_MS
}

/// Requests the free space; returns the number of disks.
async fn learn_room(member: &Member, meta: &MetaRole) -> usize {
    let question = admin::encode_command(&Command::Status {});
    let Ok(reply) = member.answer(Verb::Admin, &question, until(PATIENCE)).await else { return 0 };
    let Ok(Answer::Status(status)) = admin::decode_answer(&reply) else { return 0 };
    meta.note_room(&status);
    status.disks.len()
}

/// Removes chunks and then forgets the garbage; false if nothing could be removed.
async fn remove(meta: &MetaRole, orders: &SyncSender<Order>, garbage: Vec<Garbage>) -> bool {
    let (sender, removed) = oneshot::channel();
    if orders.try_send(Order::Remove(garbage, sender)).is_err() {
        return false;
    }
    let Ok(removed) = removed.await else { return false };
    let any = !removed.is_empty();
    any && meta.forget_garbage(removed, until(PATIENCE)).await.is_ok()
}

/// Moves files to chunks and then forgets them; false if no files are left except those tried.
async fn bring(meta: &MetaRole, orders: &SyncSender<Order>, files: Vec<Ino>) -> bool {
    let (sender, tried) = oneshot::channel();
    let is_last = files.len() < LARGE_MAX;
    if orders.try_send(Order::Bring(files.clone(), sender)).is_err() || tried.await.is_err() {
        return false;
    }
    let forgotten = meta.forget_large(files.clone(), until(PATIENCE)).await.is_ok();
    // Files that stay would be tried again without a pause.
    let left = meta.large(LARGE_MAX, until(PATIENCE)).await;
    forgotten && !is_last && left.is_ok_and(|left| left.iter().all(|ino| !files.contains(ino)))
}

/// Starts a thread for calls to the cluster, since they block. It ends once the orders are dropped.
fn start_worker(member: &Member, token: &[u8]) -> anyhow::Result<SyncSender<Order>> {
    let identity = member.identity();
    let mut options = match &identity.here {
        Some(here) => {
            let address: Address = here.parse()?;
            let own_place = Some(OwnPlace { node: identity.node, address: address.clone() });
            ClientOptions { own_place, ..ClientOptions::new(address.into()) }
        }
        None => ClientOptions::new(identity.addresses.join(",").parse()?),
    };
    options.token = String::from_utf8_lossy(token).into_owned();
    let client = Client::new(options)?;
    let (orders, inbox) = sync_channel(1);
    let _runs_until_its_inbox_closes = thread("mp-keeper", move || run(&client, &inbox))?;
    Ok(orders)
}

fn run(client: &Client, inbox: &Receiver<Order>) {
    let mut volume = None;
    for order in inbox {
        match order {
            Order::Remove(garbage, answer) => {
                let _ = answer.send(remove_all(client, &garbage));
            }
            Order::Bring(files, answer) => {
                if let Err(error) = bring_to_chunks(client, &mut volume, &files) {
                    tracing::warn!(
                        "cannot move the bytes of {} files to chunks: {error}",
                        files.len()
                    );
                    // Its session may have ended.
                    volume = None;
                }
                let _ = answer.send(());
            }
        }
    }
}

/// Moves files to chunks; returns the last error if some failed.
fn bring_to_chunks(
    client: &Client,
    volume: &mut Option<Volume>,
    files: &[Ino],
) -> Result<(), ClientError> {
    let volume = match volume {
        Some(volume) => volume,
        none => none.insert(Volume::open(client.clone(), "keeper of the file namespace")?),
    };
    let failed = files.iter().filter_map(|ino| volume.bring_to_chunks(*ino).err());
    failed.take(FAILED_MAX).last().map_or(Ok(()), Err)
}

/// Chunks of some bytes: one more than their length needs, since an interrupted write may have made
/// it.
fn chunk_count(garbage: &Garbage) -> u32 {
    u32::try_from(garbage.record.layout.chunks(garbage.record.size) + 1).unwrap_or(u32::MAX)
}

/// Removes the chunks of all garbage; returns the data ids that were removed. Chunks of small files
/// go in one call, to all chains at once: one file at a time would not keep up with clients that
/// replace files all day.
fn remove_all(client: &Client, garbage: &[Garbage]) -> Vec<u64> {
    let is_small = |it: &&Garbage| !it.record.is_sealed && chunk_count(it) <= CUTS_MAX / 8;
    let (small, large): (Vec<&Garbage>, Vec<&Garbage>) = garbage.iter().partition(is_small);
    let mut removed = Vec::with_capacity(garbage.len());
    let (mut some, mut cuts) = (Vec::new(), Vec::new());
    let mut flush = |some: &mut Vec<&Garbage>, cuts: &mut Vec<ChunkCut>| {
        if client.cut_chunks(cuts, Some(REMOVAL)).is_ok() {
            removed.extend(some.iter().map(|it| it.data));
        } else {
            // One of them failed; the others must not wait for it.
            let one_by_one = some.iter().filter(|it| remove_chunks(client, it));
            removed.extend(one_by_one.map(|it| it.data));
        }
        (some.clear(), cuts.clear())
    };
    for garbage in small {
        cuts.extend((0..chunk_count(garbage)).map(|index| cut(garbage, index)));
        some.push(garbage);
        if cuts.len() >= CUTS_MAX as usize / 2 {
            flush(&mut some, &mut cuts);
        }
    }
    if !cuts.is_empty() {
        flush(&mut some, &mut cuts);
    }
    removed.extend(large.iter().filter(|it| remove_chunks(client, it)).map(|it| it.data));
    let is_removed = |it: &&Garbage| removed.contains(&it.data);
    let left: Vec<&Garbage> = garbage.iter().filter(is_removed).collect();
    let left =
        left.chunks((CUTS_MAX / BEHIND) as usize).flat_map(|some| remove_behind(client, some));
    let left: Vec<u64> = left.collect();
    removed.retain(|data| !left.contains(data));
    removed
}

/// Removes chunks beyond the ends of files; returns the data ids to try again.
fn remove_behind(client: &Client, garbage: &[&Garbage]) -> Vec<u64> {
    let mut from: Vec<(&Garbage, u32)> = garbage.iter().map(|it| (*it, chunk_count(it))).collect();
    while !from.is_empty() {
        let end = |first: u32| first.saturating_add(BEHIND);
        let cuts = from.iter().map(|(it, first)| (*first..end(*first)).map(|at| cut(it, at)));
        match remove_there(client, &cuts.map(Iterator::collect).collect::<Vec<_>>()) {
            Ok(found) => {
                let more = from.into_iter().zip(found).filter(|(_, found)| *found);
                from = more.map(|((it, first), _)| (it, end(first))).collect();
            }
            Err(error) => {
                tracing::warn!("cannot remove the bytes after the ends of files: {error}");
                return from.into_iter().map(|(it, _)| it.data).collect();
            }
        }
    }
    Vec::new()
}

/// Removes the chunks of those groups that have any; returns whether each had.
fn remove_there(client: &Client, groups: &[Vec<ChunkCut>]) -> Result<Vec<bool>, ClientError> {
    let places = groups.iter().flatten().map(|it| PlacedChunk { chain: it.chain, chunk: it.chunk });
    let mut stats = client.stat_chunks(&places.collect::<Vec<_>>(), Some(REMOVAL))?.into_iter();
    let mut is_there =
        |group: &Vec<ChunkCut>| stats.by_ref().take(group.len()).flatten().count() > 0;
    let found: Vec<bool> = groups.iter().map(&mut is_there).collect();
    let there = groups.iter().zip(&found).filter(|(_, found)| **found);
    let there: Vec<ChunkCut> = there.flat_map(|(group, _)| group).copied().collect();
    if !there.is_empty() {
        client.cut_chunks(&there, Some(REMOVAL))?;
    }
    Ok(found)
}

fn cut(Garbage { data, record }: &Garbage, index: u32) -> ChunkCut {
    let chunk = FileChunk { data: DataId(*data), index };
    ChunkCut { chain: record.layout.chain(index), chunk, change: ChunkChange::Collect }
}

/// Removes the chunks of some bytes; false if this must be tried again.
fn remove_chunks(client: &Client, garbage: &Garbage) -> bool {
    let Garbage { data, record } = garbage;
    let chunks = chunk_count(garbage);
    let mut index = 0;
    while index < chunks {
        let end = chunks.min(index + CUTS_MAX);
        let cuts: Vec<ChunkCut> = (index..end).map(|index| cut(garbage, index)).collect();
        if let Err(error) = client.cut_chunks(&cuts, Some(REMOVAL)) {
            tracing::warn!("cannot remove the bytes {data}: {error}");
            return false;
        }
        index = end;
    }
    !record.is_sealed || remove_seals(client, garbage)
}

/// Removes the seals of some bytes, which no longer protect anything.
fn remove_seals(client: &Client, Garbage { data, record }: &Garbage) -> bool {
    let chunk = FileChunk { data: DataId(*data), index: FileChunk::SEAL };
    let seal = |chain| ChunkCut { chain, chunk, change: ChunkChange::Collect };
    let seals: Vec<ChunkCut> = record.layout.all_chains().map(seal).collect();
    let mut some = seals.chunks(CUTS_MAX as usize);
    some.all(|some| match client.cut_chunks(some, Some(REMOVAL)) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!("cannot remove the seals of the bytes {data}: {error}");
            false
        }
    })
}
