//! Many clients of two metas in few directories: afterwards every rule of the namespace holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::Rng;
use millpond_meta::{Records, VolumeError, check};
use millpond_store::{EmbeddedBackend, EmbeddedOptions, KeyRange, Page, Store};
use millpond_types::meta::{
    FileKind, Ino, MetaError, MetaOp, MetaReply, QuotaLimits, RecordRange, Rename, SetAttr,
    TrashChange, XattrMode, keys,
};

use crate::support::{Client, Fixture, create, rename};

const CLIENTS: u64 = 8;
const STEPS: u64 = 150;
/// How long two of the directories keep removed entries.
const KEEP_S: u32 = 3600;

/// Records read through two metas in turn.
struct ByTurns {
    c: [Client; 2],
    turn: AtomicUsize,
}

impl ByTurns {
    async fn ask(&self, op: MetaOp) -> MetaReply {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.c[turn % 2].run(op).await.unwrap()
    }
}

impl Records for ByTurns {
    async fn page(&self, range: KeyRange, values: bool) -> Result<Page, VolumeError> {
        let KeyRange { start, end } = range;
        let wanted = RecordRange { start, end: end.clone(), values };
        let MetaReply::Records(page) = self.ask(MetaOp::Records(wanted)).await else { panic!() };
        let rest = page.next.map(|start| KeyRange { start, end });
        Ok(Page { entries: page.entries, rest })
    }

    async fn at_once(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>, VolumeError> {
        match self.ask(MetaOp::RecordsAt { keys }).await {
            MetaReply::Values(values) => Ok(values),
            other => panic!("{other:?}"),
        }
    }
}

/// One random operation on a few names in a few directories.
async fn step(c: &Client, rng: &mut Rng, dirs: &[Ino]) -> Result<(), MetaError> {
    let names = ["a", "b", "c", "d"];
    let (dir, to) = (dirs[rng.index(dirs.len())], dirs[rng.index(dirs.len())]);
    let (name, other) = (names[rng.index(4)], names[rng.index(4)]);
    match rng.below(13) {
        0 => c.create(create(dir, name, FileKind::Regular)).await.map(drop),
        1 | 2 => c.create(create(dir, name, FileKind::Directory)).await.map(drop),
        3 => {
            let ino = c.lookup(dir, name).await?.ino;
            c.link(ino, to, other).await.map(drop)
        }
        4 => c.unlink(dir, name).await.map(drop),
        5 => c.rmdir(dir, name).await.map(drop),
        6 => c.rename(rename((dir, name), (to, other))).await.map(drop),
        7 => {
            // Into a directory that others move, fill and remove.
            let below = c.lookup(to, other).await?.ino;
            c.rename(rename((dir, name), (below, name))).await.map(drop)
        }
        8 => {
            let exchange = Rename { exchange: true, ..rename((dir, name), (to, other)) };
            c.rename(exchange).await.map(drop)
        }
        11 => {
            let file = c.lookup(dir, name).await?;
            c.write(file, u32::try_from(rng.below(9)).unwrap(), b"abc").await.map(drop)
        }
        12 => {
            let file = c.lookup(dir, name).await?;
            c.spill(file, rng.below(9)).await.map(drop)
        }
        9 => {
            let list = MetaOp::TrashList { dir, after: Ino(0), limit: 4 };
            let MetaReply::Trash(page) = c.run(list).await? else { panic!("a page") };
            let Some(entry) = page.entries.first() else { return Err(MetaError::NoData) };
            let (ino, name) = (entry.ino, crate::support::name(name));
            let change = match rng.below(3) {
                0 => TrashChange::Drop { dir, ino },
                _ => TrashChange::Restore { dir, ino, name },
            };
            c.run(MetaOp::Trash(change)).await.map(drop)
        }
        _ => {
            let ino = c.lookup(dir, name).await?.ino;
            c.setxattr(ino, "user.x", b"v", XattrMode::Any).await?;
            let size = SetAttr { size: Some(rng.below(3)), ..SetAttr::default() };
            c.setattr(ino, size).await.map(drop)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_holds_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let backend = EmbeddedBackend::open(&EmbeddedOptions::new(folder.path())).unwrap();
    let store = Store::new(Arc::new(backend));
    let f = Fixture::new(store.clone(), store).await;
    let first = f.client().await;
    let mut dirs = vec![Ino::ROOT];
    for text in ["x", "y", "z"] {
        dirs.push(first.dir(Ino::ROOT, text).await);
    }
    // Two of them have quotas, one of which is often full.
    for (dir, inodes) in [(dirs[1], 0), (dirs[2], 6)] {
        let limits = QuotaLimits { bytes: 0, inodes };
        first.run(MetaOp::SetQuota { dir, limits }).await.unwrap();
    }
    // Two keep removed entries, one of them with a quota as well.
    for dir in [dirs[2], dirs[3]] {
        first.run(MetaOp::Trash(TrashChange::Keep { dir, keep_s: KEEP_S })).await.unwrap();
    }
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..CLIENTS {
        let (volume, other) =
            if seed % 2 == 0 { (&f.volume, &f.other) } else { (&f.other, &f.volume) };
        let (mut c, mut rng, dirs) = (Client::open(volume).await, Rng::new(seed), dirs.clone());
        // Half of them are so impatient that both metas get every request.
        c.twin = Some(Arc::clone(other)).filter(|_| seed % 4 < 2);
        tasks.spawn(async move {
            let mut done = 0;
            for _ in 0..STEPS {
                match step(&c, &mut rng, &dirs).await {
                    Ok(()) => done += 1,
                    Err(MetaError::Io | MetaError::Again) => panic!("nothing is broken"),
                    Err(_) => {}
                }
            }
            done
        });
    }
    let mut done: u64 = 0;
    // A check during all this reports no false findings.
    while !tasks.is_empty() {
        let report = f.volume.check_in_batches(7).await.unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        f.other.collect().await.unwrap();
        if let Some(ended) = tasks.try_join_next() {
            done += ended.unwrap();
        }
        tokio::task::yield_now().await;
    }
    // One operation in six succeeds when they interleave well; how they are shared out among the
    // clients is chance.
    assert!(done > CLIENTS * STEPS / 20, "only {done} operations were done");
    f.assert_sound().await;
    for inodes_at_once in [1, 2, 1000] {
        let report = f.volume.check_in_batches(inodes_at_once).await.unwrap();
        assert_eq!(report, f.volume.check().await.unwrap(), "{inodes_at_once} at once");
    }
    // A check through metas finds the same.
    let by_turns = ByTurns { c: [first.clone(), first.at(&f.other)], turn: AtomicUsize::new(0) };
    assert_eq!(check(&by_turns, 7).await.unwrap(), f.volume.check().await.unwrap());
    f.clock.advance(Duration::from_secs(u64::from(KEEP_S)));
    // Without sessions all orphans go, and only the tree is left.
    f.clock.advance(crate::support::LEASE * 2);
    while f.volume.collect().await.unwrap() != millpond_meta::Collected::default() {}
    f.assert_sound().await;
    let kept = f.store.page(KeyRange::prefix(keys::TRASH), false).await.unwrap();
    assert!(kept.entries.is_empty() && kept.rest.is_none(), "their time is over");
}
