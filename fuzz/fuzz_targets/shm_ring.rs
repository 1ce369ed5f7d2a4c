#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_env::{RING_HEADER, RingConsumer, RingProducer, RingWake, ShmRegion};

const CAPACITY: u32 = 4096;
/// Offsets of the peer's counters.
const TAIL: u64 = 0;
const HEAD: u64 = 64;

thread_local! {
    static REGION: ShmRegion = ShmRegion::create("fuzz", (RING_HEADER + 4096) as usize)
        .expect("a memory file");
}

/// The peer writes arbitrary bytes to the ring: its counter, the records, then the counter again.
fn consume(region: &ShmRegion, data: &[u8]) {
    let Some((tail, rest)) = data.split_first_chunk::<4>() else { return };
    let Some((later, records)) = rest.split_first_chunk::<4>() else { return };
    let records = &records[..records.len().min(CAPACITY as usize)];
    let mut ring = RingConsumer::new(region.clone(), 0, CAPACITY, RingWake::Futex).expect("a ring");
    let mut record = Vec::new();
    region.copy_in(RING_HEADER, records).expect("within the region");
    for tail in [tail, later] {
        region.copy_in(TAIL, tail).expect("within the region");
        while let Ok(true) = ring.try_pop(&mut record) {
            assert!(record.len() <= CAPACITY as usize);
        }
    }
}

/// The peer writes arbitrary values to its read counter.
fn produce(region: &ShmRegion, data: &[u8]) {
    let mut ring = RingProducer::new(region.clone(), 0, CAPACITY, RingWake::Futex).expect("a ring");
    for head in data.chunks_exact(4) {
        region.copy_in(HEAD, head).expect("within the region");
        let len = usize::from(head[0]) * 8;
        let _ = ring.try_push(&[&data[..len.min(data.len())]]);
    }
}

fuzz_target!(|data: &[u8]| {
    REGION.with(|region| {
        region.copy_in(0, &[0; RING_HEADER as usize]).expect("within the region");
        consume(region, data);
        region.copy_in(0, &[0; RING_HEADER as usize]).expect("within the region");
        produce(region, data);
    });
});
