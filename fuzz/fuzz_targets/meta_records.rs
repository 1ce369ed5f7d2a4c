#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::Crc32c;
use millpond_types::meta::object::{
    AttachmentRecord, Backing, KeyState, PartRecord, QueueRecord, UploadRecord,
};
use millpond_types::meta::{
    ContentRecord, CounterRecord, DirTimes, EntryRecord, GarbageRecord, InodeRecord, LocksRecord,
    OrphanRecord, QuotaRecord, SessionRecord, TrashRecord, UsageRecord, VolumeRecord, keys,
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
    check::<VolumeRecord>(&bytes);
    check::<CounterRecord>(&bytes);
    check::<ContentRecord>(&bytes);
    check::<InodeRecord>(&bytes);
    check::<DirTimes>(&bytes);
    check::<EntryRecord>(&bytes);
    check::<OrphanRecord>(&bytes);
    check::<GarbageRecord>(&bytes);
    check::<SessionRecord>(&bytes);
    check::<LocksRecord>(&bytes);
    check::<QuotaRecord>(&bytes);
    check::<UsageRecord>(&bytes);
    check::<TrashRecord>(&bytes);
    check::<AttachmentRecord>(&bytes);
    check::<UploadRecord>(&bytes);
    check::<PartRecord>(&bytes);
    check::<Backing>(&bytes);
    check::<KeyState>(&bytes);
    check::<QueueRecord>(&bytes);
    // Keys come from the store too.
    let _ = (keys::split_entry(data), keys::split_locked(data), keys::split_trash(data));
    let _ = (keys::split_state(data), keys::split_queued(data));
});
