//! Making and ending mounts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millpond_client::ClientOptions;
use millpond_env::{RealClock, thread};
use millpond_fuse_wire::{MountError, unmount};

use super::Daemon;
use super::table::pack;
use crate::admin::{Answer, Listed, MountRequest, MountState};
use crate::link::Kind;
use crate::mount::Mount;
use crate::options::{Mode, MountSpec};
use crate::probe::probe;

/// After an unmount in the kernel, the threads and the session end within this time.
const END: Duration = Duration::from_secs(10);

fn spec_of(request: &MountRequest) -> Result<MountSpec, String> {
    let addresses = request.cluster.parse().map_err(|error| format!("{error}"))?;
    let mut client = ClientOptions::new(addresses);
    client.token.clone_from(&request.token);
    let mut spec = MountSpec::new(client, request.mountpoint.clone());
    spec.apply(&request.options).map_err(|error| error.to_string())?;
    Ok(spec)
}

fn info_of(spec: &MountSpec) -> Listed {
    let named = Mode::NAMES.iter().find(|(mode, _)| *mode == spec.mode);
    Listed {
        mountpoint: spec.target.clone(),
        cluster: spec.client.addresses.to_string(),
        mode: named.map_or("", |(_, name)| name).to_owned(),
        read_only: spec.is_read_only(),
        since_unix_ms: RealClock::wall_ms(),
        threads: spec.threads,
        memory: spec.budgets.memory,
        bandwidth: spec.budgets.bandwidth,
        read_bandwidth: spec.budgets.read_bandwidth,
        write_bandwidth: spec.budgets.write_bandwidth,
        state: MountState::Mounting,
        pid: 0,
    }
}

impl Daemon {
    /// Mounts; returns when requests are served, or one line with the reason of the failure.
    pub(super) fn mount(self: &Arc<Self>, request: &MountRequest) -> Result<u64, String> {
        let spec = spec_of(request)?;
        let info = info_of(&spec);
        let id = self.reserve(&info)?;
        let name = spec.target.display().to_string();
        let made = probe(&spec).map_err(|error| error.to_string()).and_then(|()| {
            let keep = &mut |blob: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]| {
                self.holder.keep(id, &pack(&info, blob)?, fds)
            };
            Mount::start(spec, keep).map_err(|error| error.to_string())
        });
        match made {
            Ok(mount) => {
                tracing::info!("{name} is mounted: {} in mode {}", info.cluster, info.mode);
                let mut table = self.table.lock();
                if let Some(entry) = table.mounts.get_mut(&id) {
                    entry.mount = Some(mount);
                    entry.info.state = MountState::Serving;
                }
                self.changed.notify_all();
                Ok(id)
            }
            Err(error) => {
                tracing::warn!("{name} is not mounted: {error}");
                self.forget(id);
                Err(error)
            }
        }
    }

    fn reserve(&self, info: &Listed) -> Result<u64, String> {
        let mut table = self.table.lock();
        if let Some(why) = table.closed {
            return Err(format!("{why}: try again in a moment"));
        }
        if let Some((_, state)) = table.find(&info.mountpoint) {
            if state == MountState::Mounting {
                return Err(format!("{} is already being mounted", info.mountpoint.display()));
            }
            let (target, source_name) = (info.mountpoint.clone(), info.cluster.clone());
            return Err(MountError::Occupied { target, source_name }.to_string());
        }
        Ok(table.reserve(info.clone()))
    }

    /// Ends a mount when its requester is gone.
    pub(super) fn undo(&self, id: u64) {
        let target = self.table.lock().mounts.get(&id).map(|entry| entry.info.mountpoint.clone());
        if let Some(target) = target
            && let Err(error) = unmount(&target, true)
        {
            tracing::warn!("{error}");
        }
    }

    /// Ends a mount on an operator's request.
    pub(super) fn unmount(&self, target: &Path, lazy: bool) -> Answer {
        let found = self.table.lock().find(target);
        let name = target.display();
        match found {
            None => return Answer::NotMine,
            Some((_, MountState::Mounting)) => {
                return Answer::Error(format!("{name} is being mounted: wait for it"));
            }
            Some((_, MountState::Resuming | MountState::Parked)) if !lazy => {
                let why = "a new daemon process is taking it over";
                return Answer::Error(format!(
                    "{name}: {why}: wait, or give up the requests in progress (-l)"
                ));
            }
            Some(_) => {}
        }
        if let Err(error) = unmount(target, lazy) {
            return Answer::Error(error.to_string());
        }
        tracing::info!("{name} is unmounted{}", if lazy { " lazily" } else { "" });
        let Some((id, state)) = found else { return Answer::Ok };
        if state == MountState::Resuming {
            // No process serves it, and none will: its callers get an error once the last
            // descriptor is closed.
            self.forget(id);
        }
        if !lazy {
            let mut table = self.table.lock();
            let there = |table: &mut super::Table| table.mounts.contains_key(&id);
            self.changed.wait_while_for(&mut table, there, END);
        }
        Answer::Ok
    }

    /// Takes a mount out of the table, and has the holder close its descriptors.
    pub(super) fn forget(&self, id: u64) {
        let mut table = self.table.lock();
        let entry = table.mounts.remove(&id);
        table.idle_since = RealClock::tick();
        drop(table);
        self.holder.tell(Kind::Drop, id, b"");
        self.changed.notify_all();
        drop(entry);
    }

    /// Removes mounts that are gone, however they were unmounted.
    pub(super) fn reap(self: &Arc<Self>) {
        let mut over = Vec::new();
        for (id, entry) in &mut self.table.lock().mounts {
            if let Some(mount) = entry.mount.take_if(|mount| mount.is_over()) {
                over.push((*id, mount));
            }
        }
        for (id, mount) in over {
            tracing::info!("the mount at {} has ended", mount.spec().target.display());
            let daemon = Arc::clone(self);
            // Closing its session may wait for an unreachable cluster.
            let started = thread("mp-reap", move || {
                mount.wait();
                daemon.forget(id);
            });
            if let Err(error) = started {
                tracing::error!(
                    "cannot start a thread to wait for a mount that has ended: {error}"
                );
                self.forget(id);
            }
        }
    }

    /// Unmounts everything: cleanly where nothing is in use, lazily elsewhere.
    pub(super) fn unmount_all(&self, lazy: bool) {
        let listed = self.table.lock().listed();
        for (id, info) in listed {
            if matches!(info.state, MountState::Mounting | MountState::Detached) {
                continue;
            }
            let target = &info.mountpoint;
            let serves = info.state == MountState::Serving;
            let done = match unmount(target, lazy || !serves) {
                Err(MountError::Busy(_)) => {
                    tracing::warn!("{} is in use: it is unmounted lazily", target.display());
                    unmount(target, true)
                }
                done => done,
            };
            if let Err(error) = done {
                tracing::error!("{error}");
            }
            if !serves {
                self.forget(id);
            }
        }
    }
}
