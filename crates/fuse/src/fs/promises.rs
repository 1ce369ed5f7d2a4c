//! Operations that a mount answers before a meta has executed them, where no other client sees or
//! changes anything.

use std::ops::Range;
use std::sync::Arc;

use millpond_env::RealClock;
use millpond_fuse_wire::Pages;
use millpond_types::meta::{
    AclKind, After, Answered, Attr, Content, Create, DirEntry, Extend, FileKind, Ino, MetaError,
    MetaOp, MetaReply, Name, PromisedFile, SetAttr, Timestamp, WriteInline,
};

use super::Fs;
use super::attrs::sets_times_of_write;
use crate::backend::{Ticket, Told, unexpected};
use crate::behind::{Delegations, Known, Promise, promised_attr};
use crate::deadline;
use crate::errno::Errno;
use crate::files::{File, Written};
use crate::options::Mode;

/// The number of inode numbers reserved at a time for new files.
const NUMBERS: u32 = 1024;

impl Fs {
    /// Looks a name up and caches its inode, on a mount that makes promises.
    pub(super) fn ask_for_name(
        &self,
        ticket: &mut Ticket,
        (parent, name): (Ino, &[u8]),
        op: MetaOp,
    ) -> Result<Answered, Errno> {
        let behind = &self.backend.behind;
        let name = Name::new(name).ok().filter(|_| behind.has_dir(parent));
        let Some(name) = name.filter(|_| matches!(op, MetaOp::Lookup { .. })) else {
            return self.backend.ask(ticket, op);
        };
        if behind.known(parent, &name) == Some(Known::IsNot) {
            return Ok(Answered {
                answer: Err(MetaError::NotFound),
                version: 0,
                after: After::default(),
            });
        }
        let (changes, of_links) = (behind.names.changes(parent, &name), behind.single.changes());
        let answered = self.backend.ask(ticket, op.clone())?;
        match &answered.answer {
            Ok(MetaReply::Entry(entry)) => {
                let attr = &entry.attr;
                if behind.is_pending(attr.ino) {
                    // Its new length is in flight, and unknown to that meta.
                    behind.wait_inode(attr.ino)?;
                    return self.backend.ask(ticket, op);
                }
                if attr.kind != FileKind::Directory {
                    behind.names.note(parent, &name, Known::Is(attr.ino), changes);
                    behind.single.note(attr, of_links);
                }
            }
            Err(MetaError::NotFound) => behind.names.note(parent, &name, Known::IsNot, changes),
            _ => {}
        }
        Ok(answered)
    }

    /// Notes a file that a meta has made for this mount.
    pub(super) fn note_made(&self, parent: Ino, name: &Name, (attr, is_new): (Attr, bool)) {
        let behind = &self.backend.behind;
        if behind.has_dir(parent) {
            let of_links = behind.single.changes();
            behind.names.set(parent, name, Known::Is(attr.ino));
            behind.single.note(&attr, of_links);
            if let Some(delegations) = behind.delegations.as_ref().filter(|_| is_new) {
                delegations.made(attr.ino, parent);
            }
        }
    }

    /// Has a meta make a directory, and notes it: no other client has made names in it.
    pub(super) fn make_dir(&self, ticket: &mut Ticket, wanted: Create) -> Result<Told, Errno> {
        let (parent, behind) = (wanted.parent, &self.backend.behind);
        if !behind.is_on() {
            return self.backend.attr(ticket, MetaOp::Create(wanted));
        }
        let _ = self.is_free(parent);
        let of_lists = behind.dirs.list_changes();
        if behind.has_dir(parent) {
            let _ = self.is_listless(parent);
        }
        let told = match &behind.delegations {
            Some(delegations) => match self.make_delegated(ticket, wanted, delegations)? {
                (told, true) => told,
                (told, false) => return Ok(told),
            },
            None => self.backend.attr(ticket, MetaOp::Create(wanted))?,
        };
        let changes = behind.dirs.changes();
        behind.names.note_dir(told.attr.ino);
        behind.dirs.note_made(parent, told.attr, changes);
        if behind.has_dir(parent) {
            // The parent was this mount's all the time, so no other client has set a list.
            behind.dirs.note_list_of_made(parent, told.attr.ino, of_lists);
        }
        Ok(told)
    }

    /// Has a meta make a directory that no other client sees before its recall; returns whether it
    /// is one.
    fn make_delegated(
        &self,
        ticket: &mut Ticket,
        wanted: Create,
        delegations: &Delegations,
    ) -> Result<(Told, bool), Errno> {
        if delegations.tenure().is_none() {
            let _ = self.ask_for_recalls(delegations);
            delegations.ask_soon();
        }
        let (asked, delegate) = (RealClock::tick(), delegations.tenure());
        let op = MetaOp::Create(Create { delegate, ..wanted });
        let Answered { answer, version, after } = self.backend.ask(ticket, op)?;
        let (attr, given) = match answer? {
            // A repeated answer may be outdated.
            MetaReply::Delegated(attr) => (attr, delegate.filter(|_| after.version > 0)),
            MetaReply::Entry(entry) => (entry.attr, None),
            _ => return Err(unexpected()),
        };
        let is_ours = given.is_some_and(|tenure| delegations.add(attr.ino, (asked, tenure)));
        Ok((Told { attr, version }, is_ours))
    }

    /// Notes a page of a directory from a meta that was asked after `changes` changes.
    pub(super) fn note_page(&self, dir: Ino, entries: &[DirEntry], changes: u64) {
        if self.backend.behind.has_dir(dir) {
            let is = |entry: &DirEntry| {
                let is_dir = entry.kind == FileKind::Directory;
                (!is_dir).then(|| (entry.name.clone(), Known::Is(entry.ino)))
            };
            self.backend.behind.names.note_page(dir, entries.iter().filter_map(is), changes);
        }
    }

    /// Makes a file that is known not to exist; `None` when a meta must be asked.
    pub(super) fn promise_create(&self, ticket: &Ticket, wanted: &Create) -> Option<Told> {
        let behind = &self.backend.behind;
        if !behind.is_on() {
            return None;
        }
        if self.files().knows(ticket.unique()) {
            // A resend: an earlier process may have promised it.
            let before = behind.made_before(ticket.first_sequence());
            return before.map(|attr| Told { attr, version: 0 });
        }
        let _still = behind.still();
        let known = behind.known(wanted.parent, &wanted.name);
        if known != Some(Known::IsNot) || !self.takes_promises(wanted.parent) {
            return None;
        }
        let ino = self.next_number()?;
        // The kernel's clock: the times of its writes are not before the file's creation.
        let at = Timestamp::from_unix_nanos(RealClock::wall_nanos_of_files());
        let promised = Some(PromisedFile { ino, at, written: at, bytes: Vec::new() });
        // No default list applies here, so the umask does.
        let mode = wanted.mode & !wanted.umask.unwrap_or(0);
        let create = Create { exclusive: true, mode, umask: None, promised, ..wanted.clone() };
        // If a meta must be asked after all, it gets the same number, as if nothing had been tried.
        let request = self.backend.request(&mut ticket.clone(), MetaOp::Create(create));
        let attr = promised_attr(&request)?;
        if !behind.promise(self.files(), ino, &request) {
            return None;
        }
        behind.names.set(wanted.parent, &wanted.name, Known::Is(ino));
        behind.dirs.touch(wanted.parent, at);
        behind.single.note(&attr, behind.single.changes());
        if let Some(delegations) = &behind.delegations {
            delegations.made(ino, wanted.parent);
        }
        let told = Told { attr, version: 0 };
        self.backend.settled.note(told, self.backend.settled.changes(ino));
        Some(told)
    }

    /// Removes a name that is known to exist; false when a meta must be asked.
    pub(super) fn promise_unlink(&self, ticket: &Ticket, parent: Ino, name: &Name) -> bool {
        let behind = &self.backend.behind;
        if !behind.is_on() {
            return false;
        }
        if self.files().knows(ticket.unique()) {
            return behind.was_promised(ticket.first_sequence());
        }
        let _still = behind.still();
        let Some(Known::Is(ino)) = behind.known(parent, name) else { return false };
        // Other clients with the file open must be notified.
        if !behind.has_file(ino) {
            return false;
        }
        // Under a quota, a removal makes room at once.
        if !self.is_free(parent) {
            return false;
        }
        let op = MetaOp::Unlink { parent, name: name.clone(), of: Some(ino) };
        let request = self.backend.request(&mut ticket.clone(), op);
        let promised = behind.promise(self.files(), ino, &request);
        if promised {
            self.backend.settled.changed(ino);
            behind.names.set(parent, name, Known::IsNot);
            behind.single.unlinked(ino);
            behind.dirs.touch(parent, Timestamp::from_unix_nanos(RealClock::wall_nanos()));
        }
        promised
    }

    /// Whether written bytes may reach a meta after the close was answered: promises them.
    pub(crate) fn promises_bytes(&self, ino: Ino) -> bool {
        let _still = self.backend.behind.still();
        let Some(file) = self.takes_promises_of(ino) else { return false };
        let Ok(_alone) = deadline::write(&file.gate) else { return false };
        self.promise_written(&file)
    }

    /// An open file for which this mount may make promises.
    fn takes_promises_of(&self, ino: Ino) -> Option<Arc<File>> {
        let behind = &self.backend.behind;
        if !behind.has_file(ino) {
            return None;
        }
        let file = self.files().get(ino)?;
        // It may have been moved to where a quota applies.
        let stays = file.is_fresh(behind.dirs.unmoved_for());
        (stays && self.is_free(file.told().parent)).then_some(file)
    }

    /// Promises written bytes that no meta knows of; false when some cannot be promised. The caller
    /// has exclusive access to the file.
    fn promise_written(&self, file: &File) -> bool {
        let (ino, settled) = (file.ino, &self.backend.settled);
        let changes = settled.changes(ino);
        let promised = match (self.files().unsent(ino), file.untold()) {
            (None, None) => return !self.files().has_held(ino),
            (Some(held), None) => self.promise(
                ino,
                MetaOp::WriteInline(WriteInline {
                    ino,
                    data: held.data,
                    offset: held.offset,
                    bytes: held.bytes,
                    mtime: held.at,
                }),
            ),
            // Bytes that may already be reported to a meta are reported again first.
            (None, Some(written))
                if !self.files().has_held(ino) && !self.files().is_told_of(ino) =>
            {
                let (Written { end, at, data }, filled) = (written, file.first_filled());
                let extend = Extend { ino, data, size: end, mtime: at, filled };
                self.promise(ino, MetaOp::Extend(extend))
            }
            _ => false,
        };
        if promised {
            let told = Told { attr: self.without_names(file.attr()), version: file.version() };
            settled.note(told, changes);
        }
        promised
    }

    /// Promises the times of a file with pending promises, when a program sets them or the kernel
    /// sends the times of its writes. They follow the earlier writes, because a meta asked now
    /// would wait for all of those. Returns the file's attributes.
    pub(super) fn promise_time(&self, ino: Ino, set: SetAttr) -> Option<Attr> {
        let behind = &self.backend.behind;
        if !sets_times_of_write(&set) || !behind.is_on() {
            return None;
        }
        let _still = behind.still();
        let file = self.takes_promises_of(ino)?;
        let _alone = deadline::write(&file.gate).ok()?;
        if !self.promise_written(&file) || !behind.is_pending(ino) {
            return None;
        }
        let settled = &self.backend.settled;
        let changes = settled.changes(ino);
        if !self.promise(ino, MetaOp::SetAttr { ino, set }) {
            return None;
        }
        let attr = self.without_names(file.attr());
        settled.note(Told { attr, version: file.version() }, changes);
        Some(attr)
    }

    /// Promises an operation of the mount itself.
    fn promise(&self, ino: Ino, op: MetaOp) -> bool {
        let request = self.backend.request(&mut self.backend.own_ticket(), op);
        self.backend.behind.promise(self.files(), ino, &request)
    }

    /// Whether creates in a directory have the result that this mount expects: files get the
    /// caller's group and the requested mode, and no quota rejects them.
    fn takes_promises(&self, dir: Ino) -> bool {
        if !self.is_listless(dir) {
            return false;
        }
        let dirs = &self.backend.behind.dirs;
        if let Some(known) = dirs.takes_promises(dir) {
            return known;
        }
        if !self.is_free(dir) {
            return false;
        }
        if dirs.attr(dir).is_none() {
            let _ = self.dir_attr(&mut self.backend.own_ticket(), dir);
        }
        dirs.takes_promises(dir) == Some(true)
    }

    /// Whether no quota applies in a directory.
    fn is_free(&self, dir: Ino) -> bool {
        let dirs = &self.backend.behind.dirs;
        if let Some(known) = dirs.is_free(dir) {
            return known;
        }
        let changes = dirs.changes();
        let op = MetaOp::GetQuota { ino: dir };
        let answered = self.backend.ask(&mut self.backend.own_ticket(), op);
        let free = match answered.map(|reply| reply.answer) {
            Ok(Err(MetaError::NoData)) => true,
            Ok(Ok(_)) => false,
            _ => return false,
        };
        dirs.note_free(dir, free, changes);
        free
    }

    /// Whether files inherit no access control list from a directory, as far as this mount allows
    /// lists at all.
    fn is_listless(&self, dir: Ino) -> bool {
        let dirs = &self.backend.behind.dirs;
        if !self.acl {
            return true;
        }
        if let Some(known) = dirs.is_listless(dir) {
            return known;
        }
        let changes = dirs.list_changes();
        let op = MetaOp::GetXattr { ino: dir, name: AclKind::Default.name() };
        let answered = self.backend.ask(&mut self.backend.own_ticket(), op);
        let listless = match answered.map(|answered| answered.answer) {
            Ok(Err(MetaError::NoData)) => true,
            Ok(Ok(_)) => false,
            _ => return false,
        };
        dirs.note_listless(dir, listless, changes);
        listless
    }

    /// The attributes of a directory with promises of this mount.
    pub(super) fn known_dir(&self, ino: Ino) -> Option<Told> {
        let behind = &self.backend.behind;
        let attr = behind.dirs.attr(ino).filter(|_| behind.has_dir(ino))?;
        Some(Told { attr, version: 0 })
    }

    /// Notes that a meta has executed a promise for a file, and the reported state.
    pub(crate) fn is_kept(&self, promise: &Promise, told: Told) {
        if self.mode != Mode::CloseToOpen || !self.backend.behind.has_file(promise.ino) {
            return;
        }
        // No other client has written to it: the kernel has the promised bytes.
        self.leases.tells(promise.ino, told.attr.version);
        let bytes = match &promise.request.op {
            MetaOp::Create(Create { promised: Some(promised), .. }) => &promised.bytes,
            MetaOp::WriteInline(write) if write.offset == 0 => &write.bytes,
            _ => return,
        };
        if told.attr.is_stored() && told.attr.size == bytes.len() as u64 {
            let content = Content { attr: told.attr, bytes: bytes.clone() };
            self.backend.contents.insert(promise.ino.0, Arc::new(content));
        }
    }

    /// Asks a meta for the attributes of a directory, and caches them.
    pub(super) fn dir_attr(&self, ticket: &mut Ticket, ino: Ino) -> Result<Told, Errno> {
        let dirs = &self.backend.behind.dirs;
        let changes = dirs.changes();
        let told = self.backend.attr(ticket, MetaOp::GetAttr { ino })?;
        if told.attr.is_dir() && self.backend.behind.has_dir(ino) {
            dirs.note(told.attr, changes);
        }
        Ok(told)
    }

    /// The state of a file being opened, if this mount knows it: its bytes come from the store when
    /// they are read.
    pub(super) fn known_file(&self, ino: Ino) -> Option<Told> {
        if !self.backend.behind.has_file(ino) {
            return None;
        }
        self.backend.settled.get(ino).filter(|told| told.attr.is_stored() && told.attr.nlink > 0)
    }

    /// A reserved number for a new file.
    pub(super) fn next_number(&self) -> Option<Ino> {
        let mut left = self.backend.numbers.lock();
        if left.is_empty() {
            let op = MetaOp::TakeNumbers { count: NUMBERS };
            *left = match self.backend.meta(&mut self.backend.own_ticket(), op) {
                Ok(MetaReply::Numbers { first }) => first..first + u64::from(NUMBERS),
                Ok(_) => {
                    let _ = unexpected();
                    Range::default()
                }
                Err(_) => Range::default(),
            };
        }
        left.next().map(Ino)
    }

    /// Waits until a meta has executed all promises for a file, so that the place of its bytes is
    /// known: a meta chooses it when it makes the file. The caller has exclusive access to the
    /// file.
    pub(super) fn settle_place(&self, file: &File) -> Result<(), Errno> {
        self.backend.behind.wait_inode(file.ino)?;
        if file.attr().layout.chains == 0 {
            self.backend.behind.failure(file.ino)?;
            // A meta reported it before the file was opened.
            let op = MetaOp::GetAttr { ino: file.ino };
            let _ = file.learn(self.backend.attr(&mut self.backend.own_ticket(), op)?);
        }
        Ok(())
    }

    /// Makes the kernel forget a failed promise.
    pub(crate) fn forget_promised(&self, promise: &Promise) {
        let Some(device) = self.device.get() else { return };
        // Errors only concern inodes and names that the kernel does not know.
        let _ = device.inval_inode(promise.ino.0, Pages::All);
        match &promise.request.op {
            MetaOp::Create(Create { parent, name, .. }) | MetaOp::Unlink { parent, name, .. } => {
                let _ = device.inval_entry(parent.0, name.as_bytes());
            }
            _ => {}
        }
    }
}
