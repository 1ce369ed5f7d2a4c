//! Quotas of namespaces on a node (RFC 0012).
//!
//! Counted are values on the chains that this node heads, by routing: committed ones, each once. The
//! primary answers heartbeats with the node's part of every quota, its *limit*. A put that goes over it
//! makes the head give up the namespace's own coldest blocks, through their chains; a namespace that
//! does not evict answers `Quota`, and counts what is under way too, so that it never holds more.
//!
//! A limit goes along with what it is for: when this node heads another chain, its limit grows by what
//! that holds, and shrinks when another node heads it. So no change of heads makes or takes room.
//!
//! Locks: an account's is taken with a shard of the engine locked, so nobody calls the engine under it.

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

/// A namespace at its limit gives up a 64th of it at least, so that choosing is paid once for many puts;
/// and no more than 8 MiB at once.
const BATCH_SHARE: u64 = 64;
const BATCH_BYTES_MAX: u64 = 8 << 20;
/// What is on its way out may be this share of the limit, or so many values: beyond it puts wait.
const LEAVING_SHARE: u64 = 16;
const LEAVING_VALUES: u64 = 4;
/// How often a put that waits looks again, and for how long it waits.
const LOOK: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_millis(500);
/// A version that is staged is decided within this time, or its replica has left its chain.
const STAGED: Duration = Duration::from_secs(10);
/// A node whose limit is used up says so this often at most, beside its usual heartbeats.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Bytes given up in one round of the background at most: some 2 GiB/s.
const ROUND_BYTES_MAX: u64 = 256 << 20;

/// The limit that a node goes by.
#[derive(Clone, Copy, Debug, Default)]
enum Limit {
    /// None was given yet and the disks held values before: what others may hold is not known.
    #[default]
    Unknown,
    /// None was given yet and there was nothing: an equal part of the quota.
    First,
    /// Given, and changed with what is headed since; below zero when less was given than went.
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
    /// Engine chunks that are being given up, with their bytes.
    leaving: HashMap<ChunkId, u64>,
    leaving_bytes: u64,
    asked: Option<Tick>,
}

/// What a node counts of one namespace.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Signed, since a block may be counted by one core and taken off by another.
    used: AtomicI64,
    evicted: AtomicU64,
    books: Mutex<Books>,
}

/// What becomes of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It goes on; its bytes count as under way.
    Passes,
    /// So many bytes should be given up first.
    Evict(u64),
    /// Much is being given up: look again in a moment.
    Wait,
    Refused(ItemStatus),
}

impl Account {
    fn add(&self, bytes: i64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A chain that holds so many bytes is headed here from now on, or no more.
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

    /// Judges a put of so many bytes; `tried` when what may go has been told to go.
    fn judge(&self, heads: Heads, len: u64, tried: bool) -> Verdict {
        let mut books = self.books.lock();
        let Some(rule) = books.rule else {
            // Dropped meanwhile.
            books.in_flight += len;
            return Verdict::Passes;
        };
        if len > rule.quota {
            // What could never fit must not cost what is there.
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

    /// How much the background should give up.
    fn excess(&self, heads: Heads) -> u64 {
        let books = self.books.lock();
        let Some(rule) = books.rule.filter(|rule| rule.evicts) else { return 0 };
        let Some(limit) = books.in_force(rule, heads) else { return 0 };
        let stays = self.used().saturating_sub(books.leaving_bytes);
        stays.saturating_sub(bytes_of(limit)).min(ROUND_BYTES_MAX)
    }

    /// A chunk is on its way out; false when it was already: several cores may choose the same one.
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

    /// Whether the manager should hear now that the limit is used up.
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

    /// A put that goes over the limit by `over` bytes. What other puts bring counts when it is decided
    /// how much goes, and not when it is decided whether this one may come: it cannot go yet.
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
        // One value always fits: the limit of a small quota in a large cluster may be less.
        if over > leaving && used.saturating_sub(leaving) + len > limit.max(len) {
            return Verdict::Refused(ItemStatus::Quota);
        }
        let most = (limit / LEAVING_SHARE).max(len * LEAVING_VALUES);
        if leaving > most { Verdict::Wait } else { Verdict::Passes }
    }
}

/// Whose chains are headed here, as of the newest routing.
#[derive(Clone, Copy, Debug, Default)]
struct Heads {
    /// Nodes that head any.
    nodes: u64,
    /// This node heads some.
    mine: bool,
    /// The routing since when it heads those it heads.
    since: RoutingVersion,
}

/// What a new table of namespaces changes.
#[derive(Debug, Default)]
pub(super) struct QuotaChanges {
    /// Whether a quota is another one than before, which the manager should hear of.
    pub(super) any: bool,
    /// Namespaces that have a quota now, and had none.
    pub(super) made: Vec<GroupId>,
    /// Namespaces that have none any more, and are there.
    pub(super) ended: Vec<GroupId>,
}

/// The quotas of a node.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    accounts: RwLock<HashMap<GroupId, Arc<Account>>>,
    heads: RwLock<Heads>,
    mine: RwLock<Arc<HashSet<TargetId>>>,
}

/// A put that was let in.
#[derive(Debug)]
struct UnderWay {
    account: Arc<Account>,
    len: u64,
    head: Arc<Hosted>,
    chunk: ChunkId,
}

/// A put that was let in: when this is dropped its bytes no longer count as under way, as soon as they
/// count as committed.
#[derive(Debug, Default)]
pub(crate) struct Admitted(Option<UnderWay>);

/// Whether a change of a chunk is not counted yet, although it may be answered: its commit or put waits for
/// the disk, or it was told that it may come yet.
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

    /// Notes whose chains are headed here.
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

    /// Takes in the namespaces; says what changed of their quotas. `holds` tells whether the disks hold
    /// anything of one.
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

    /// What a heartbeat says.
    pub(super) fn report(&self) -> Vec<QuotaReport> {
        let heads = self.heads();
        let report = |(group, account): (&GroupId, &Arc<Account>)| {
            let books = account.books.lock();
            let rule = books.rule?;
            Some(QuotaReport {
                namespace: *group,
                quota_bytes: rule.quota,
                evicts: rule.evicts,
                // What is under way will be committed: nobody else may have its room.
                used_bytes: account.used() + if rule.evicts { 0 } else { books.in_flight },
                limit_bytes: books.in_force(rule, heads).map_or(0, bytes_of),
            })
        };
        self.accounts.read().iter().filter_map(report).collect()
    }

    /// The manager answered, by this routing. Limits for other chains than are headed now are passed
    /// over: the next answer has the right ones.
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
    /// Tombstones, records of targets, chunks of files: no namespace's.
    fn is_free(group: GroupId) -> bool {
        matches!(group, GroupId::SYSTEM | GroupId::FILES)
    }

    /// Counts what a disk holds at the start.
    pub(super) fn found(&mut self, group: GroupId, len: u32) {
        if Self::is_free(group) {
            return;
        }
        *self.groups.entry(group).or_default() += u64::from(len);
    }

    /// A chunk of `before` bytes has `after` now.
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

    /// The node heads the chain from now on, or no more.
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

    /// Blocks of a namespace that were given up here to make room or to keep its quota, since the start.
    pub(crate) fn evicted_of(&self, group: GroupId) -> u64 {
        let accounts = self.quotas().accounts.read();
        accounts.get(&group).map_or(0, |account| account.evicted.load(Ordering::Relaxed))
    }

    /// Lets a put in, after the namespace gave up blocks of its own if need be; or answers it.
    ///
    /// It does not wait for what is on its way out, unless that is much: so a namespace may be over its
    /// limit by that, and by puts under way, for a moment.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        (group, options): (GroupId, &NamespaceOptions),
        update: &Update,
        (chunk, len): (ChunkId, u64),
    ) -> Result<Admitted, ItemStatus> {
        if options.quota.0 == 0 {
            return Ok(Admitted::default());
        }
        // Who is not the head says so, and what is there already is told, for every attempt alike.
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

    /// Gives up the coldest blocks of a namespace, first on one disk and then on the others: that keeps
    /// the disks as evenly filled as placement does.
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

    /// Gives up at most `max` blocks on one disk; how many bytes are on their way out.
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
                // Nothing else may remove what a slot on its way to another chain holds.
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
                // Else it would be given up again by another block.
                counted(&head, chunk).await;
                account.left(id, gone);
            })
            .detach();
        }
        leaving
    }

    /// Brings namespaces whose limit went down, or that are over it, down to it, a part at a time.
    pub(super) fn keep_quotas(self: &Arc<Self>) {
        for (group, account, excess) in self.quotas().over() {
            let each = excess.div_ceil(self.disks.len().max(1) as u64);
            let mut left = excess;
            // An equal part from every disk, then what is missing from those that have it.
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
