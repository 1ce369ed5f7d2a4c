//! Places of the disk that cannot be read or written: one chunk is damaged, the rest keeps working.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use millpond_engine::check;
use millpond_env::{Buf, Disk, FakeDisk, SharedBuf};
use millpond_types::ChunkId;
use parking_lot::Mutex;

use crate::harness::{
    Ack, Engine, EngineError, ErrorKind, Fault, FaultKind, Rig, block_on, get, patch, put, value,
};

/// A disk with places that cannot be read.
#[derive(Clone)]
struct Scratched {
    disk: FakeDisk,
    bad: Arc<Mutex<Vec<Range<u64>>>>,
}

impl Scratched {
    fn over(rig: &Rig) -> Self {
        Self { disk: rig.disk.clone(), bad: Arc::default() }
    }

    /// Makes the first block of these bytes unreadable; they occur once on the disk.
    fn scratch(&self, bytes: &[u8]) {
        let block = &bytes[..bytes.len().min(4096)];
        let holds = |at: &u64| {
            let mut page = vec![0; block.len()];
            self.disk.peek(*at, &mut page);
            page == block
        };
        let found: Vec<u64> = self.disk.written_blocks().into_iter().filter(holds).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        self.bad.lock().push(found[0]..found[0] + 4096);
    }

    fn open(&self, rig: &Rig) -> Result<Engine<Self>, EngineError> {
        let (clock, options) = (Arc::new(rig.clock.clone()), rig.options.clone());
        block_on(Engine::open(self.clone(), rig.pool.clone(), clock, options))
    }
}

impl Disk for Scratched {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn first_write_is_dear(&self) -> bool {
        self.disk.first_write_is_dear()
    }

    fn takes_room(&self) -> bool {
        self.disk.takes_room()
    }

    async fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.reserve(offset, len).await
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Buf, io::Result<()>) {
        let end = offset + buf.len() as u64;
        if self.bad.lock().iter().any(|bad| bad.start < end && offset < bad.end) {
            return (buf, Err(io::Error::from_raw_os_error(5)));
        }
        self.disk.read(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: SharedBuf) -> io::Result<()> {
        self.disk.write(offset, buf).await
    }

    async fn sync(&self) -> io::Result<()> {
        self.disk.sync().await
    }

    async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.discard(offset, len).await
    }
}

fn kind<D: Disk>(e: &Engine<D>, id: u128) -> ErrorKind {
    block_on(e.read(ChunkId(id))).unwrap_err().kind()
}

/// A disk with chunk 1, chunk 2 made of it by a patch that only the log has, and chunk 3, written
/// last.
fn patched() -> (Rig, Vec<u8>) {
    let rig = Rig::new(24);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 9000), Ack::Disk)).unwrap();
    block_on(patch(&e, (1, 2), 5000, b"new")).unwrap().unwrap();
    block_on(put(&e, 3, &value(3, 9000), Ack::Disk)).unwrap();
    let mut two = value(1, 9000);
    two[5000..5003].copy_from_slice(b"new");
    (rig, two)
}

#[test]
fn a_disk_opens_with_an_unreadable_base_below_patches() {
    let (rig, _) = patched();
    let disk = Scratched::over(&rig);
    disk.scratch(&value(1, 9000));
    let errors = block_on(check(&disk, &rig.pool)).unwrap().errors;
    assert_eq!(errors.len(), 2, "{errors:?}");
    let e = disk.open(&rig).unwrap();
    assert_eq!([kind(&e, 1), kind(&e, 2)], [ErrorKind::Corrupt; 2]);
    assert_eq!(get(&e, 3), Some(value(3, 9000)));
    // It can be replaced, like a chunk that another replica repairs.
    block_on(put(&e, 2, &value(7, 9000), Ack::Disk)).unwrap();
    block_on(e.checkpoint()).unwrap();
    drop(e);
    let e = disk.open(&rig).unwrap();
    assert_eq!([get(&e, 2), get(&e, 3)], [Some(value(7, 9000)), Some(value(3, 9000))]);
}

#[test]
fn one_read_that_fails_while_a_disk_opens_costs_no_chunk() {
    let mut opened = 0;
    for after in 0..12 {
        let (rig, two) = patched();
        rig.disk.inject(Fault::eio(FaultKind::Read, after));
        let e = match rig.try_open() {
            Ok(e) => {
                opened += 1;
                e
            }
            Err(error) => {
                // The fault hit the superblock or the log.
                assert_eq!(error.kind(), ErrorKind::Io, "{after}: {error}");
                rig.open()
            }
        };
        let all = [1, 2, 3].map(|id| get(&e, id));
        assert_eq!(all, [Some(value(1, 9000)), Some(two), Some(value(3, 9000))], "{after}");
    }
    assert!(opened > 1, "{opened}");
}

#[test]
fn a_fold_of_a_restart_goes_elsewhere_when_its_slab_cannot_be_written() {
    let (rig, two) = patched();
    rig.disk.inject(Fault::eio(FaultKind::Write, 0));
    let e = rig.open();
    assert_eq!(get(&e, 2), Some(two.clone()));
    assert_eq!(e.stats().used_bytes, 4 * 12_288, "the bad slab stays away for a minute");
    rig.clock.advance(std::time::Duration::from_secs(61));
    block_on(e.maintain()).unwrap();
    assert_eq!(e.stats().used_bytes, 3 * 12_288);
    drop(e);
    assert_eq!(get(&rig.open(), 2), Some(two));
}

#[test]
fn a_disk_that_takes_no_writes_does_not_open_and_keeps_what_it_has() {
    let (rig, two) = patched();
    for after in 0..8 {
        rig.disk.inject(Fault::eio(FaultKind::Write, after));
    }
    assert_eq!(rig.try_open().unwrap_err().kind(), ErrorKind::Io);
    // The other faults, which the log's writes may hit.
    while rig.try_open().is_err() {}
    assert_eq!(get(&rig.open(), 2), Some(two));
}

#[test]
fn an_unreadable_last_write_is_not_undone() {
    let rig = Rig::new(24);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 9000), Ack::Disk)).unwrap();
    block_on(put(&e, 1, &value(2, 9000), Ack::Disk)).unwrap();
    drop(e);
    let disk = Scratched::over(&rig);
    disk.scratch(&value(2, 9000));
    for _ in 0..2 {
        let e = disk.open(&rig).unwrap();
        assert_eq!(kind(&e, 1), ErrorKind::Corrupt, "what was acknowledged before does not return");
    }
    disk.bad.lock().clear();
    assert_eq!(get(&disk.open(&rig).unwrap(), 1), Some(value(2, 9000)));
}

#[test]
fn a_bad_place_is_damage_and_a_dead_disk_is_not() {
    let mut rig = Rig::new(24);
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    rig.options.on_damaged = Some(Arc::new(move |id| to.lock().push(id.0)));
    let disk = Scratched::over(&rig);
    let e = disk.open(&rig).unwrap();
    for id in [1, 2] {
        block_on(put(&e, id.into(), &value(id, 200_000), Ack::Disk)).unwrap();
    }
    assert!(e.reclaim(1 << 30) > 0);
    disk.scratch(&value(1, 200_000));
    assert_eq!(kind(&e, 1), ErrorKind::Corrupt);
    let part = |range| block_on(e.read_range(ChunkId(1), range));
    assert_eq!(part(10..20).unwrap_err().kind(), ErrorKind::Corrupt);
    let other = part(150_000..150_010).unwrap().unwrap();
    assert_eq!(other.bytes[..], value(1, 200_000)[150_000..150_010]);
    assert_eq!(block_on(e.verify(ChunkId(1))).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(block_on(e.scrub_pass()).unwrap(), 1);
    assert_eq!(std::mem::take(&mut *told.lock()), [1; 4]);
    assert_eq!(get(&e, 2), Some(value(2, 200_000)));
    // The whole disk: no one can repair every chunk of a dead disk.
    assert!(e.reclaim(1 << 30) > 0);
    disk.bad.lock().push(0..disk.capacity());
    assert_eq!([kind(&e, 1), kind(&e, 2)], [ErrorKind::Io; 2]);
    assert_eq!(block_on(e.scrub_pass()).unwrap_err().kind(), ErrorKind::Io);
    assert!(told.lock().is_empty());
    disk.bad.lock().pop();
    // Good bytes replace the damaged ones, elsewhere on the disk.
    block_on(put(&e, 1, &value(1, 200_000), Ack::Disk)).unwrap();
    assert!(e.reclaim(1 << 30) > 0);
    assert_eq!(block_on(e.scrub_pass()).unwrap(), 0);
    assert_eq!(get(&e, 1), Some(value(1, 200_000)));
}

#[test]
fn without_others_an_unreadable_chunk_goes_when_it_may() {
    let rig = Rig::new(24);
    let disk = Scratched::over(&rig);
    let e = disk.open(&rig).unwrap();
    for (id, evictable) in [(1, true), (2, false)] {
        let bytes = crate::harness::buf(&e, &value(id, 9000));
        let request = crate::harness::request(bytes, Ack::Disk);
        let request = crate::harness::WriteRequest { evictable, ..request };
        block_on(e.write(ChunkId(id.into()), request)).unwrap();
        disk.scratch(&value(id, 9000));
    }
    assert!(e.reclaim(1 << 30) > 0);
    assert_eq!(block_on(e.read(ChunkId(1))).unwrap().map(|data| data.bytes.len()), None);
    assert_eq!(kind(&e, 2), ErrorKind::Corrupt);
    assert!(e.lookup(ChunkId(1)).is_none() && e.lookup(ChunkId(2)).is_some());
}

#[test]
fn compaction_goes_on_around_an_unreadable_chunk() {
    let bytes_of = |id: u128| value(u64::try_from(id).unwrap(), 4000);
    let mut rig = Rig::new(16);
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    rig.options.on_damaged = Some(Arc::new(move |id| to.lock().push(id.0)));
    let disk = Scratched::over(&rig);
    let e = disk.open(&rig).unwrap();
    for id in 0..2000 {
        block_on(put(&e, id, &bytes_of(id), Ack::Disk)).unwrap();
    }
    let gone: Vec<ChunkId> = (0..2000).filter(|id| id % 4 != 0).map(ChunkId).collect();
    block_on(e.delete(&gone, Ack::Disk)).unwrap();
    // It is in the segment that was filled last and has the fewest chunks, which is emptied first.
    disk.scratch(&bytes_of(1900));
    let before = e.stats();
    for _ in 0..20 {
        block_on(e.maintain()).unwrap();
    }
    let after = e.stats();
    assert!(after.free_segments > before.free_segments, "{before:?} {after:?}");
    assert_eq!(after.used_bytes, before.used_bytes);
    assert!(told.lock().iter().all(|id| *id == 1900) && !told.lock().is_empty());
    let _ = e.reclaim(1 << 30);
    assert_eq!(kind(&e, 1900), ErrorKind::Corrupt);
    let others = || (0..2000).step_by(4).filter(|id| *id != 1900);
    assert!(others().all(|id| get(&e, id) == Some(bytes_of(id))));
    block_on(put(&e, 1900, &bytes_of(1900), Ack::Disk)).unwrap();
    block_on(e.maintain()).unwrap();
    assert_eq!(e.stats().used_bytes, before.used_bytes);
    let _ = e.reclaim(1 << 30);
    assert_eq!(get(&e, 1900), Some(bytes_of(1900)), "it is repaired");
}
