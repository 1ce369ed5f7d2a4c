#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::Crc32c;
use millpond_types::cluster::{
    ChainRecord, ClusterRecord, ConfigRecord, DiskRecord, EventRecord, HeadRecord, LeaseRecord,
    NodeRecord, SlotPage, TermRecord,
};
use millpond_types::wire::Record;

fn check<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(record) = R::open(bytes) {
        assert_eq!(R::open(&record.seal()).as_ref(), Ok(&record), "the value changed");
    }
}

// Random bytes almost never end with a valid checksum. The target appends one, so that the fuzzer
// reaches the decoder after the check.
fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    bytes.extend_from_slice(&Crc32c::of(data).0.to_le_bytes());
    check::<TermRecord>(&bytes);
    check::<LeaseRecord>(&bytes);
    check::<HeadRecord>(&bytes);
    check::<ClusterRecord>(&bytes);
    check::<NodeRecord>(&bytes);
    check::<DiskRecord>(&bytes);
    check::<ChainRecord>(&bytes);
    check::<SlotPage>(&bytes);
    check::<ConfigRecord>(&bytes);
    check::<EventRecord>(&bytes);
});
