//! Quotas of namespaces on a node (RFC 0012).
//!
//! Counted are committed values on the chains that this node heads by routing, each once. The
//! primary answers heartbeats with the node's part of every quota, its *limit*. A put beyond the
//! limit makes the head evict the namespace's own coldest blocks, through their chains. A namespace
//! without eviction answers `Quota`, and counts puts under way too, so that it never holds more.
//!
//! A limit follows its chains: when this node becomes head of another chain, its limit grows by the
//! bytes on that chain, and it shrinks when another node takes over. So no change of heads makes or
//! takes room.
//!
//! Locks: an account's lock is taken with a shard of the engine locked, so the engine must not be
//! called under it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, sleep, spawn};
use millpond_types::cluster::{NodeId, QuotaLimit, QuotaReport, Routing, RoutingVersion, TargetId};
use millpond_types::wire::{ItemStatus, NamespaceTableReply};
use millpond_types::{ChunkId, GroupId, NamespaceOptions, Tick};
use parking_lot::{Mutex, RwLock};

use super::Host;
use super::attrs::{self, Block, engine_id};
use super::hosted::Hosted;
use super::update::Update;

/// A namespace at its limit evicts at least a 64th of it, so that one choice of blocks serves many
/// puts; and no more than 8 MiB at once.
const BATCH_SHARE: u64 = 64;
const BATCH_BYTES_MAX: u64 = 8 << 20;
/// Share of the limit, or number of values, that may be leaving at a time: beyond it puts wait.
const LEAVING_SHARE: u64 = 16;
const LEAVING_VALUES: u64 = 4;
/// Interval of looks by a waiting put, and the time limit of its wait.
const LOOK: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_millis(500);
/// Time within which a staged version is decided, or its replica has left its chain.
const STAGED: Duration = Duration::from_secs(10);
/// Shortest interval of reports that a limit is used up, beside the usual heartbeats.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Maximum bytes evicted in one background round: some 2 GiB/s.
const ROUND_BYTES_MAX: u64 = 256 << 20;

/// The limit that a node applies.
#[derive(Clone, Copy, Debug, Default)]
enum Limit {
    /// None was received yet, and the disks held values before: the use by other nodes is not
    /// known.
    #[default]
    Unknown,
    /// None was received yet, and the disks held nothing: an equal part of the quota.
    First,
    /// Received, and adjusted for chains gained and lost since; negative if more was lost than
    /// received.
    Given(i64),
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn bytes_of(limit: i64) -> u64 {
    u64::try_from(limit).unwrap_or(0)
}

/// The quota of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    quota: u64,
    evicts: bool,
}

#[derive(Debug, Default)]
struct Books {
    rule: Option<Rule>,
    limit: Limit,
    /// Bytes of puts under way.
    in_flight: u64,
    /// Engine chunks that are being evicted, with their bytes.
    leaving: HashMap<ChunkId, u64>,
    leaving_bytes: u64,
    asked: Option<Tick>,
}

/// Account of one namespace on a node.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Signed, since one core may add a block and another core subtract it.
    used: AtomicI64,
    evicted: AtomicU64,
    books: Mutex<Books>,
}

/// Decision about a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The put may go on; its bytes count as under way.
    Passes,
    /// This many bytes should be evicted first.
    Evict(u64),
    /// Too much is being evicted: look again in a moment.
    Wait,
    Refused(ItemStatus),
}

impl Account {
    fn add(&self, bytes: i64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds a chain of this size that is headed here from now on; negative for one that no longer
    /// is.
    fn shift(&self, heads: Heads, bytes: i64) {
        let mut books = self.books.lock();
        if let Some(limit) = books.rule.and_then(|rule| books.in_force(rule, heads)) {
            books.limit = Limit::Given(limit.saturating_add(bytes));
        }
        self.add(bytes);
    }

    /// Bytes committed on the chains that this node heads.
    fn used(&self) -> u64 {
        u64::try_from(self.used.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Decides about a put of `len` bytes; `tried` if evictions for it have been started.
    fn judge(&self, heads: Heads, len: u64, tried: bool) -> Verdict {
        let mut books = self.books.lock();
        let Some(rule) = books.rule else {
            // The namespace has been dropped in the meantime.
            books.in_flight += len;
            return Verdict::Passes;
        };
        if len > rule.quota {
            // A value that could never fit must not evict others.
            return Verdict::Refused(ItemStatus::Quota);
        }
        let (used, limit) = (self.used(), books.in_force(rule, heads).map(bytes_of));
        let over = (used + books.in_flight + len).saturating_sub(limit.unwrap_or(0));
        let verdict = match (rule.evicts, limit) {
            _ if over == 0 => Verdict::Passes,
            (false, Some(_)) => Verdict::Refused(ItemStatus::Quota),
            (false, None) => Verdict::Refused(ItemStatus::Busy),
            (true, None) => Verdict::Passes,
            (true, Some(limit)) => books.judge_evicting((used, limit), (len, over), tried),
        };
        if verdict == Verdict::Passes {
            books.in_flight += len;
        }
        verdict
    }

    /// Bytes that the background should evict.
    fn excess(&self, heads: Heads) -> u64 {
        let books = self.books.lock();
        let Some(rule) = books.rule.filter(|rule| rule.evicts) else { return 0 };
        let Some(limit) = books.in_force(rule, heads) else { return 0 };
        let stays = self.used().saturating_sub(books.leaving_bytes);
        stays.saturating_sub(bytes_of(limit)).min(ROUND_BYTES_MAX)
    }

    /// Notes that a chunk is leaving; false if it already was: several cores may choose the same
    /// one.
    fn leaves(&self, chunk: ChunkId, bytes: u64) -> bool {
        let mut books = self.books.lock();
        let std::collections::hash_map::Entry::Vacant(entry) = books.leaving.entry(chunk) else {
            return false;
        };
        entry.insert(bytes);
        books.leaving_bytes += bytes;
        true
    }

    fn left(&self, chunk: ChunkId, gone: bool) {
        let mut books = self.books.lock();
        if let Some(bytes) = books.leaving.remove(&chunk) {
            books.leaving_bytes -= bytes;
        }
        self.evicted.fetch_add(u64::from(gone), Ordering::Relaxed);
    }

    fn is_leaving(&self, chunk: ChunkId) -> bool {
        self.books.lock().leaving.contains_key(&chunk)
    }

    /// Whether the manager should learn now that the limit is used up.
    fn should_ask(&self, now: Tick) -> bool {
        let mut books = self.books.lock();
        let due = books.asked.is_none_or(|asked| now.since(asked) >= ASK_EVERY);
        if due {
            books.asked = Some(now);
        }
        due
    }
}

impl Books {
    /// The limit, if one is known.
    fn in_force(&self, rule: Rule, heads: Heads) -> Option<i64> {
        match self.limit {
            Limit::First if heads.mine => Some(signed(rule.quota / heads.nodes.max(1))),
            Limit::Unknown | Limit::First => None,
            Limit::Given(bytes) => Some(bytes),
        }
    }

    /// Decides about a put that exceeds the limit by `over` bytes. Bytes of other puts count
    /// towards the amount to evict, but not towards the decision about this put: they cannot be
    /// evicted yet.
    fn judge_evicting(
        &self,
        (used, limit): (u64, u64),
        (len, over): (u64, u64),
        tried: bool,
    ) -> Verdict {
        let leaving = self.leaving_bytes;
        if over > leaving && !tried {
            let batch = (limit / BATCH_SHARE).min(BATCH_BYTES_MAX);
            return Verdict::Evict((over - leaving).max(batch));
        }
        // One value always fits: the limit of a small quota in a large cluster may be smaller.
        if over > leaving && used.saturating_sub(leaving) + len > limit.max(len) {
            return Verdict::Refused(ItemStatus::Quota);
        }
        let most = (limit / LEAVING_SHARE).max(len * LEAVING_VALUES);
        if leaving > most { Verdict::Wait } else { Verdict::Passes }
    }
}

/// Heads of chains by the newest routing.
#[derive(Clone, Copy, Debug, Default)]
struct Heads {
    /// Number of nodes that head any chain.
    nodes: u64,
    /// Whether this node heads any chain.
    mine: bool,
    /// Routing version since which this node heads its present chains.
    since: RoutingVersion,
}

/// Changes by a new table of namespaces.
#[derive(Debug, Default)]
pub(super) struct QuotaChanges {
    /// Whether any quota has changed, which the manager should learn.
    pub(super) any: bool,
    /// Namespaces with a new quota that had none.
    pub(super) made: Vec<GroupId>,
    /// Existing namespaces that no longer have a quota.
    pub(super) ended: Vec<GroupId>,
}

/// The quotas of a node.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    accounts: RwLock<HashMap<GroupId, Arc<Account>>>,
    heads: RwLock<Heads>,
    mine: RwLock<Arc<HashSet<TargetId>>>,
}

/// An admitted put.
#[derive(Debug)]
struct UnderWay {
    account: Arc<Account>,
    len: u64,
    head: Arc<Hosted>,
    chunk: ChunkId,
}

/// An admitted put: after this is dropped, its bytes stop counting as under way as soon as they
/// count as committed.
#[derive(Debug, Default)]
pub(crate) struct Admitted(Option<UnderWay>);

/// Whether a change of a chunk is not counted yet, although it may have been answered: its commit
/// or put waits for the disk, or the answer was that it may still come.
fn comes(head: &Hosted, chunk: ChunkId) -> bool {
    head.state().is_uncounted(chunk)
}

/// Waits until changes of a chunk are counted.
async fn counted(head: &Hosted, chunk: ChunkId) {
    let until = RealClock::tick().plus(STAGED);
    while comes(head, chunk) && RealClock::tick() < until {
        sleep(LOOK).await;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let Some(UnderWay { account, len, head, chunk }) = self.0.take() else { return };
        let ended = move || {
            let mut books = account.books.lock();
            assert!(books.in_flight >= len, "an ended put was admitted before");
            books.in_flight -= len;
        };
        if !comes(&head, chunk) {
            return ended();
        }
        spawn(async move {
            counted(&head, chunk).await;
            ended();
        })
        .detach();
    }
}

impl Quotas {
    /// The account of a namespace.
    pub(super) fn account(&self, group: GroupId) -> Arc<Account> {
        if let Some(account) = self.accounts.read().get(&group) {
            return Arc::clone(account);
        }
        Arc::clone(self.accounts.write().entry(group).or_default())
    }

    /// Notes the chains that are headed here.
    pub(super) fn routing(&self, routing: &Routing, me: NodeId) {
        let heads = routing.chains.values().filter_map(|chain| chain.serving().next());
        let (mut nodes, mut mine) = (HashSet::new(), HashSet::new());
        for head in heads {
            nodes.insert(head.node);
            if head.node == me {
                mine.insert(head.target);
            }
        }
        let mut known = self.heads.write();
        known.nodes = nodes.len() as u64;
        known.mine = !mine.is_empty();
        if mine != **self.mine.read() {
            known.since = routing.version;
            *self.mine.write() = Arc::new(mine);
        }
    }

    fn heads(&self) -> Heads {
        *self.heads.read()
    }

    /// Takes the namespaces; returns the changes of their quotas. `holds` tells whether the disks
    /// hold any data of a namespace.
    pub(super) fn namespaces(
        &self,
        table: &NamespaceTableReply,
        holds: impl Fn(GroupId) -> bool,
    ) -> QuotaChanges {
        let mut changes = QuotaChanges::default();
        for info in &table.namespaces {
            let NamespaceOptions { quota, evict, .. } = &info.options;
            let rule = (quota.0 > 0).then_some(Rule { quota: quota.0, evicts: *evict });
            if rule.is_none() && !self.accounts.read().contains_key(&info.id) {
                continue;
            }
            let account = self.account(info.id);
            let mut books = account.books.lock();
            if books.rule == rule {
                continue;
            }
            changes.any = true;
            if books.rule.is_none() {
                books.limit = if holds(info.id) { Limit::Unknown } else { Limit::First };
                changes.made.push(info.id);
            } else if rule.is_none() {
                changes.ended.push(info.id);
            }
            books.rule = rule;
        }
        let known: HashSet<GroupId> = table.namespaces.iter().map(|info| info.id).collect();
        self.accounts.write().retain(|group, account| {
            let stays = known.contains(group);
            if !stays {
                account.books.lock().rule = None;
            }
            stays || account.used() > 0
        });
        changes
    }

    /// Content of a heartbeat.
    pub(super) fn report(&self) -> Vec<QuotaReport> {
        let heads = self.heads();
        let report = |(group, account): (&GroupId, &Arc<Account>)| {
            let books = account.books.lock();
            let rule = books.rule?;
            Some(QuotaReport {
                namespace: *group,
                quota_bytes: rule.quota,
                evicts: rule.evicts,
                // Puts under way will be committed: their room must not go to others.
                used_bytes: account.used() + if rule.evicts { 0 } else { books.in_flight },
                limit_bytes: books.in_force(rule, heads).map_or(0, bytes_of),
            })
        };
        self.accounts.read().iter().filter_map(report).collect()
    }

    /// Takes the manager's answer, based on this routing. Limits for other chains than those headed
    /// now are ignored: the next answer has the right ones.
    pub(super) fn granted(&self, at: RoutingVersion, limits: &[QuotaLimit]) {
        if at < self.heads().since {
            return;
        }
        for limit in limits {
            let account = self.accounts.read().get(&limit.namespace).cloned();
            if let Some(account) = account {
                account.books.lock().limit = Limit::Given(signed(limit.limit_bytes));
            }
        }
    }

    fn over(&self) -> Vec<(GroupId, Arc<Account>, u64)> {
        let heads = self.heads();
        let accounts = self.accounts.read();
        let over = accounts.iter().map(|(id, it)| (*id, Arc::clone(it), it.excess(heads)));
        over.filter(|(_, _, excess)| *excess > 0).collect()
    }
}

/// Bytes per namespace on one target, and whether this node heads its chain.
#[derive(Debug, Default)]
pub(super) struct Counted {
    groups: BTreeMap<GroupId, u64>,
    heads: bool,
}

impl Counted {
    /// Whether the group is no namespace: tombstones, records of targets, chunks of files.
    fn is_free(group: GroupId) -> bool {
        matches!(group, GroupId::SYSTEM | GroupId::FILES)
    }

    /// Counts a chunk found on a disk at the start.
    pub(super) fn found(&mut self, group: GroupId, len: u32) {
        if Self::is_free(group) {
            return;
        }
        *self.groups.entry(group).or_default() += u64::from(len);
    }

    /// Counts a change of a chunk from `before` to `after` bytes.
    pub(super) fn changed(&mut self, quotas: &Quotas, group: GroupId, before: u32, after: u32) {
        if Self::is_free(group) || before == after {
            return;
        }
        let bytes = self.groups.entry(group).or_default();
        *bytes = (*bytes + u64::from(after)).saturating_sub(u64::from(before));
        if *bytes == 0 {
            self.groups.remove(&group);
        }
        if self.heads {
            quotas.account(group).add(i64::from(after) - i64::from(before));
        }
    }

    /// Notes whether the node heads the chain from now on.
    pub(super) fn set_head(&mut self, quotas: &Quotas, heads: bool) {
        if std::mem::replace(&mut self.heads, heads) == heads {
            return;
        }
        for (group, bytes) in &self.groups {
            let bytes = if heads { signed(*bytes) } else { -signed(*bytes) };
            quotas.account(*group).shift(quotas.heads(), bytes);
        }
    }
}

impl Host {
    pub(super) fn quotas(&self) -> &Quotas {
        &self.around.quotas
    }

    /// Bytes of a namespace on the chains that this node heads, each value counted once.
    pub(crate) fn quota_used(&self, group: GroupId) -> u64 {
        self.quotas().accounts.read().get(&group).map_or(0, |account| account.used())
    }

    /// Counts a block of a namespace that made room on a disk.
    pub(super) fn count_evicted(&self, group: GroupId) {
        self.quotas().account(group).evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Blocks of a namespace that were evicted here, to make room or to keep its quota, since the
    /// start.
    pub(crate) fn evicted_of(&self, group: GroupId) -> u64 {
        let accounts = self.quotas().accounts.read();
        accounts.get(&group).map_or(0, |account| account.evicted.load(Ordering::Relaxed))
    }

    /// Admits a put, if need be after evictions from its namespace, or returns the answer to it.
    ///
    /// It waits for leaving blocks only if they are many: a namespace may exceed its limit for a
    /// moment, by leaving blocks and by puts under way.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        (group, options): (GroupId, &NamespaceOptions),
        update: &Update,
        (chunk, len): (ChunkId, u64),
    ) -> Result<Admitted, ItemStatus> {
        if options.quota.0 == 0 {
            return Ok(Admitted::default());
        }
        // Without a head here, or with the block present, the chain gives the answer, for every
        // attempt alike.
        let Some(head) = self.adds_at(update, chunk) else { return Ok(Admitted::default()) };
        let account = self.quotas().account(group);
        let until = RealClock::tick().plus(WAIT);
        let mut tried = false;
        loop {
            match account.judge(self.quotas().heads(), len, tried) {
                Verdict::Passes => {
                    return Ok(Admitted(Some(UnderWay { account, len, head, chunk })));
                }
                Verdict::Evict(bytes) => {
                    self.give_up((group, &account), head.disk, bytes);
                    tried = true;
                }
                Verdict::Wait if RealClock::tick() < until => {
                    sleep(LOOK).await;
                    tried = false;
                }
                Verdict::Wait => return Err(ItemStatus::Busy),
                Verdict::Refused(status) => {
                    if account.should_ask(RealClock::tick()) {
                        self.around.changed.notify_one();
                    }
                    return Err(status);
                }
            }
        }
    }

    /// Evicts the coldest blocks of a namespace, first on one disk and then on the others: that
    /// keeps the disks as evenly filled as placement does.
    fn give_up(
        self: &Arc<Self>,
        (group, account): (GroupId, &Arc<Account>),
        first: usize,
        bytes: u64,
    ) {
        let others = (0..self.disks.len()).filter(|disk| *disk != first);
        let mut left = bytes;
        for disk in std::iter::once(first).chain(others) {
            left = left.saturating_sub(self.give_up_on(disk, (group, account), left, usize::MAX));
            if left == 0 {
                return;
            }
        }
    }

    /// Evicts at most `max` blocks on one disk; returns the bytes that are leaving.
    fn give_up_on(
        self: &Arc<Self>,
        disk: usize,
        (group, account): (GroupId, &Arc<Account>),
        bytes: u64,
        max: usize,
    ) -> u64 {
        let (mine, routing) = (Arc::clone(&self.quotas().mine.read()), self.routing());
        let engine = &self.disks[disk].engine;
        let mut count = 0;
        let chosen = engine.coldest_of_group(group, bytes, |id, attrs| {
            if count >= max {
                return false;
            }
            let version = attrs::version(attrs).filter(|v| !v.staged && !v.tombstone);
            let wanted = version.is_some_and(|version| {
                let slot = Block::decode(&version.block).map(|block| block.slot);
                // Nothing else may remove chunks of a slot that moves to another chain.
                let stays = slot.is_ok_and(|slot| routing.place(slot).chain == version.chain);
                stays && mine.contains(&version.target) && !account.is_leaving(id)
            });
            count += usize::from(wanted);
            wanted
        });
        let mut leaving = 0;
        for (id, len) in chosen {
            let target = engine.attrs(id).and_then(|attrs| attrs::version(&attrs));
            let head = target.and_then(|version| self.replica(version.target));
            let Some(head) = head else { continue };
            if !account.leaves(id, len) {
                continue;
            }
            leaving += len;
            let (account, chunk) = (Arc::clone(account), engine_id(head.target, id));
            let removal = self.remove_own(Arc::clone(&head), chunk);
            spawn(async move {
                let gone = removal.await;
                // Otherwise another block would be evicted for the same bytes.
                counted(&head, chunk).await;
                account.left(id, gone);
            })
            .detach();
        }
        leaving
    }

    /// Brings namespaces above their limit, for instance after it shrank, down to it, a part at a
    /// time.
    pub(super) fn keep_quotas(self: &Arc<Self>) {
        for (group, account, excess) in self.quotas().over() {
            let each = excess.div_ceil(self.disks.len().max(1) as u64);
            let mut left = excess;
            // An equal part from every disk, then the rest from those that have it.
            for most in [each, excess] {
                for disk in 0..self.disks.len() {
                    let wanted = most.min(left);
                    let max = if wanted == 0 { 0 } else { self.may_remove() };
                    if max > 0 {
                        let leaving = self.give_up_on(disk, (group, &account), wanted, max);
                        left = left.saturating_sub(leaving);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_cores_choose_leaves_once() {
        let account = Account::default();
        let (one, other) = (ChunkId(1), ChunkId(2));
        assert!(account.leaves(one, 10) && account.leaves(other, 5));
        assert!(!account.leaves(one, 10));
        account.left(one, true);
        assert_eq!(account.books.lock().leaving_bytes, 5);
        account.left(one, false);
        account.left(other, true);
        let books = account.books.lock();
        assert_eq!((books.leaving_bytes, books.leaving.len()), (0, 0));
    }
}
