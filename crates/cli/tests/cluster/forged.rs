//! A limited token against others' bytes: keys that are computed to have the chunk ids of a stranger's
//! blocks and files must touch none of them, and must not even tell that they are there.

use std::path::Path;
use std::time::Duration;

use millpond_client::{
    ChunkFilter, Client, ClientOptions, GetOutcome, Keys, OpenOptions, Room, Value, Volume,
    VolumeOptions,
};
use millpond_types::meta::Caller;
use millpond_types::wire::{ItemStatus, Leaders, NamespaceOpen, Verb};
use millpond_types::{
    BlockKey, ChunkId, ChunkIds, FileChunk, GroupId, NamespaceInfo, NamespaceOptions,
};

use crate::process::{Process, until};

/// The first 64 bytes of XXH3's secret, as words.
const SECRET: [u64; 8] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
];
const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;

/// The inverse of an odd number modulo 2^64, by Newton's iteration.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
}

fn undo_avalanche(mut value: u64) -> u64 {
    value ^= value >> 32;
    value = value.wrapping_mul(inverse(0x1656_6791_9e37_79f9));
    value ^ value >> 37
}

/// A key of namespace `group` whose XXH3-128 is `id`; `salt` gives many of them. Half of all ids have none.
///
/// XXH3 multiplies two words of its input, each combined with a word of a public secret, so a word that
/// equals its secret makes the product zero: what is left are sums and exclusive ors, which can be solved.
fn forge(group: GroupId, id: ChunkId, salt: u32) -> Option<BlockKey> {
    const LEN: u64 = 64;
    let bytes = id.to_bytes();
    let half = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let low = undo_avalanche(half(0));
    let high = undo_avalanche(half(8).wrapping_neg());
    // low = a + b; high = a * PRIME_1 + b * PRIME_4 + LEN * PRIME_2.
    let factor = PRIME_1.wrapping_sub(PRIME_4);
    let right =
        high.wrapping_sub(LEN.wrapping_mul(PRIME_2)).wrapping_sub(low.wrapping_mul(PRIME_4));
    let shift = factor.trailing_zeros();
    if right.trailing_zeros() < shift {
        return None;
    }
    let a = (right >> shift).wrapping_mul(inverse(factor >> shift));
    let b = low.wrapping_sub(a);
    let first = u64::from(group.0) | u64::from(salt) << 32;
    let words = [
        first,
        SECRET[1],
        SECRET[4],
        (b ^ first.wrapping_add(SECRET[1])).wrapping_sub(SECRET[4]),
        SECRET[6],
        0,
        SECRET[2],
        (a ^ LEN.wrapping_mul(PRIME_1) ^ SECRET[6]).wrapping_sub(SECRET[2]),
    ];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let key = BlockKey::new(&bytes[4..]).unwrap();
    // One solution of the two equations; a bit at the top may be lost with the shift.
    (ChunkIds::UNKEYED.block(group, &key) == id).then_some(key)
}

fn client(server: &Process, token: &str) -> Client {
    let mut options = ClientOptions::new(server.address.parse().unwrap());
    options.deadline = Duration::from_secs(30);
    token.clone_into(&mut options.token);
    Client::new(options).unwrap()
}

/// A namespace with a client that may use it.
struct Tenant {
    client: Client,
    namespace: NamespaceInfo,
}

impl Tenant {
    fn open(server: &Process, token: &str, name: &str) -> Self {
        let client = client(server, token);
        let options = NamespaceOptions { evict: false, ..NamespaceOptions::default() };
        let open = NamespaceOpen { name: name.to_owned(), create: true, options };
        let (namespace, _) = until("the namespace", || client.open_namespace(&open, None).ok());
        Self { client, namespace }
    }

    fn keys<'a>(&self, keys: &'a [BlockKey]) -> Keys<'a> {
        Keys {
            namespace: self.namespace.id,
            node: self.client.node().unwrap(),
            run_blocks: self.namespace.options.run_blocks,
            keys,
            leaders: &Leaders::Own,
        }
    }

    fn put(&self, key: BlockKey, bytes: &[u8]) -> ItemStatus {
        self.client.put(self.keys(&[key]), &[Value::One(bytes)], None).unwrap()[0]
    }

    fn get(&self, key: BlockKey) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 1 << 20];
        let got = self.client.get(self.keys(&[key]), &mut [Room::One(&mut bytes)], None).unwrap();
        let GetOutcome::Read(len) = got[0] else { return None };
        bytes.truncate(len as usize);
        Some(bytes)
    }

    fn on(&self, verb: Verb, key: BlockKey) -> ItemStatus {
        self.client.on_keys(verb, self.keys(&[key]), None).unwrap()[0]
    }

    /// All that a token can do to a key, and what it must be told each time: nothing of another's.
    fn attack(&self, key: BlockKey) {
        for verb in [Verb::Contains, Verb::Touch, Verb::Pin, Verb::Unpin, Verb::Delete] {
            assert_eq!(self.on(verb, key), ItemStatus::Miss, "{verb:?} tells of another's bytes");
        }
        assert_eq!(self.get(key), None);
        assert_eq!(self.put(key, b"evil"), ItemStatus::Ok, "a put tells of another's bytes");
        assert_eq!(self.get(key).as_deref(), Some(&b"evil"[..]));
        assert_eq!(self.on(Verb::Delete, key), ItemStatus::Ok);
    }
}

fn server(folder: &Path) -> Process {
    let tokens = folder.join("tokens");
    std::fs::write(&tokens, "for-everything\nfor-good-models good/*\nfor-evil-models evil/*\n")
        .unwrap();
    let whole = folder.join("whole");
    std::fs::write(&whole, "for-everything\n").unwrap();
    let config = folder.join("server.toml");
    std::fs::write(&config, format!("[cluster]\ntoken_file = \"{}\"\n", whole.display())).unwrap();
    let (tokens, config) = (tokens.display().to_string(), config.display().to_string());
    let flags = ["--manager", "--form-nodes", "1", "--token-file", &tokens, "--config", &config];
    Process::start(folder, "server", &flags)
}

#[test]
fn a_limited_token_reaches_no_block_of_others_by_its_chunk_id() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let good = Tenant::open(&server, "for-good-models", "good/models");
    let evil = Tenant::open(&server, "for-evil-models", "evil/models");
    let mut attacked = 0;
    for n in 0..16u32 {
        let key = BlockKey::new(format!("block {n}").as_bytes()).unwrap();
        until("the pool takes puts", || {
            (good.put(key, &n.to_le_bytes()) == ItemStatus::Ok).then_some(())
        });
        // What the ids of clusters without a secret are, and were everywhere.
        let id = ChunkIds::UNKEYED.block(good.namespace.id, &key);
        let Some(forged) = forge(evil.namespace.id, id, n) else { continue };
        attacked += 1;
        evil.attack(forged);
        assert_eq!(good.get(key).as_deref(), Some(&n.to_le_bytes()[..]), "block {n} is gone");
    }
    assert!(attacked >= 4, "only {attacked} keys could be forged: the attack is not one any more");
}

#[test]
fn a_limited_token_reaches_no_chunk_of_a_file_by_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let evil = Tenant::open(&server, "for-evil-models", "evil/models");
    let whole = client(&server, "for-everything");
    let caller = Caller { uid: 0, gid: 0, groups: Vec::new(), checked: false };
    let options = VolumeOptions { caller, ..VolumeOptions::new("a test") };
    let volume = Volume::with(client(&server, "for-everything"), options).unwrap();
    let (file, _) = until("files", || volume.open_file("file", &OpenOptions::CREATE).ok());
    let bytes: Vec<u8> = (0..24 << 20).map(|i: u32| (i % 251) as u8).collect();
    file.write_batch(&[(0, &bytes)]).unwrap();
    file.sync().unwrap();
    let node = whole.chains(None).unwrap().chains[0].nodes[0];
    let filter = ChunkFilter { data: None, chain: None };
    let chunks: Vec<FileChunk> = whole
        .list_chunks(node, filter, 0, None)
        .unwrap()
        .chunks
        .iter()
        .map(|found| found.at.chunk)
        .collect();
    assert!(!chunks.is_empty());
    let mut attacked = 0;
    for (chunk, salt) in chunks.iter().flat_map(|chunk| (0..8).map(move |salt| (chunk, salt))) {
        let id = ChunkIds::UNKEYED.file(*chunk);
        let Some(forged) = forge(evil.namespace.id, id, salt) else { continue };
        attacked += 1;
        evil.attack(forged);
    }
    assert!(attacked > 0, "no chunk of {} could be attacked", chunks.len());
    let mut read = vec![0; bytes.len()];
    file.read_batch(&mut [(0, &mut read)]).unwrap();
    assert!(read == bytes, "bytes of the file are gone");
}
