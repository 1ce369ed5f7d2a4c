//! The mounts of a daemon and their states.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use millpond_env::RealClock;
use millpond_fuse_wire::mounts;
use millpond_types::Tick;

use crate::admin::{Listed, MountState};
use crate::mount::Mount;
use crate::watch::Shown;

/// The holder's state of a mount, as returned to a daemon.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) id: u64,
    pub(super) info: Listed,
    pub(super) blob: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// Encodes the bytes that the holder keeps: the listed entry as a line of JSON, then the mount's
/// own bytes.
pub(super) fn pack(info: &Listed, blob: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(info)?;
    bytes.push(b'\n');
    bytes.extend_from_slice(blob);
    Ok(bytes)
}

/// Decodes the bytes of [`pack`].
pub(super) fn unpack(id: u64, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<Given> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(io::ErrorKind::InvalidData)?;
    let info = serde_json::from_slice(&bytes[..end])?;
    Ok(Given { id, info, blob: bytes[end + 1..].to_vec(), fds })
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) info: Listed,
    /// None while it is made, taken over, parked or waited for.
    pub(super) mount: Option<Mount>,
}

/// The outcome of an upgrade: process id and pause in milliseconds, or the reason of its failure.
pub(super) type Upgraded = Result<(u32, u64), String>;

/// The progress of an upgrade, for the waiting requester.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UpgradeWait {
    Nobody,
    Waiting,
    Over(Upgraded),
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) mounts: BTreeMap<u64, Entry>,
    next_id: u64,
    /// Mounts from the holder, until it reports that the list is complete.
    pub(super) given: Vec<Given>,
    /// Whether the holder has reported that.
    pub(super) begun: bool,
    /// Why no mounts are accepted now.
    pub(super) closed: Option<&'static str>,
    pub(super) connections: usize,
    /// Number of requests being answered.
    pub(super) answering: usize,
    pub(super) upgrade: UpgradeWait,
    pub(super) taken_over: usize,
    /// Since when there is neither a mount nor a connection.
    pub(super) idle_since: Tick,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            mounts: BTreeMap::new(),
            next_id: 1,
            given: Vec::new(),
            begun: false,
            closed: None,
            connections: 0,
            answering: 0,
            upgrade: UpgradeWait::Nobody,
            taken_over: 0,
            idle_since: RealClock::tick(),
        }
    }

    /// Puts an entry that has no mount yet under a new id.
    pub(super) fn reserve(&mut self, info: Listed) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.mounts.insert(id, Entry { info, mount: None });
        id
    }

    /// Puts an entry that is taken over under its old id.
    pub(super) fn take_over(&mut self, id: u64, info: Listed) {
        self.next_id = self.next_id.max(id + 1);
        self.mounts.insert(id, Entry { info, mount: None });
    }

    /// A mount that is being made or taken over, and cannot be handed over now.
    pub(super) fn unsettled(&self) -> Option<&Entry> {
        let unsettled = |entry: &&Entry| {
            matches!(entry.info.state, MountState::Mounting | MountState::Resuming)
        };
        self.mounts.values().find(unsettled)
    }

    /// Takes the mounts out of their entries.
    pub(super) fn take_mounts(&mut self, state: MountState) -> Vec<(u64, Mount)> {
        let mut taken = Vec::new();
        for (id, entry) in &mut self.mounts {
            if let Some(mount) = entry.mount.take() {
                entry.info.state = state;
                taken.push((*id, mount));
            }
        }
        taken
    }

    /// The mounts with the states that operators see: a mount whose target is no longer a mount of
    /// ours, or is covered by a later one, is served until its last file is closed.
    pub(super) fn listed(&self) -> Vec<(u64, Listed)> {
        let there: Vec<PathBuf> =
            mounts().unwrap_or_default().into_iter().map(|mount| mount.target).collect();
        let mut seen = Vec::new();
        let mut list = Vec::new();
        for (id, entry) in self.mounts.iter().rev() {
            let mut info = entry.info.clone();
            info.pid = std::process::id();
            let target = &info.mountpoint;
            let in_tree = there.contains(target) && !seen.contains(target);
            if info.state != MountState::Mounting {
                if !in_tree {
                    info.state = MountState::Detached;
                }
                seen.push(info.mountpoint.clone());
            }
            list.push((*id, info));
        }
        list.reverse();
        list
    }

    /// The metrics of the mounts, one mount per path. Detached mounts, and those still being made,
    /// have none.
    pub(super) fn shown(&self) -> Vec<Shown> {
        let in_tree = |state| !matches!(state, MountState::Mounting | MountState::Detached);
        let listed = self.listed().into_iter().filter(|(_, info)| in_tree(info.state));
        listed
            .map(|(id, info)| {
                let mount = self.mounts.get(&id).and_then(|entry| entry.mount.as_ref());
                let picture = mount.map(Mount::picture);
                Shown { mount: info.mountpoint.display().to_string(), picture }
            })
            .collect()
    }

    /// The mount at `target`, present or being made.
    pub(super) fn find(&self, target: &Path) -> Option<(u64, MountState)> {
        let mut listed = self.listed().into_iter();
        listed
            .find(|(_, info)| info.mountpoint == target && info.state != MountState::Detached)
            .map(|(id, info)| (id, info.state))
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, pack, unpack};
    use crate::admin::{Listed, MountState};

    fn info(target: &str) -> Listed {
        Listed {
            mountpoint: target.into(),
            cluster: "a:1".to_owned(),
            mode: "strict".to_owned(),
            read_only: true,
            since_unix_ms: 5,
            threads: 3,
            memory: 5,
            bandwidth: 0,
            read_bandwidth: 6,
            write_bandwidth: 7,
            state: MountState::Mounting,
            pid: 0,
        }
    }

    #[test]
    fn what_the_holder_keeps_comes_back() {
        let bytes = pack(&info("/a\nb"), b"blob\nmore").unwrap();
        let given = unpack(4, &bytes, Vec::new()).unwrap();
        assert_eq!((given.id, given.info, given.blob), (4, info("/a\nb"), b"blob\nmore".to_vec()));
        assert!(unpack(4, b"no line", Vec::new()).is_err());
        assert!(unpack(4, b"{}\n", Vec::new()).is_err());
    }

    #[test]
    fn who_is_being_mounted_is_found_and_who_is_out_of_the_tree_is_not() {
        let mut table = Table::new();
        table.take_over(8, Listed { state: MountState::Serving, ..info("/gone") });
        let id = table.reserve(info("/new"));
        assert_eq!(id, 9);
        assert_eq!(table.find("/new".as_ref()), Some((9, MountState::Mounting)));
        assert_eq!(table.find("/gone".as_ref()), None);
        assert_eq!(table.listed()[0].1.state, MountState::Detached);
    }
}
