//! Random operations against a plain tree in memory: the same answers, and the same tree after
//! each.

use std::collections::{BTreeMap, HashSet};

use millpond_meta::Collected;
use millpond_types::meta::{
    Create, FileKind, Ino, MetaError, MetaOp, MetaReply, Quota, QuotaLimits, Rename, SetAttr,
    TrashChange, TrashPage,
};
use proptest::prelude::*;

use crate::flaky::Flaky;
use crate::support::{Client, Fixture, LEASE, create, rename};

/// The model's inode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: FileKind,
    mode: u16,
    size: u64,
    /// Bytes in the store; `None` once they lie in chunks.
    bytes: Option<Vec<u8>>,
    entries: BTreeMap<&'static str, u64>,
    /// The directory with the quota that it counts for; 0 for none.
    quota: u64,
    /// Whether it keeps removed entries.
    keeps: bool,
}

/// The tree; inodes by the numbers that the volume gave them.
#[derive(Clone, Debug)]
struct Model {
    nodes: BTreeMap<u64, Node>,
    /// The trash: directory and name by inode.
    trash: BTreeMap<u64, (u64, &'static str)>,
}

#[derive(Clone, Debug)]
enum Op {
    Create { dir: usize, name: &'static str, kind: FileKind, exclusive: bool },
    Link { from: (usize, &'static str), to: (usize, &'static str) },
    Unlink { dir: usize, name: &'static str },
    RemoveDir { dir: usize, name: &'static str },
    Rename { from: (usize, &'static str), to: (usize, &'static str), flag: u8 },
    SetMode { dir: usize, name: &'static str, mode: u16 },
    SetSize { dir: usize, name: &'static str, size: u64 },
    Write { dir: usize, name: &'static str, offset: u32, len: usize },
    Spill { dir: usize, name: &'static str },
    SetQuota { dir: usize, name: &'static str },
    Keep { dir: usize, keeps: bool },
    Restore { which: usize, name: &'static str },
    Drop { which: usize },
}

/// How long the trash keeps entries, in seconds: less than the time that passes at the end.
const KEEP_S: u32 = 60;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn place() -> impl Strategy<Value = (usize, &'static str)> {
    (0..6_usize, prop::sample::select(&NAMES[..]))
}

fn op() -> impl Strategy<Value = Op> {
    let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Directory, FileKind::Symlink];
    let kind = prop::sample::select(kinds.to_vec());
    prop_oneof![
        4 => (place(), kind, any::<bool>()).prop_map(|((dir, name), kind, exclusive)| {
            Op::Create { dir, name, kind, exclusive }
        }),
        2 => (place(), place()).prop_map(|(from, to)| Op::Link { from, to }),
        2 => place().prop_map(|(dir, name)| Op::Unlink { dir, name }),
        1 => place().prop_map(|(dir, name)| Op::RemoveDir { dir, name }),
        5 => (place(), place(), 0..4_u8).prop_map(|(from, to, flag)| Op::Rename { from, to, flag }),
        1 => (place(), 0..0o1000_u16).prop_map(|((dir, name), mode)| {
            Op::SetMode { dir, name, mode }
        }),
        1 => (place(), 0..9_u64).prop_map(|((dir, name), size)| Op::SetSize { dir, name, size }),
        3 => (place(), 0..9_u32, 0..5_usize).prop_map(|((dir, name), offset, len)| {
            Op::Write { dir, name, offset, len }
        }),
        1 => place().prop_map(|(dir, name)| Op::Spill { dir, name }),
        2 => place().prop_map(|(dir, name)| Op::SetQuota { dir, name }),
        2 => (0..6_usize, any::<bool>()).prop_map(|(dir, keeps)| Op::Keep { dir, keeps }),
        2 => (0..6_usize, prop::sample::select(&NAMES[..])).prop_map(|(which, name)| {
            Op::Restore { which, name }
        }),
        1 => (0..6_usize).prop_map(|which| Op::Drop { which }),
    ]
}

impl Model {
    fn new() -> Self {
        let (kind, entries) = (FileKind::Directory, BTreeMap::new());
        let root =
            Node { kind, mode: 0o755, size: 0, bytes: None, entries, quota: 0, keeps: false };
        Self { nodes: BTreeMap::from([(1, root)]), trash: BTreeMap::new() }
    }

    /// Returns the directories that names can be made in, in order.
    fn dirs(&self) -> Vec<u64> {
        let is_dir = |(ino, node): (&u64, &Node)| {
            (node.kind == FileKind::Directory && (*ino == 1 || self.nlink(*ino) > 0))
                .then_some(*ino)
        };
        self.nodes.iter().filter_map(is_dir).collect()
    }

    fn nlink(&self, ino: u64) -> u32 {
        let names = self.nodes.values().flat_map(|node| node.entries.values());
        let count = names.filter(|to| **to == ino).count();
        let node = &self.nodes[&ino];
        let is_dir = |to: &&u64| self.nodes[*to].kind == FileKind::Directory;
        let all = match node.kind {
            FileKind::Directory if count > 0 || ino == 1 => {
                2 + node.entries.values().filter(is_dir).count()
            }
            _ => count,
        };
        u32::try_from(all).unwrap()
    }

    fn entry(&self, dir: u64, name: &str) -> Option<u64> {
        self.nodes[&dir].entries.get(name).copied()
    }

    fn is_dir(&self, ino: u64) -> bool {
        self.nodes[&ino].kind == FileKind::Directory
    }

    fn lies_in(&self, dir: u64, above: u64) -> bool {
        dir == above
            || self.nodes[&above]
                .entries
                .values()
                .any(|to| self.is_dir(*to) && self.lies_in(dir, *to))
    }

    fn set(&mut self, dir: u64, name: &'static str, to: Option<u64>) {
        let entries = &mut self.nodes.get_mut(&dir).unwrap().entries;
        match to {
            Some(ino) => entries.insert(name, ino),
            None => entries.remove(name),
        };
    }

    /// Whether it may get a name in `dir` and lose its present one.
    fn may_move(&self, ino: u64, dir: u64) -> Result<(), MetaError> {
        let (quota, other) = (self.nodes[&ino].quota, self.nodes[&dir].quota);
        let moves = !self.is_dir(ino) && self.nlink(ino) == 1;
        if quota == other || quota == ino || moves { Ok(()) } else { Err(MetaError::CrossDevice) }
    }

    /// Gives it a name in `dir` in place of its present one.
    fn moved(&mut self, ino: u64, dir: u64) {
        let other = self.nodes[&dir].quota;
        let node = self.nodes.get_mut(&ino).unwrap();
        if node.quota != ino {
            node.quota = other;
        }
    }

    fn set_quota(&mut self, ino: u64) -> Result<(), MetaError> {
        let node = self.nodes.get_mut(&ino).unwrap();
        match node.kind {
            FileKind::Directory if node.entries.is_empty() || node.quota == ino => {
                node.quota = ino;
                Ok(())
            }
            FileKind::Directory => Err(MetaError::NotEmpty),
            _ => Err(MetaError::NotDirectory),
        }
    }

    /// Removes the name in `dir`, which may be the last one.
    fn gone(&mut self, dir: u64, name: &'static str, ino: u64) {
        if self.nlink(ino) == 0 && self.nodes[&dir].keeps {
            self.trash.insert(ino, (dir, name));
        }
    }

    /// Returns the entry of the trash with a number.
    fn trashed(&self, which: usize) -> Option<(u64, u64)> {
        let (ino, (dir, _)) = self.trash.iter().nth(which % self.trash.len().max(1))?;
        Some((*dir, *ino))
    }

    fn restore(&mut self, (dir, ino): (u64, u64), name: &'static str) -> Result<(), MetaError> {
        if dir != 1 && self.nlink(dir) == 0 {
            return Err(MetaError::NotFound);
        }
        if self.entry(dir, name).is_some() {
            return Err(MetaError::Exists);
        }
        self.trash.remove(&ino);
        self.moved(ino, dir);
        self.set(dir, name, Some(ino));
        Ok(())
    }

    fn rename(
        &mut self,
        (dir, name): (u64, &'static str),
        (new_dir, new_name): (u64, &'static str),
        flag: u8,
    ) -> Result<(), MetaError> {
        let source = self.entry(dir, name).ok_or(MetaError::NotFound)?;
        let there = self.entry(new_dir, new_name);
        if flag == 1 && there.is_some() {
            return Err(MetaError::Exists);
        }
        if there == Some(source) {
            return Ok(());
        }
        if self.is_dir(source) && self.lies_in(new_dir, source) {
            return Err(MetaError::Invalid);
        }
        self.may_move(source, new_dir)?;
        if flag == 2 {
            let there = there.ok_or(MetaError::NotFound)?;
            if self.is_dir(there) && self.lies_in(dir, there) {
                return Err(MetaError::Invalid);
            }
            self.may_move(there, dir)?;
            self.moved(source, new_dir);
            self.moved(there, dir);
            self.set(dir, name, Some(there));
            self.set(new_dir, new_name, Some(source));
            return Ok(());
        }
        if let Some(there) = there {
            match (self.is_dir(source), self.is_dir(there)) {
                (true, false) => return Err(MetaError::NotDirectory),
                (false, true) => return Err(MetaError::IsDirectory),
                (true, true) if !self.nodes[&there].entries.is_empty() => {
                    return Err(MetaError::NotEmpty);
                }
                _ => {}
            }
        }
        self.moved(source, new_dir);
        self.set(dir, name, None);
        self.set(new_dir, new_name, Some(source));
        if let Some(there) = there {
            self.gone(new_dir, new_name, there);
        }
        Ok(())
    }

    fn unlink(&mut self, dir: u64, name: &'static str) -> Result<(), MetaError> {
        let ino = self.entry(dir, name).ok_or(MetaError::NotFound)?;
        if self.is_dir(ino) {
            return Err(MetaError::IsDirectory);
        }
        self.set(dir, name, None);
        self.gone(dir, name, ino);
        Ok(())
    }

    fn rmdir(&mut self, dir: u64, name: &'static str) -> Result<(), MetaError> {
        let ino = self.entry(dir, name).ok_or(MetaError::NotFound)?;
        match &self.nodes[&ino] {
            node if node.kind != FileKind::Directory => Err(MetaError::NotDirectory),
            node if !node.entries.is_empty() => Err(MetaError::NotEmpty),
            _ => {
                self.set(dir, name, None);
                self.gone(dir, name, ino);
                Ok(())
            }
        }
    }
}

type Answers = (Result<(), MetaError>, Result<(), MetaError>);

async fn create_both(c: &Client, model: &mut Model, name: &'static str, wanted: Create) -> Answers {
    let (dir, kind) = (wanted.parent.0, wanted.kind);
    let answer = c.create(wanted.clone()).await;
    let expected = match model.entry(dir, name) {
        None => Ok(true),
        Some(_) if wanted.exclusive || kind != FileKind::Regular => Err(MetaError::Exists),
        Some(ino) if model.is_dir(ino) => Err(MetaError::IsDirectory),
        Some(ino) if model.nodes[&ino].kind == FileKind::Regular => Ok(false),
        Some(_) => Err(MetaError::Exists),
    };
    if let (Ok(entry), Ok(true)) = (&answer, expected) {
        let (mode, size) = (wanted.mode, wanted.target.len() as u64);
        let quota = model.nodes[&dir].quota;
        let keeps = model.nodes[&dir].keeps && kind == FileKind::Directory;
        let bytes = (kind == FileKind::Regular).then(Vec::new);
        let node = Node { kind, mode, size, bytes, entries: BTreeMap::new(), quota, keeps };
        assert!(model.nodes.insert(entry.attr.ino.0, node).is_none(), "a new number");
        model.set(dir, name, Some(entry.attr.ino.0));
    }
    assert_eq!(answer.as_ref().map(|entry| entry.created).map_err(|error| *error), expected);
    (answer.map(drop), expected.map(drop))
}

async fn trash_both(c: &Client, model: &mut Model, op: &Op) -> Option<Answers> {
    let (change, wanted) = match *op {
        Op::Keep { dir, keeps } => {
            let dirs = model.dirs();
            let dir = dirs[dir % dirs.len()];
            model.nodes.get_mut(&dir)?.keeps = keeps;
            let keep_s = if keeps { KEEP_S } else { 0 };
            (TrashChange::Keep { dir: Ino(dir), keep_s }, Ok(()))
        }
        Op::Restore { which, name } => {
            let (dir, ino) = model.trashed(which)?;
            let name_there = crate::support::name(name);
            let change = TrashChange::Restore { dir: Ino(dir), ino: Ino(ino), name: name_there };
            (change, model.restore((dir, ino), name))
        }
        Op::Drop { which } => {
            let (dir, ino) = model.trashed(which)?;
            model.trash.remove(&ino);
            (TrashChange::Drop { dir: Ino(dir), ino: Ino(ino) }, Ok(()))
        }
        _ => return None,
    };
    Some((c.run(MetaOp::Trash(change)).await.map(drop), wanted))
}

async fn set_both(c: &Client, model: &mut Model, op: &Op) -> Option<Answers> {
    let dirs = model.dirs();
    let find = |model: &Model, n: usize, name| model.entry(dirs[n % dirs.len()], name);
    let (ino, set, wanted) = match *op {
        Op::SetMode { dir, name, mode } => {
            let ino = find(model, dir, name)?;
            model.nodes.get_mut(&ino)?.mode = mode;
            (ino, SetAttr { mode: Some(mode), ..SetAttr::default() }, Ok(()))
        }
        Op::SetSize { dir, name, size } => {
            let ino = find(model, dir, name)?;
            let node = model.nodes.get_mut(&ino)?;
            let wanted = match node.kind {
                FileKind::Regular => {
                    node.size = size;
                    let len = usize::try_from(size).unwrap();
                    match &mut node.bytes {
                        bytes if size == 0 => *bytes = Some(Vec::new()),
                        Some(bytes) => bytes.resize(len, 0),
                        None => {}
                    }
                    Ok(())
                }
                FileKind::Directory => Err(MetaError::IsDirectory),
                _ => Err(MetaError::Invalid),
            };
            (ino, SetAttr { size: Some(size), ..SetAttr::default() }, wanted)
        }
        _ => return None,
    };
    Some((c.setattr(Ino(ino), set).await.map(drop), wanted))
}

/// Writes to a file, like a mount that has just read it, or moves it to chunks.
async fn write_both(c: &Client, model: &mut Model, op: &Op) -> Option<Answers> {
    let dirs = model.dirs();
    let (Op::Write { dir, name, .. } | Op::Spill { dir, name }) = *op else { return None };
    let ino = model.entry(dirs[dir % dirs.len()], name)?;
    let attr = c.getattr(Ino(ino)).await.unwrap();
    let node = model.nodes.get_mut(&ino)?;
    let is_file = node.kind == FileKind::Regular;
    let wanted = if is_file { Ok(()) } else { Err(MetaError::Invalid) };
    let answer = if let Op::Write { offset, len, .. } = *op {
        let written = vec![b'a' + u8::try_from(offset).unwrap(); len];
        if let Some(bytes) = node.bytes.as_mut().filter(|_| len > 0) {
            let (start, end) = (offset as usize, offset as usize + len);
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(&written);
            node.size = bytes.len() as u64;
        }
        c.write(attr, offset, &written).await
    } else {
        if is_file {
            node.bytes = None;
        }
        c.spill(attr, 0).await
    };
    if let Ok(attr) = &answer {
        assert_eq!(attr.is_stored(), node.bytes.is_some(), "{op:?}");
    }
    Some((answer.map(drop), wanted))
}

async fn trash_of(c: &Client, dir: u64) -> TrashPage {
    let list = MetaOp::TrashList { dir: Ino(dir), after: Ino(0), limit: 1000 };
    match c.run(list).await {
        Ok(MetaReply::Trash(page)) => page,
        other => panic!("{other:?}"),
    }
}

/// Does the same to both and compares the answers.
async fn both(c: &Client, model: &mut Model, op: &Op) {
    let dirs = model.dirs();
    let dir = |n: usize| dirs[n % dirs.len()];
    let (answer, wanted) = match *op {
        Op::Create { dir: n, name, kind, exclusive } => {
            let wanted = Create { exclusive, ..create(Ino(dir(n)), name, kind) };
            create_both(c, model, name, wanted).await
        }
        Op::Link { from, to } => {
            let Some(ino) = model.entry(dir(from.0), from.1) else { return };
            let answer = c.link(Ino(ino), Ino(dir(to.0)), to.1).await.map(drop);
            let wanted = match model.entry(dir(to.0), to.1) {
                _ if model.is_dir(ino) => Err(MetaError::NotPermitted),
                _ if model.nodes[&ino].quota != model.nodes[&dir(to.0)].quota => {
                    Err(MetaError::CrossDevice)
                }
                Some(_) => Err(MetaError::Exists),
                None => {
                    model.set(dir(to.0), to.1, Some(ino));
                    Ok(())
                }
            };
            (answer, wanted)
        }
        Op::Unlink { dir: n, name } => {
            (c.unlink(Ino(dir(n)), name).await.map(drop), model.unlink(dir(n), name))
        }
        Op::RemoveDir { dir: n, name } => {
            (c.rmdir(Ino(dir(n)), name).await.map(drop), model.rmdir(dir(n), name))
        }
        Op::Rename { from, to, flag } => {
            let wanted = Rename {
                no_replace: flag == 1,
                exchange: flag == 2,
                ..rename((Ino(dir(from.0)), from.1), (Ino(dir(to.0)), to.1))
            };
            let model = model.rename((dir(from.0), from.1), (dir(to.0), to.1), flag);
            (c.rename(wanted).await.map(drop), model)
        }
        Op::SetQuota { dir: n, name } => {
            let Some(ino) = model.entry(dir(n), name) else { return };
            let limits = QuotaLimits::default();
            let answer = c.run(MetaOp::SetQuota { dir: Ino(ino), limits }).await;
            (answer.map(drop), model.set_quota(ino))
        }
        Op::Keep { .. } | Op::Restore { .. } | Op::Drop { .. } => {
            let Some(answers) = trash_both(c, model, op).await else { return };
            answers
        }
        Op::Write { .. } | Op::Spill { .. } => {
            let Some(answers) = write_both(c, model, op).await else { return };
            answers
        }
        Op::SetMode { .. } | Op::SetSize { .. } => {
            let Some(answers) = set_both(c, model, op).await else { return };
            answers
        }
    };
    assert_eq!(answer, wanted, "{op:?}");
}

/// Checks that every inode of the model is in the volume, with the same attributes and entries.
async fn same(c: &Client, model: &Model) {
    for (ino, node) in &model.nodes {
        let attr = c.getattr(Ino(*ino)).await.unwrap();
        let seen = (attr.kind, attr.mode, attr.size, attr.nlink);
        assert_eq!(seen, (node.kind, node.mode, node.size, model.nlink(*ino)), "inode {ino}");
        if let Some(bytes) = &node.bytes {
            let mut found = c.content(Ino(*ino)).await.unwrap().bytes;
            found.resize(bytes.len(), 0);
            assert_eq!(&found, bytes, "bytes of inode {ino}");
        }
        if node.quota == *ino {
            let (root, limits) = (Ino(*ino), QuotaLimits::default());
            let counts = model.nodes.values().filter(|node| node.quota == *ino);
            let (bytes, inodes) = counts.fold((0, 0), |sum, n| (sum.0 + n.size, sum.1 + 1));
            let quota = Quota { root, limits, bytes, inodes };
            let answer = c.run(MetaOp::GetQuota { ino: root }).await;
            assert_eq!(answer, Ok(MetaReply::Quota(quota)));
        }
        if node.kind != FileKind::Directory {
            continue;
        }
        let page = trash_of(c, *ino).await;
        let kept: Vec<(u64, String)> =
            page.entries.iter().map(|entry| (entry.ino.0, entry.record.name.to_string())).collect();
        let wanted = model.trash.iter().filter(|(_, (dir, _))| dir == ino);
        let wanted: Vec<(u64, String)> =
            wanted.map(|(ino, (_, name))| (*ino, (*name).to_owned())).collect();
        assert_eq!((kept, page.keep_s > 0), (wanted, node.keeps), "the trash of {ino}");
        let listed = c.list_from(Ino(*ino), 0, 3).await;
        let listed: HashSet<(String, u64, FileKind)> =
            listed.iter().map(|e| (e.name.to_string(), e.ino.0, e.kind)).collect();
        let entry = |(name, to): (&&str, &u64)| ((*name).to_owned(), *to, model.nodes[to].kind);
        assert_eq!(listed, node.entries.iter().map(entry).collect(), "directory {ino}");
        for (name, to) in &node.entries {
            assert_eq!(c.lookup(Ino(*ino), name).await.unwrap().ino.0, *to);
            if model.is_dir(*to) {
                assert_eq!(c.getattr(Ino(*to)).await.unwrap().parent.0, *ino);
            }
        }
    }
}

/// Repeats until a store that loses answers has given one.
async fn collect(f: &Fixture) -> Collected {
    for _ in 0..100 {
        if let Ok(collected) = f.volume.collect().await {
            return collected;
        }
    }
    panic!("the store does not answer");
}

async fn agree(f: Fixture, ops: &[Op]) {
    let c = f.client().await;
    let mut model = Model::new();
    for op in ops {
        both(&c, &mut model, op).await;
        same(&c, &model).await;
    }
    f.assert_sound().await;
    // Nothing is left of nameless inodes once no session has them open.
    f.clock.advance(LEASE * 2);
    while collect(&f).await != Collected::default() {
        // A failed round gives sessions more time.
        f.clock.advance(LEASE * 2);
    }
    for ino in model.nodes.keys() {
        let gone = c.getattr(Ino(*ino)).await == Err(MetaError::Stale);
        assert_eq!(gone, model.nlink(*ino) == 0, "inode {ino}");
    }
    f.assert_sound().await;
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work);
}

proptest! {
    #[test]
    fn agrees_with_a_plain_tree(ops in prop::collection::vec(op(), 1..60)) {
        block_on(async { agree(Fixture::in_memory().await, &ops).await });
    }

    /// Lost answers change none of the answers that arrive.
    #[test]
    fn agrees_over_a_store_that_loses_answers(
        ops in prop::collection::vec(op(), 1..60),
        seed in any::<u64>(),
    ) {
        block_on(async {
            let store = Flaky::store(seed);
            agree(Fixture::new(store.clone(), store).await, &ops).await;
        });
    }
}
