//! Directories that one mount may use alone until another client needs them.
//!
//! A session that makes a directory may hold it ([`Delegation`]): the directory's record names the
//! holder. A transaction of another session that reads that record ends with [`Failed::Delegated`].
//! The meta then recalls the directory: it writes a recall record and also rewrites the directory's
//! record, so that the holder learns of it at once ([`crate::feed`]). It waits for the return and
//! runs the transaction again. A holder sends metas all its changes of a directory before it
//! returns it, and never gets it back.
//!
//! A holder that does not return a directory within [`FENCE_MS`] is fenced: its session enters
//! another tenure, and loses all directories that it got before. By then it no longer trusts any of
//! them, by its own clock. It trusts its directories for [`DELEGATION_MS`] after it asked a meta.
//! The meta's answer names the recalled directories. A directory that it does not return within
//! [`RETURN_MS`] ends its trust in all. A holder that learns of a recall after its trust has run
//! out trusts nothing until it has returned the directory. Only durations are compared, each by one
//! clock (Gray and Cheriton, "Leases", SOSP 1989).
//!
//! [`DELEGATION_MS`]: millpond_types::meta::DELEGATION_MS
//! [`RETURN_MS`]: millpond_types::meta::RETURN_MS

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use millpond_store::{KeyRange, RangeOptions, Transaction};
use millpond_types::meta::{
    Create, Delegation, FENCE_MS, FileKind, Ino, InodeRecord, MetaError, MetaReply, RETURNS_MAX,
    SessionRecord, keys,
};
use millpond_types::wire::Record;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::error::{Failed, VolumeError};
use crate::session;
use crate::view::{View, opened};
use crate::volume::{Volume, broken};

/// Pause between two checks whether a directory was returned, at first and at most.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(10);
/// How long a recall that no request waits for is remembered, and how many there are before old
/// ones are dropped.
const FORGOTTEN: Duration = Duration::from_mins(1);
const RECALLS: usize = 1024;

/// Limit of remembered former holders.
const OVER_MAX: usize = 4096;

/// Knowledge of this process about holders of directories.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    /// Since when this process has waited for a holder, by directory.
    recalls: Mutex<HashMap<(Ino, Delegation), Instant>>,
    /// Holders with a session that has ended, or has entered another tenure: records that name them
    /// stay as they are.
    over: RwLock<HashSet<Delegation>>,
}

/// Directories held by other sessions.
pub(crate) type Delegated = Vec<(Ino, Delegation)>;

/// Returns the holder of a new directory, if it gets one.
pub(crate) async fn wanted(
    view: &View,
    parent: &InodeRecord,
    create: &Create,
) -> Result<Option<Delegation>, Failed> {
    let (Some(tenure), Some(session)) = (create.delegate, view.session) else { return Ok(None) };
    // S3 clients would recall a directory of objects too often.
    if create.kind != FileKind::Directory || parent.marks.objects {
        return Ok(None);
    }
    // A tenure that ends at this moment has ended when the answer arrives: the mount knows which
    // one it asked for.
    let key = keys::session(session);
    let Some(found) = view.txn.get_snapshot(&key).await? else { return Ok(None) };
    let of_session: SessionRecord = opened(&key, &found)?;
    Ok((of_session.tenure == tenure).then_some(Delegation { session, tenure }))
}

/// Removes the session as holder of these directories.
pub(crate) async fn give_back(view: &View, dirs: &[Ino]) -> Result<MetaReply, Failed> {
    let Some(session) = view.session.filter(|_| dirs.len() <= RETURNS_MAX) else {
        return Err(MetaError::Invalid.into());
    };
    let inodes: Vec<Vec<u8>> = dirs.iter().map(|dir| keys::inode(*dir)).collect();
    let names: Vec<&[u8]> = inodes.iter().map(Vec::as_slice).collect();
    let found = view.txn.get_many(&names).await?;
    for ((dir, key), found) in dirs.iter().zip(&inodes).zip(found) {
        view.txn.delete(&keys::recalled(session, *dir))?;
        let Some(found) = found else { continue };
        let mut record: InodeRecord = opened(key, &found)?;
        if record.delegated.take_if(|holder| holder.session == session).is_some() {
            view.txn.put(key, record.seal())?;
        }
    }
    Ok(MetaReply::Done)
}

/// Lists the directories that the session is asked to return; `Stale` when it has ended.
pub(crate) async fn recalled(volume: &Volume, view: &View) -> Result<MetaReply, Failed> {
    let session = view.session.unwrap_or(0);
    let record: Option<SessionRecord> = view.read(&keys::session(session)).await?;
    let record = record.filter(|record| !session::is_over(volume, record));
    let tenure = record.ok_or(Failed::Refused(MetaError::Stale))?.tenure;
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(RETURNS_MAX) };
    let range = KeyRange::prefix(&keys::recalled_of(session));
    let found = view.txn.range(&range, options).await?;
    let dir = |(key, _): (Vec<u8>, _)| keys::number(&keys::recalled_of(session), &key).map(Ino);
    Ok(MetaReply::Recalled { tenure, dirs: found.entries.into_iter().filter_map(dir).collect() })
}

/// Deletes the recalls of a session that has ended. Nothing that it held is held any longer.
pub(crate) async fn forget(volume: &Volume, session: u64) -> Result<(), Failed> {
    let prefix = &keys::recalled_of(session);
    let delete = |txn: Transaction| async move {
        let range = KeyRange::prefix(prefix);
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(RETURNS_MAX) };
        let page = txn.range(&range, options).await?;
        for (key, _) in page.entries {
            txn.delete(&key)?;
        }
        Ok::<_, Failed>(page.rest.is_none())
    };
    while !volume.store.transact(delete).await? {}
    Ok(())
}

impl Delegations {
    /// Returns how long this process has waited for the directories in `left`, for these or other
    /// requests. Directories of `held` that are not in `left` are forgotten.
    fn waited_for(&self, held: &[(Ino, Delegation)], left: &Delegated) -> Vec<Duration> {
        let (now, mut recalls) = (Instant::now(), self.recalls.lock());
        if recalls.len() > RECALLS {
            recalls.retain(|_, since| now.duration_since(*since) < FORGOTTEN);
        }
        if left.len() < held.len() {
            let left: HashSet<_> = left.iter().collect();
            held.iter().filter(|of_dir| !left.contains(of_dir)).for_each(|of_dir| {
                recalls.remove(of_dir);
            });
        }
        let since = |of_dir: &(Ino, Delegation)| *recalls.entry(*of_dir).or_insert(now);
        left.iter().map(since).map(|since| now.duration_since(since)).collect()
    }

    fn is_over(&self, holder: Delegation) -> bool {
        self.over.read().contains(&holder)
    }

    fn note_over(&self, holder: Delegation) {
        let mut over = self.over.write();
        if over.len() >= OVER_MAX {
            over.clear();
        }
        over.insert(holder);
    }
}

impl View {
    /// Returns the holder of a directory, unless it is known to be a former one.
    pub(crate) fn holder(&self, record: &InodeRecord) -> Option<Delegation> {
        let over =
            |holder: &Delegation| self.delegations.as_ref().is_some_and(|all| all.is_over(*holder));
        record.delegated.filter(|holder| !over(holder))
    }

    /// Ends the transaction when another session holds the directory.
    pub(crate) fn may_see(&self, record: &InodeRecord) -> Result<(), Failed> {
        match (self.holder(record), self.session) {
            (Some(holder), Some(session)) if holder.session != session => {
                Err(Failed::Delegated(vec![(record.attr.ino, holder)]))
            }
            _ => Ok(()),
        }
    }

    /// As [`Self::may_see`], for a directory with a record that the caller does not need otherwise.
    pub(crate) async fn may_see_names_of(&self, dir: Ino) -> Result<(), Failed> {
        let key = keys::inode(dir);
        match self.txn.get_snapshot(&key).await? {
            Some(found) => self.may_see(&opened(&key, &found)?),
            None => Ok(()),
        }
    }
}

impl Volume {
    /// Waits until these directories are no longer held.
    ///
    /// Dropping the future leaves them recalled; the next request waits for the rest of the time.
    ///
    /// # Errors
    /// [`VolumeError`]: the store.
    pub(crate) async fn recall(&self, held: &[(Ino, Delegation)]) -> Result<(), VolumeError> {
        for some in held.chunks(RETURNS_MAX) {
            self.recall_some(some).await.map_err(broken)?;
        }
        Ok(())
    }

    async fn recall_some(&self, held: &[(Ino, Delegation)]) -> Result<(), Failed> {
        let (mut left, mut pause) = (held.to_vec(), LOOK);
        loop {
            left = self.ask_for(&left).await?;
            let fence_after = Duration::from_millis(FENCE_MS.into());
            let since = self.delegations.waited_for(held, &left);
            let late = left.iter().zip(since).find(|(_, since)| *since >= fence_after);
            match late {
                Some((of_dir, _)) => self.fence(*of_dir).await?,
                None if left.is_empty() => return Ok(()),
                None => {
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(LOOK_MAX);
                }
            }
        }
    }

    /// Asks holders for their directories and returns those still held.
    async fn ask_for(&self, held: &[(Ino, Delegation)]) -> Result<Delegated, Failed> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let of_dir = |(dir, holder): &(Ino, Delegation)| {
            let recalled = keys::recalled(holder.session, *dir);
            [keys::inode(*dir), keys::session(holder.session), recalled]
        };
        let keys: Vec<[Vec<u8>; 3]> = held.iter().map(of_dir).collect();
        let names: &Vec<&[u8]> = &keys.iter().flatten().map(Vec::as_slice).collect();
        // Most checks find the same as the check before.
        let found = self.store.begin().get_many_snapshot(names).await?;
        let (mut left, mut is_new) = (Vec::new(), false);
        for (of_dir, found) in held.iter().zip(found.chunks(3)) {
            if self.is_held(found, of_dir.1)? {
                left.push(*of_dir);
                is_new |= found[2].is_none();
            }
        }
        if !is_new {
            return Ok(left);
        }
        let ask = |txn: Transaction| async move {
            let found = txn.get_many(names).await?;
            let mut left = Vec::new();
            for ((of_dir, found), name) in held.iter().zip(found.chunks(3)).zip(names.chunks(3)) {
                let [Some(inode), _, recalled] = found else { continue };
                if !self.is_held(found, of_dir.1)? {
                    continue;
                }
                left.push(*of_dir);
                if recalled.is_none() {
                    txn.put(name[2], Vec::new())?;
                    // Rewriting the record notifies the holder, since another session makes this
                    // change.
                    txn.put(name[0], inode.as_slice())?;
                }
            }
            Ok::<_, Failed>(left)
        };
        self.store.transact(ask).await
    }

    /// Whether a directory is held, by its record and its holder's session. A former holder is
    /// remembered.
    fn is_held(&self, found: &[Option<Vec<u8>>], holder: Delegation) -> Result<bool, Failed> {
        let [inode, of_session, ..] = found else { return Ok(false) };
        let tenure = match of_session {
            Some(of_session) => Some(opened::<SessionRecord>(b"session", of_session)?.tenure),
            None => None,
        };
        if tenure != Some(holder.tenure) {
            self.delegations.note_over(holder);
            return Ok(false);
        }
        let Some(inode) = inode else { return Ok(false) };
        Ok(opened::<InodeRecord>(b"inode", inode)?.delegated == Some(holder))
    }

    /// Ends the tenure of a session that does not return a directory.
    async fn fence(&self, (dir, holder): (Ino, Delegation)) -> Result<(), Failed> {
        let key = &keys::session(holder.session);
        let name = self.store.transact(|txn| async move {
            let Some(found) = txn.get(key).await? else { return Ok(None) };
            let record: SessionRecord = opened(key, &found)?;
            if record.tenure != holder.tenure {
                return Ok(None);
            }
            let tenure = record.tenure.wrapping_add(1);
            txn.put(key, SessionRecord { tenure, ..record.clone() }.seal())?;
            Ok::<_, Failed>(Some(record.name))
        });
        if let Some(name) = name.await? {
            tracing::warn!(
                session = holder.session,
                "{name} did not return inode {dir} within {FENCE_MS} ms: its delegation was fenced"
            );
            forget(self, holder.session).await?;
        }
        Ok(())
    }
}
