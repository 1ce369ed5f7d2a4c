//! Waits until the backend has a write.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::{Mode, WhenFull};
use s3s::{S3ErrorCode, S3Result};

use super::Backed;
use super::room::{full, is_over};
use crate::door::Door;
use crate::error::{Told as _, refuse};
use crate::store::KeyState;

/// Pauses between checks of the state: the first and the longest.
const LOOKS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];
/// Time limit of a write that waits for its backend.
const PATIENCE: Duration = Duration::from_secs(30);
/// Consecutive failed attempts before the client gets an error.
const ATTEMPTS: u32 = 2;

/// An admitted write in a bucket, which determines its answer.
pub(crate) struct Written {
    backed: Option<Backed>,
    is_through: bool,
}

/// Admits a write, with a delay when the pool is nearly full.
///
/// # Errors
/// `SlowDown` when the pool is full; `KeyTooLongError` and `InvalidArgument` for a key that the
/// backend cannot store.
pub(crate) async fn admit(door: &Arc<Door>, (bucket, key): (&str, &str)) -> S3Result<Written> {
    let Some(backed) = door.backed(bucket).await? else {
        return Ok(Written { backed: None, is_through: false });
    };
    backed.check_key(door, key).await?;
    let rule = backed.backing.rule_of(key.as_bytes());
    let mut is_through = rule.mode == Mode::WriteThrough;
    if is_over(door).await {
        match (rule.when_full, rule.mode) {
            (WhenFull::WriteThrough, Mode::WriteBack) => is_through = true,
            (_, Mode::WriteThrough) => {}
            _ => return Err(full()),
        }
    }
    Ok(Written { backed: Some(backed), is_through })
}

/// Admits a removal, which takes no room.
pub(crate) async fn admit_removal(
    door: &Arc<Door>,
    (bucket, key): (&str, &str),
) -> S3Result<Written> {
    let backed = door.backed(bucket).await?;
    let mode = backed.as_ref().map(|backed| backed.mode_of(key));
    Ok(Written { backed, is_through: mode == Some(Mode::WriteThrough) })
}

impl Written {
    /// Whether the key is persisted to a backend.
    pub(crate) fn goes_behind(&self, key: &str) -> bool {
        self.backed.as_ref().is_some_and(|backed| backed.mode_of(key) != Mode::Transient)
    }

    /// Replicas of the bytes in the pool; 0 for the default of the pool.
    pub(crate) fn replicas(&self, key: &str) -> u8 {
        self.backed.as_ref().map_or(0, |backed| backed.replicas_of(key))
    }

    /// Ends a completed write: waits for the backend if the rule demands it. Returns the state for
    /// the answer; none in a bucket that is not backed.
    ///
    /// # Errors
    /// `ServiceUnavailable` with the backend's error: the write stays, and is persisted later.
    pub(crate) async fn done(self, door: &Arc<Door>, key: &str) -> S3Result<Option<&'static str>> {
        let Some(backed) = self.backed else { return Ok(None) };
        if backed.mode_of(key) == Mode::Transient {
            return Ok(Some("transient"));
        }
        door.wake_bucket(&backed.bucket);
        if !self.is_through {
            return Ok(Some("dirty"));
        }
        settled(door, &backed, key).await?;
        Ok(Some("clean"))
    }
}

async fn state(door: &Arc<Door>, backed: &Backed, key: &str) -> S3Result<Option<KeyState>> {
    let (bucket, asked) = (backed.bucket.clone(), key.to_owned());
    let look = move |store: &crate::store::Store| {
        store.look_up(&bucket, asked.as_bytes(), false).in_bucket().map(|found| found.state)
    };
    door.blocking(look).await
}

/// Waits until a key is clean.
async fn settled(door: &Arc<Door>, backed: &Backed, key: &str) -> S3Result<()> {
    let Some(first) = state(door, backed, key).await?.filter(KeyState::is_dirty) else {
        return Ok(());
    };
    if first.attempts > 0 {
        // The key waits for the end of a pause.
        let (bucket, asked) = (backed.bucket.clone(), key.to_owned());
        door.blocking(move |store| store.hasten(&bucket, asked.as_bytes()).in_bucket()).await?;
        door.wake_bucket(&backed.bucket);
    }
    let (mut pause, mut waited) = (LOOKS[0], Duration::ZERO);
    let mut failed = String::new();
    while waited < PATIENCE {
        tokio::time::sleep(pause).await;
        waited += pause;
        pause = (pause * 2).min(LOOKS[1]);
        let Some(now) = state(door, backed, key).await?.filter(KeyState::is_dirty) else {
            return Ok(());
        };
        // The count of attempts restarts after a success.
        let base = if now.attempts < first.attempts { 0 } else { first.attempts };
        failed = now.error;
        if now.attempts - base >= ATTEMPTS {
            break;
        }
    }
    let name = &backed.backing.backend;
    let why = if failed.is_empty() { "it does not answer in time" } else { &failed };
    let what = if first.is_tombstone() { "removed" } else { "stored" };
    let message = format!(
        "The object is {what} here, but the backend '{name}' does not have the change yet: {why}"
    );
    Err(refuse(S3ErrorCode::ServiceUnavailable, message))
}
