#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_engine::decode::log_batch;
use millpond_fuzz::seeds::SALT;
use millpond_fuzz::{repair, u32_at};

fuzz_target!(|data: &[u8]| {
    let _ = log_batch(SALT, data);
    let mut batch = data.to_vec();
    let end = u32_at(&batch, 16) as usize;
    repair(&mut batch, 4, end, Some(SALT));
    if let Some((header, records)) = log_batch(SALT, &batch) {
        assert_eq!(records.len(), header.records as usize);
        assert!(header.bytes as usize <= batch.len());
    }
});
