//! Two names with one chunk id: in a cluster without a secret they can be made on purpose. No
//! request under one name changes the data of the other or reveals it.

use super::*;
use crate::attrs::{Block, encode_file};
use crate::blob::Blob;
use crate::hosted::Hosted;
use crate::update::Change;
use millpond_chain::{Op, Reply};
use millpond_types::wire::{PlacedChunk, Verb};
use millpond_types::{DataId, FileChunk};

const EVIL: GroupId = GroupId(4);

impl Node {
    fn head(&self) -> Arc<Hosted> {
        self.host.all().into_iter().find(|hosted| hosted.is_head()).unwrap()
    }

    /// Stores `owner`'s bytes in the place of block `key` of [`EVIL`].
    async fn collide(&self, key: &BlockKey, owner: Vec<u8>, bytes: &[u8]) -> ChunkId {
        let chunk = ChunkIds::UNKEYED.block(EVIL, key);
        self.store_at(chunk, owner, bytes).await;
        chunk
    }

    async fn store_at(&self, chunk: ChunkId, owner: Vec<u8>, bytes: &[u8]) {
        let buffer = self.pool.try_copy(bytes).unwrap().freeze();
        let op = Op::Put(Blob::arrived(buffer, owner.into()));
        let change = Change { chunk, op, crc: Crc32c::of(bytes), durability: Ack::Disk };
        let head = self.head();
        head.change(self.host.own_tag(), change).await.unwrap();
    }

    fn evil(key: &BlockKey) -> KeysRequest {
        KeysRequest {
            namespace: EVIL,
            planned: Planned::default(),
            keys: vec![*key],
            leaders: Leaders::Own,
            tags: None,
        }
    }

    async fn asks(&self, verb: Verb, key: &BlockKey) -> ItemStatus {
        let request = Self::evil(key);
        let items = match verb {
            Verb::Delete => self.host.delete_keys(&request, &NamespaceOptions::default()).await,
            Verb::Pin => {
                self.host
                    .on_copies(&request, 16, async |host, disk, id| host.pin(disk, id, true).await)
                    .await
            }
            _ => self.host.on_keys(&request, 16, async |host, disk, id| host.touch(disk, id)).await,
        };
        items[0]
    }
}

fn attack(owner: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let key = key(1);
        let chunk = node.collide(&key, owner.to_vec(), b"bytes of others").await;
        let held = |node: &Node| {
            let head = node.head();
            head.store.version(chunk).filter(|version| !version.tombstone)
        };
        for verb in [Verb::Contains, Verb::Pin, Verb::Delete] {
            assert_eq!(node.asks(verb, &key).await, ItemStatus::Miss, "{verb:?}");
        }
        let update = Update::new(EVIL, &key, None);
        let bytes = node.pool.try_copy(b"evil").unwrap().freeze();
        let options = NamespaceOptions::default();
        let put = node.host.put((EVIL, &options), update, &key, (bytes, Crc32c::of(b"evil"))).await;
        assert_eq!(put, ItemStatus::Corrupt, "a put does not say that something is there");
        assert_eq!(held(&node).unwrap().block.as_ref(), owner);
    });
}

#[test]
fn a_block_that_shares_its_chunk_with_another_one_reaches_nothing_of_it() {
    let key = BlockKey::new(b"good").unwrap();
    let slot = millpond_types::placement::slot(GROUP, &key);
    let block = Block { group: GROUP, slot, expires: 0, priority: 1, evictable: true, key };
    attack(&block.encode());
}

#[test]
fn a_block_that_shares_its_chunk_with_a_files_reaches_nothing_of_it() {
    attack(&encode_file(FileChunk { data: DataId(8), index: 3 }));
}

#[test]
fn a_replica_refuses_bytes_under_an_id_that_is_not_their_owners() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        let ids = ChunkIds::new(Some(millpond_types::ClusterSecret([3; 16])));
        node.targets.admitted(ids);
        node.all_serve().await;
        let chunk = FileChunk { data: DataId(8), index: 3 };
        let at = PlacedChunk { chain: node.chain.id, chunk };
        let elsewhere = ids.block(EVIL, &key(1));
        let head = node.head();
        let buffer = node.pool.try_copy(b"a file's").unwrap().freeze();
        let op = Op::Put(Blob::arrived(buffer, encode_file(at.chunk).into()));
        let crc = Crc32c::of(b"a file's");
        let change = Change { chunk: elsewhere, op, crc, durability: Ack::Disk };
        let asked = head.change(node.host.own_tag(), change);
        // No replica stores it, so the head never answers: an impossible update is not decided.
        let late = millpond_env::timeout(Duration::from_millis(500), asked).await;
        assert!(!matches!(late, Ok(Some(Reply::Done(_)))), "{late:?}");
        node.all_serve().await;
        for hosted in node.host.all() {
            assert!(!hosted.store.has(elsewhere), "a file's bytes are a block now");
            assert!(hosted.store.staged_meta(elsewhere).is_none());
        }
        node.store_at(ids.file(chunk), encode_file(chunk), b"a file's").await;
        assert!(head.store.version(ids.file(chunk)).is_some());
    });
}
