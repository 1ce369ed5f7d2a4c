#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::meta::Acl;

// The first two bytes are a mode. A list has several encodings, because the id of an entry counts
// only if the entry is for a named user or group.
fuzz_target!(|data: &[u8]| {
    let Some((mode, value)) = data.split_first_chunk() else { return };
    let Ok(Some(mut acl)) = Acl::parse(value) else { return };
    let mode = u16::from_le_bytes(*mode) & 0o7777;
    assert_eq!(Acl::parse(&acl.to_bytes()).as_ref(), Ok(&Some(acl.clone())));
    let (access, made) = acl.inherit(mode);
    assert_eq!((access.mode(), made & !mode), (made & 0o777, 0));
    acl.chmod(mode);
    assert_eq!(acl.mode(), mode & 0o777);
});
