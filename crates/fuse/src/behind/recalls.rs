//! The thread that returns delegated directories when metas recall them.

use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::meta::{Ino, MetaOp, MetaReply, RETURNS_MAX};

use super::delegations::Delegations;
use crate::errno::Errno;
use crate::fs::Fs;

/// The first pause before unresponsive metas are asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks metas for recalls and returns those directories, until the mount ends.
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

/// Returns directories once metas have executed all promises in them; false when this process no
/// longer keeps promises.
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
        // The operation is idempotent.
        match fs.backend.meta(&mut fs.backend.own_ticket(), op.clone()) {
            Ok(_) => return true,
            Err(Errno::STALE) => return false,
            Err(errno) => {
                tracing::warn!("cannot return {} directories: {}", dirs.len(), errno.name());
            }
        }
        if !fs.backend.behind.pause(PAUSE) {
            return false;
        }
    }
}

impl Fs {
    /// Asks a meta for recalled directories; `None` when no meta answers.
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
