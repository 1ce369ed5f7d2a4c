#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_engine::decode::checkpoint_block;
use millpond_fuzz::seeds::SALT;
use millpond_fuzz::{repair, u32_at};

fuzz_target!(|data: &[u8]| {
    let mut block = data.to_vec();
    let id = u64::from(u32_at(&block, 12)) << 32 | u64::from(u32_at(&block, 8));
    let number = u32_at(&block, 16);
    let _ = checkpoint_block(SALT, id, number, &block, drop);
    let end = u32_at(&block, 24) as usize;
    repair(&mut block, 4, end, Some(SALT));
    let mut entries = 0;
    if let Some(count) = checkpoint_block(SALT, id, number, &block, |_| entries += 1) {
        assert_eq!(count, entries);
    }
});
