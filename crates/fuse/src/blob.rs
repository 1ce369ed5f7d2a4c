//! The state of a mount that the holder keeps for the next process.
//!
//! version u8, session u64, lease u32, the agreement with the kernel, then the mount's options.
//! Version 1 ends before the second byte of flags, version 2 before the folder of the cache,
//! version 3 before the time for requests.

use std::path::PathBuf;
use std::time::Duration;

use millpond_client::ClientOptions;
use millpond_fuse_wire::Negotiated;
use millpond_types::wire::{Reader, WireError, Writer};

use crate::budget::Budgets;
use crate::cached::CacheOptions;
use crate::mount::MountFailure;
use crate::options::{Mode, MountSpec};

const VERSION: u8 = 4;
/// Longest text in bytes: a path.
const TEXT_MAX: usize = 4096;

/// The kept state of a mount.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) spec: MountSpec,
    pub(crate) negotiated: Negotiated,
    pub(crate) session: u64,
    pub(crate) lease_ms: u32,
}

fn text(r: &mut Reader<'_>) -> Result<String, WireError> {
    let bytes = r.bytes16(TEXT_MAX, "text of a mount")?;
    String::from_utf8(bytes.to_vec()).map_err(|_| WireError::Field("text of a mount"))
}

impl Blob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { spec, negotiated, session, lease_ms } = self;
        let mut w = Writer::with_capacity(512);
        w.u8(VERSION);
        w.u64(*session);
        w.u32(*lease_ms);
        w.raw(&negotiated.to_bytes());
        w.bytes16(spec.client.addresses.to_string().as_bytes());
        w.bytes16(spec.client.token.as_bytes());
        w.bytes16(spec.target.as_os_str().as_encoded_bytes());
        let mode = Mode::NAMES.iter().position(|(mode, _)| *mode == spec.mode).unwrap_or(0);
        w.u8(u8::try_from(mode).unwrap_or(0));
        // An earlier version wrote 0 for flags that it did not know.
        let quiet = !spec.watch;
        let flags = [
            spec.read_only,
            spec.allow_other,
            spec.suid,
            spec.dev,
            spec.noexec,
            spec.journal,
            quiet,
        ];
        w.u8(flags.iter().enumerate().map(|(bit, set)| u8::from(*set) << bit).sum());
        w.u16(u16::try_from(spec.threads).unwrap_or(u16::MAX));
        // An earlier version ignores bits that it does not know.
        let flags = [spec.read_ahead, spec.delegations, spec.relatime, spec.acl, spec.idmap];
        w.u8(flags.iter().enumerate().map(|(bit, set)| u8::from(*set) << bit).sum());
        let Budgets { memory, bandwidth, read_bandwidth, write_bandwidth } = spec.budgets;
        for budget in [memory, bandwidth, read_bandwidth, write_bandwidth] {
            w.u64(budget);
        }
        let CacheOptions { folder, size, passthrough } = &spec.cache;
        w.bytes16(folder.as_ref().map_or(b"", |folder| folder.as_os_str().as_encoded_bytes()));
        w.u64(*size);
        w.u8(u8::from(*passthrough));
        w.u32(u32::try_from(spec.timeout.as_millis()).unwrap_or(u32::MAX));
        w.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MountFailure> {
        Self::read(bytes).map_err(|error| MountFailure::Left(error.to_string()))
    }

    fn read(bytes: &[u8]) -> Result<Self, WireError> {
        use std::os::unix::ffi::OsStringExt as _;
        let mut r = Reader::new(bytes);
        let version = r.u8()?;
        if !(1..=VERSION).contains(&version) {
            return Err(WireError::Version(version));
        }
        let (session, lease_ms) = (r.u64()?, r.u32()?);
        let negotiated = Negotiated::from_bytes(r.bytes(Negotiated::BYTES)?)
            .map_err(|_| WireError::Field("agreement with the kernel"))?;
        let addresses = text(&mut r)?.parse().map_err(|_| WireError::Field("addresses"))?;
        let mut client = ClientOptions::new(addresses);
        client.token = text(&mut r)?;
        let target = r.bytes16(TEXT_MAX, "mount point")?.to_vec();
        let mut spec = MountSpec::new(client, PathBuf::from(std::ffi::OsString::from_vec(target)));
        let mode = Mode::NAMES.get(usize::from(r.u8()?)).ok_or(WireError::Field("mode"))?;
        spec.mode = mode.0;
        let flags = r.u8()?;
        let has = |bit: u8| flags & 1 << bit != 0;
        (spec.read_only, spec.allow_other, spec.suid) = (has(0), has(1), has(2));
        (spec.dev, spec.noexec, spec.journal) = (has(3), has(4), has(5));
        spec.watch = !has(6);
        spec.threads = usize::from(r.u16()?);
        if version >= 2 {
            let bits = r.u8()?;
            let has = |bit: u8| bits & 1 << bit != 0;
            (spec.read_ahead, spec.delegations, spec.relatime) = (has(0), has(1), has(2));
            (spec.acl, spec.idmap) = (has(3), has(4));
            let [memory, bandwidth] = [r.u64()?, r.u64()?];
            let [read_bandwidth, write_bandwidth] = [r.u64()?, r.u64()?];
            spec.budgets = Budgets { memory, bandwidth, read_bandwidth, write_bandwidth };
        }
        if version >= 3 {
            let folder = r.bytes16(TEXT_MAX, "folder of the cache")?.to_vec();
            let folder =
                (!folder.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(folder)));
            spec.cache = CacheOptions { folder, size: r.u64()?, passthrough: r.u8()? & 1 != 0 };
        }
        if version >= 4 {
            spec.timeout = Duration::from_millis(u64::from(r.u32()?));
        }
        r.finish()?;
        Ok(Self { spec, negotiated, session, lease_ms })
    }
}

#[cfg(test)]
mod tests {
    use millpond_fuse_wire::abi::{InitFlags, InitIn};
    use millpond_fuse_wire::{InitWishes, negotiate};

    use super::*;
    use crate::options::TIMEOUT_DEFAULT;

    #[test]
    fn a_mount_is_described_whole() {
        let addresses = "127.0.0.1:7440,10.0.0.2:7440".parse().unwrap();
        let mut spec = MountSpec::new(ClientOptions::new(addresses), PathBuf::from("/mnt/x"));
        spec.client.token = "secret".to_owned();
        spec.apply("mode=relaxed,ro,noexec,nosuid,nowatch,threads=7,timeout=7s,noread_ahead,acl")
            .unwrap();
        let cached = "mode=read-only,cache=/a/b,cache_size=3GiB,nopassthrough";
        spec.apply(cached).unwrap();
        spec.apply("memory=64MiB,bandwidth=9MiB,read_bandwidth=8MiB,write_bandwidth=7MiB").unwrap();
        let offer = InitIn { major: 7, minor: 45, ..InitIn::default() };
        let negotiated = negotiate(&offer, &InitWishes::default()).unwrap();
        assert_eq!(negotiated.granted, InitFlags::NONE.with(negotiated.granted));
        let blob = Blob { spec, negotiated, session: 1 << 40, lease_ms: 60_000 };
        let bytes = blob.encode();
        let again = Blob::decode(&bytes).unwrap();
        assert_eq!(format!("{again:?}"), format!("{blob:?}"));
        for cut in 0..bytes.len() {
            assert!(Blob::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        // The form of earlier versions.
        let mut old = bytes[..bytes.len() - 4].to_vec();
        old[0] = 3;
        let spec = Blob::decode(&old).unwrap().spec;
        assert_eq!((spec.timeout, spec.cache.size), (TIMEOUT_DEFAULT, 3 << 30));
        let cache_bytes = 2 + "/a/b".len() + 9 + 4;
        let mut old = bytes[..bytes.len() - cache_bytes].to_vec();
        old[0] = 2;
        let spec = Blob::decode(&old).unwrap().spec;
        assert_eq!((spec.read_ahead, spec.acl, spec.cache), (false, true, CacheOptions::default()));
        let mut old = bytes[..bytes.len() - cache_bytes - 33].to_vec();
        old[0] = 1;
        let spec = Blob::decode(&old).unwrap().spec;
        assert_eq!((spec.threads, spec.read_ahead, spec.budgets), (7, true, Budgets::default()));
    }
}
