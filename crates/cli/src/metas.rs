//! Commands ask the metas of a cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use millpond_client::{Addresses, Client, ClientOptions};
use millpond_env::{RealClock, effective_gid, effective_uid, supplementary_groups};
use millpond_store::KeyRange;
use millpond_types::meta::{Caller, MetaOp, MetaReply, MetaRequest, RecordRange, keys};
use parking_lot::Mutex;

/// Time for one question: long enough for another meta to answer it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The metas of a cluster, and a session for what changes something.
pub(super) struct Metas {
    pub(super) client: Client,
    session: Mutex<Option<u64>>,
    sequence: AtomicU64,
}

impl Metas {
    /// Of the cluster at these addresses.
    pub(super) fn of(addresses: Addresses, token: &str) -> anyhow::Result<Self> {
        let mut options = ClientOptions::new(addresses);
        token.clone_into(&mut options.token);
        let client = Client::new(options)?;
        Ok(Self { client, session: Mutex::default(), sequence: AtomicU64::new(1) })
    }

    fn send(&self, session: u64, caller: Caller, op: MetaOp) -> anyhow::Result<MetaReply> {
        let hour = u32::try_from(RealClock::wall_ms() / 3_600_000)?;
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let request = MetaRequest { session, sequence, hour, caller, op };
        Ok(self.client.meta(&request, Some(PATIENCE))?.answer?)
    }

    /// Looks or changes something, as an operator who may do everything.
    ///
    /// # Errors
    /// A `MetaError` is a refusal; anything else means that no meta answered.
    pub(super) fn ask(&self, op: MetaOp) -> anyhow::Result<MetaReply> {
        self.ask_for(Caller::checked(0, 0), op)
    }

    /// As [`Metas::ask`], as the user who asks.
    ///
    /// # Errors
    /// As for [`Metas::ask`].
    pub(super) fn ask_as_me(&self, op: MetaOp) -> anyhow::Result<MetaReply> {
        let (uid, gid) = (effective_uid(), effective_gid());
        let groups = supplementary_groups().unwrap_or_default();
        self.ask_for(Caller { uid, gid, groups, checked: false }, op)
    }

    /// As [`Metas::ask`], on behalf of this caller.
    ///
    /// # Errors
    /// As for [`Metas::ask`].
    pub(super) fn ask_for(&self, caller: Caller, op: MetaOp) -> anyhow::Result<MetaReply> {
        let session = if op.changes() { self.session()? } else { 0 };
        self.send(session, caller, op)
    }

    /// Whether nobody but this command has a session: nothing is mounted.
    ///
    /// # Errors
    /// As for [`Metas::ask`].
    pub(super) fn are_alone(&self) -> anyhow::Result<bool> {
        let own = *self.session.lock();
        let KeyRange { mut start, end } = KeyRange::prefix(keys::SESSIONS);
        loop {
            let wanted = RecordRange { start, end: end.clone(), values: false };
            let MetaReply::Records(page) = self.ask_as_me(MetaOp::Records(wanted))? else {
                bail!("unexpected answer from a meta: is it of another version?");
            };
            let mut all = page.entries.iter().map(|(key, _)| keys::number(keys::SESSIONS, key));
            if all.any(|session| session != own) {
                return Ok(false);
            }
            match page.next {
                Some(next) => start = next,
                None => return Ok(true),
            }
        }
    }

    fn session(&self) -> anyhow::Result<u64> {
        let mut session = self.session.lock();
        if let Some(id) = *session {
            return Ok(id);
        }
        let name = "millpond command".to_owned();
        let MetaReply::Session(opened) = self.ask(MetaOp::SessionOpen { name })? else {
            bail!("unexpected answer from a meta: is it of another version?");
        };
        Ok(*session.insert(opened.id))
    }
}

impl Drop for Metas {
    fn drop(&mut self) {
        if let Some(session) = self.session.lock().take() {
            // It would end by itself.
            let _ = self.send(session, Caller::checked(0, 0), MetaOp::SessionClose);
        }
    }
}
