#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::NamespaceInfo;
use millpond_types::wire::{Reader, Writer};

// The server keeps the table as one chunk, a sequence of namespaces.
fuzz_target!(|data: &[u8]| {
    let mut reader = Reader::new(data);
    while !reader.is_empty() {
        let Ok(info) = NamespaceInfo::decode(&mut reader) else { return };
        let mut writer = Writer::default();
        info.encode(&mut writer);
        let bytes = writer.into_bytes();
        assert_eq!(NamespaceInfo::decode(&mut Reader::new(&bytes)), Ok(info));
    }
});
