//! A namespace at its limit: its head evicts its own blocks on all replicas, or refuses.

use super::*;
use millpond_types::wire::NamespaceTableReply;
use millpond_types::{ByteSize, NamespaceInfo};

const LEN: u64 = 64 << 10;

fn options(blocks: u64, evict: bool) -> NamespaceOptions {
    let quota = ByteSize(blocks * LEN);
    NamespaceOptions { quota, evict, ack: Ack::Disk, ..NamespaceOptions::default() }
}

impl Node {
    fn learn(&self, options: &NamespaceOptions) {
        let info = NamespaceInfo { id: GROUP, name: "small".to_owned(), options: options.clone() };
        let table = NamespaceTableReply { version: 1, namespaces: vec![info], dropping: vec![] };
        self.targets.namespaces(&table);
    }

    /// Puts a block as the service does.
    async fn put_within(&self, options: &NamespaceOptions, n: u32, len: u64) -> ItemStatus {
        self.put_as(options, (n, u64::from(n) + 1), len).await
    }

    async fn put_as(
        &self,
        options: &NamespaceOptions,
        (n, sequence): (u32, u64),
        len: u64,
    ) -> ItemStatus {
        let (key, value) = (key(n), vec![7; usize::try_from(len).unwrap()]);
        let issued = self.chain.version;
        let tag = (5, ItemTag { channel: 0, sequence, chain: self.chain.id, issued });
        let update = Update::new(GROUP, &key, Some(tag));
        let chunk = ChunkIds::UNKEYED.block(GROUP, &key);
        match self.host.admit((GROUP, options), &update, (chunk, len)).await {
            Ok(_admitted) => {
                let bytes = self.pool.try_copy(&value).unwrap().freeze();
                let bytes = (bytes, Crc32c::of(&value));
                self.host.put((GROUP, options), update, &key, bytes).await
            }
            Err(status) => status,
        }
    }

    async fn put_all(&mut self, options: &NamespaceOptions, ids: std::ops::Range<u32>) -> u32 {
        let mut stored = 0;
        for n in ids {
            if n % 8 == 0 {
                self.beat().await;
            }
            stored += u32::from(self.put_within(options, n, LEN).await == ItemStatus::Ok);
        }
        stored
    }

    async fn held(&self, ids: std::ops::Range<u32>) -> u32 {
        let mut held = 0;
        for n in ids {
            held += u32::from(self.get(&key(n)).await.is_ok());
        }
        held
    }

    /// Waits until this many blocks count: commits may come after their answers.
    async fn counts(&self, blocks: u64) {
        for _ in 0..100 {
            if self.host.quota_used(GROUP) == blocks * LEN {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("{} bytes count, not {blocks} blocks", self.host.quota_used(GROUP));
    }

    /// Waits until nothing is leaving; returns the blocks held then.
    async fn settled(&mut self) -> u64 {
        for _ in 0..20 {
            self.beat().await;
        }
        self.host.quota_used(GROUP) / LEN
    }
}

#[test]
fn an_evicting_namespace_gives_up_its_own_on_all_replicas_and_keeps_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let options = options(100, true);
        node.learn(&options);
        node.limit = Some(40 * LEN);
        node.beat().await;
        assert_eq!(node.put_all(&options, 0..200).await, 200);
        let used = node.settled().await;
        assert!((36..=40).contains(&used), "{used} blocks counted");
        assert_eq!(node.held(0..120).await, 0, "the oldest went");
        assert!(node.held(165..200).await >= 33, "the newest stay");
        assert_eq!(node.host.evicted_of(GROUP), 200 - used);
        for engine in &node.engines {
            assert_eq!(engine.group_usage(GROUP).bytes, used * LEN, "both replicas alike");
        }

        // A value of any size up to the quota is admitted; one that could never fit evicts nothing.
        assert_eq!(node.put_within(&options, 500, 101 * LEN).await, ItemStatus::Quota);
        assert_eq!(node.settled().await, used);
        // The limit shrinks: the background evicts the coldest blocks first.
        node.limit = Some(10 * LEN);
        let used = node.settled().await;
        assert!((8..=10).contains(&used), "{used} blocks counted");
        assert!(node.held(192..200).await >= 7);
    });
}

#[test]
fn what_does_not_evict_is_refused_at_the_limit_and_never_over_it() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let options = options(100, false);
        node.learn(&options);
        node.limit = Some(20 * LEN);
        node.beat().await;
        // All at once: puts under way count.
        let node = &node;
        let puts = (0..50).map(|n| node.put_within(&options, n, LEN));
        let statuses = futures_all(puts.collect()).await;
        let stored = statuses.iter().filter(|status| **status == ItemStatus::Ok).count();
        assert_eq!(stored, 20);
        assert_eq!(statuses.iter().filter(|status| **status == ItemStatus::Quota).count(), 30);
        node.counts(20).await;
        let again = node.put_as(&options, (0, 100), LEN).await;
        assert_eq!(again, ItemStatus::Exists, "it adds nothing");
        assert_eq!(node.delete(&key(3), 900).await, ItemStatus::Ok);
        node.counts(19).await;
        assert_eq!(node.put_as(&options, (60, 901), LEN).await, ItemStatus::Ok);
        assert_eq!(node.put_as(&options, (61, 902), LEN).await, ItemStatus::Quota);
        assert_eq!(node.host.evicted_of(GROUP), 0);
    });
}

/// Polls all until each has ended.
async fn futures_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        let mut all = true;
        for (future, done) in running.iter_mut().filter(|(_, done)| done.is_none()) {
            match future.as_mut().poll(context) {
                std::task::Poll::Ready(output) => *done = Some(output),
                std::task::Poll::Pending => all = false,
            }
        }
        if all { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, done)| done).collect()
}

#[test]
fn a_limit_goes_along_with_the_chains_it_is_for() {
    let folder = tempfile::tempdir().unwrap();
    for evict in [true, false] {
        let path = folder.path().join(evict.to_string());
        std::fs::create_dir(&path).unwrap();
        with_node(&path, 2, async |mut node| {
            node.all_serve().await;
            let options = options(100, evict);
            node.learn(&options);
            node.limit = Some(20 * LEN);
            node.beat().await;
            assert_eq!(node.put_all(&options, 0..20).await, 20);
            // The head goes: this node heads the chain with its other disk, and receives no limit
            // for it.
            node.limit = None;
            node.silent.push(node.chain.targets[0].target);
            node.until("another head", |chain| chain.serving().count() == 1).await;
            node.beat().await;
            assert_eq!(node.host.quota_used(GROUP), 20 * LEN, "counted where it is headed now");
            assert_eq!(node.settled().await, 20, "nothing goes for another head");
            let due = if evict { ItemStatus::Ok } else { ItemStatus::Quota };
            assert_eq!(node.put_within(&options, 50, LEN).await, due);
            assert_eq!(node.settled().await, 20, "and no room comes of it");
            // An answer from before is for other chains.
            let late = QuotaLimit { namespace: GROUP, limit_bytes: 0 };
            node.host.quotas().granted(RoutingVersion(1), &[late]);
            assert_eq!(node.settled().await, 20);
            node.limit = Some(30 * LEN);
            node.beat().await;
            assert_eq!(node.put_all(&options, 51..56).await, 5);
        });
    }
}

#[test]
fn what_is_held_is_counted_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(100, true);
    let mut chain = Chain::default();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        node.learn(&options);
        node.limit = Some(50 * LEN);
        node.beat().await;
        assert_eq!(node.put_all(&options, 0..30).await, 30);
        chain = node.chain.clone();
    });
    with_node(folder.path(), 2, async |mut node| {
        node.chain = chain;
        node.learn(&options);
        node.until("the absence noticed", |chain| chain.serving().count() == 0).await;
        node.all_serve().await;
        assert_eq!(node.host.quota_used(GROUP), 30 * LEN);
        assert_eq!(node.put_all(&options, 30..32).await, 2, "let through until the manager speaks");
        assert_eq!(node.settled().await, 32);
        node.limit = Some(20 * LEN);
        let used = node.settled().await;
        assert!((18..=20).contains(&used), "{used} blocks counted");
    });
}
