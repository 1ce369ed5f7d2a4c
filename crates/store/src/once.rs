//! Exactly once: the record of a request is written in the same transaction as its effects, so that
//! a repetition after a lost answer finds the record instead of executing again.
//!
//! Two attempts of one request can both be under way, the first delayed in the network. Both have
//! read that there is no record and conflict on it, so that one of them loses.
//!
//! Records are removed by epoch. A request with a removed record could be taken for one that never
//! ran, so removal first raises a floor, which every request reads: one below it is refused.

use crate::key::RESERVED;
use crate::store::Attempts;
use crate::{KeyRange, RangeOptions, Store, StoreError, TransactError, Transaction, Version};

const RECORDS: &[u8] = &[RESERVED, b'r'];
const FLOOR: &[u8] = &[RESERVED, b'f'];
/// Records removed by one transaction: a delete counts as two writes.
const REMOVED_MAX: usize = millpond_types::limits::STORE_TXN_WRITES_MAX / 2;

/// The name of a request, chosen by the caller and the same for all of its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    /// Time of the choice, in units that the user of the store decides on (hours, say). Records are
    /// removed by epoch.
    pub epoch: u64,
    /// Unlike any other of the epoch: random, or a client and its sequence number.
    pub id: u128,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result of `work`.
    pub bytes: Vec<u8>,
    /// True when an earlier attempt had taken effect.
    pub repeated: bool,
    /// The version that it made; `None` when an earlier attempt had taken effect.
    pub version: Option<Version>,
}

impl RequestId {
    fn key(self) -> Vec<u8> {
        let mut key = epoch_key(self.epoch);
        key.extend_from_slice(&self.id.to_be_bytes());
        key
    }
}

fn epoch_key(epoch: u64) -> Vec<u8> {
    [RECORDS, &epoch.to_be_bytes()].concat()
}

/// True for keys that the store writes for itself; they do not count for the user's bound.
pub(crate) fn is_own(key: &[u8]) -> bool {
    key.first() == Some(&RESERVED)
}

impl Store {
    /// Runs `work` in a transaction exactly once per `request`, even when answers are lost: repeats
    /// it after conflicts, while the store is not available and after unknown outcomes,
    /// `STORE_ATTEMPTS_MAX` times at most. Returns the result of `work` when it took effect, now or
    /// in an earlier call with the same `request`.
    ///
    /// # Errors
    /// `work`'s own error at once, with nothing written or recorded. `Unknown` after the last
    /// attempt: call again with the same `request`. `Expired` when the record of such a request may
    /// have been removed. Others: it has not happened.
    pub async fn transact_once<E, F, R>(&self, request: RequestId, mut work: F) -> Result<Reply, E>
    where
        E: TransactError,
        F: FnMut(Transaction) -> R,
        R: Future<Output = Result<Vec<u8>, E>>,
    {
        let mut attempts = Attempts::default();
        let mut lost = None;
        loop {
            let txn = self.begin();
            let failed = match attempt(&txn, request, &mut work).await {
                Ok(reply) => match txn.commit().await {
                    Ok(version) => {
                        let version = (!reply.repeated).then_some(version);
                        return Ok(Reply { version, ..reply });
                    }
                    Err(error) => E::from(error),
                },
                Err(error) => error,
            };
            let kind = failed.store_error().map(StoreError::kind);
            if !attempts.again(kind, true) {
                // An earlier attempt with a lost answer may have taken effect: then the error must
                // be `Unknown`, not that of the last attempt.
                return Err(lost.unwrap_or(failed));
            }
            if kind == Some(crate::StoreErrorKind::Unknown) {
                lost = Some(failed);
            }
            self.pause(attempts.pause()).await;
        }
    }

    /// Whether a request of this epoch or a later one was done.
    ///
    /// # Errors
    /// As [`Store::transact`].
    pub async fn has_requests_since(&self, epoch: u64) -> Result<bool, StoreError> {
        let range = KeyRange::new(epoch_key(epoch), KeyRange::prefix(RECORDS).end);
        let options = RangeOptions { limit: 1, snapshot: true, reverse: false };
        Ok(!self.begin().read_range(&range, options).await?.entries.is_empty())
    }

    /// Whether a request is known to be done. Otherwise it may still be under way.
    ///
    /// # Errors
    /// As [`Store::transact`].
    pub async fn is_done(&self, request: RequestId) -> Result<bool, StoreError> {
        let found = self.begin().read_keys(&[&request.key()], false).await?;
        Ok(found.iter().any(Option::is_some))
    }

    /// Removes the records of all requests of epochs before `floor`. From then on such a request is
    /// refused. Call it with an epoch for which no client repeats requests any more.
    ///
    /// # Errors
    /// As [`Store::transact`]; calling again continues.
    pub async fn forget_requests(&self, floor: u64) -> Result<(), StoreError> {
        self.transact(|txn| async move {
            let old = read_floor(txn.read_keys(&[FLOOR], true).await?.pop().flatten())?;
            if old < floor { txn.write(FLOOR, Some(floor.to_be_bytes().to_vec())) } else { Ok(()) }
        })
        .await?;
        let range = &KeyRange::new(RECORDS, epoch_key(floor));
        loop {
            let more = self
                .transact(|txn| async move {
                    // No request writes below the floor any more, so this needs no conflict.
                    let options =
                        RangeOptions { limit: REMOVED_MAX, snapshot: true, reverse: false };
                    let page = txn.read_range(range, options).await?;
                    for (key, _) in &page.entries {
                        txn.write(key, None)?;
                    }
                    Ok::<_, StoreError>(page.rest.is_some())
                })
                .await?;
            if !more {
                return Ok(());
            }
        }
    }
}

async fn attempt<E, F, R>(txn: &Transaction, request: RequestId, work: &mut F) -> Result<Reply, E>
where
    E: TransactError,
    F: FnMut(Transaction) -> R,
    R: Future<Output = Result<Vec<u8>, E>>,
{
    let key = request.key();
    let mut found = txn.read_keys(&[&key, FLOOR], true).await?;
    let (floor, record) = (found.pop().flatten(), found.pop().flatten());
    if let Some(bytes) = record {
        return Ok(Reply { bytes, repeated: true, version: None });
    }
    if request.epoch < read_floor(floor)? {
        return Err(E::from(StoreError::Expired));
    }
    let bytes = work(txn.clone()).await?;
    txn.write(&key, Some(bytes.clone()))?;
    Ok(Reply { bytes, repeated: false, version: None })
}

fn read_floor(value: Option<Vec<u8>>) -> Result<u64, StoreError> {
    let Some(value) = value else { return Ok(0) };
    let bytes: [u8; 8] = value
        .try_into()
        .map_err(|_| StoreError::Damaged("the floor of request records is not 8 bytes".into()))?;
    Ok(u64::from_be_bytes(bytes))
}
