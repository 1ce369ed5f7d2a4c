//! The thread that gives delegated directories back when metas ask for them.

use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::meta::{Ino, MetaOp, MetaReply, RETURNS_MAX};

use super::delegations::Delegations;
use crate::errno::Errno;
use crate::fs::Fs;

/// Before metas that do not answer are asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks metas what they recall, and returns it, until the mount ends.
pub(super) fn run(fs: &Fs, delegations: &Delegations) {
    while delegations.wait() {
        while let Some(mut dirs) = fs.ask_for_recalls(delegations).filter(|dirs| !dirs.is_empty()) {
            let ahead = delegations.take_ahead(&dirs);
            dirs.extend(ahead);
            if !give_back(fs, delegations, &dirs) {
                break;
            }
        }
    }
}

/// Returns directories once metas have all that was promised of them; false when this process does not any more.
fn give_back(fs: &Fs, delegations: &Delegations, dirs: &[Ino]) -> bool {
    let behind = &fs.backend.behind;
    if behind.wait_dirs(dirs).is_err() {
        return false;
    }
    behind.forget_dirs(dirs);
    dirs.chunks(RETURNS_MAX).all(|some| {
        let is_returned = give_some_back(fs, some);
        if is_returned {
            delegations.returned(some);
        }
        is_returned
    })
}

fn give_some_back(fs: &Fs, dirs: &[Ino]) -> bool {
    let op = MetaOp::Return { dirs: dirs.to_vec() };
    loop {
        // Asked for twice it does what it did once.
        match fs.backend.meta(&mut fs.backend.own_ticket(), op.clone()) {
            Ok(_) => return true,
            Err(Errno::STALE) => return false,
            Err(errno) => tracing::warn!("returning {} directories: {}", dirs.len(), errno.name()),
        }
        if !fs.backend.behind.pause(PAUSE) {
            return false;
        }
    }
}

impl Fs {
    /// Asks a meta what is recalled; nothing when none answers.
    pub(crate) fn ask_for_recalls(&self, delegations: &Delegations) -> Option<Vec<Ino>> {
        let asked = RealClock::tick();
        match self.backend.meta(&mut self.backend.own_ticket(), MetaOp::Recalled) {
            Ok(MetaReply::Recalled { tenure, dirs }) => {
                delegations.hear(asked, tenure, &dirs);
                Some(dirs)
            }
            Ok(_) => None,
            Err(errno) => {
                if errno == Errno::STALE {
                    delegations.lose();
                }
                None
            }
        }
    }
}
