#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_engine::Superblock;
use millpond_fuzz::repair;

fuzz_target!(|data: &[u8]| {
    let _ = Superblock::decode(data);
    let mut page = data.to_vec();
    page.resize(4096, 0);
    repair(&mut page, 12, 4096, None);
    if let Ok(superblock) = Superblock::decode(&page) {
        let _ = superblock.segments();
    }
});
