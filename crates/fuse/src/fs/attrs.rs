//! Attributes.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::Chunks;
use millpond_env::RealClock;
use millpond_fuse_wire::abi::{self, AttrOut, SetattrIn, SetattrValid, Statx, StatxOut, StatxTime};
use millpond_fuse_wire::{Pages, Reply};
use millpond_types::meta::{Attr, Ino, MetaOp, SetAttr, SetTime, Timestamp};

use super::{Fs, Send};
use crate::backend::{Ticket, Told, unexpected};
use crate::deadline;
use crate::errno::Errno;
use crate::options::Mode;

/// How often setting a length is retried while other clients move the file to chunks and cut it to
/// nothing: fewer than the steps of a request.
const RESIZE_TRIES: usize = 8;

impl Fs {
    fn send_attr(&self, told: Told, send: Send<'_>) {
        let keeping = self.keeping();
        let (attr, kept) = keeping.attr(told);
        let (attr_valid, attr_valid_nsec) = (kept.as_secs(), kept.subsec_nanos());
        send(Reply::Attr(AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr }));
    }

    pub(super) fn get_attr(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let told = match self.known_attr(ino) {
            Some(told) => told,
            None => self.dir_attr(ticket, ino)?,
        };
        self.count_blocks(&self.here(told));
        self.send_attr(told, send);
        Ok(())
    }

    /// Attributes with the creation time, which the kernel requests once for each inode that a
    /// program asks it about, even if it has just looked the inode up.
    pub(super) fn statx(&self, ticket: &mut Ticket, ino: Ino, send: Send<'_>) -> Result<(), Errno> {
        let aged = || self.backend.settled.aged(ino, self.mode.kept());
        let known = self.known_attr(ino).map(|told| (told, Duration::ZERO)).or_else(aged);
        let (told, age) = match known {
            Some(known) => known,
            None => (self.dir_attr(ticket, ino)?, Duration::ZERO),
        };
        self.count_blocks(&self.here(told));
        let keeping = self.keeping();
        let (attr, kept) = keeping.attr(told);
        let stat = statx_of(attr, Some(told.attr.btime));
        send(Reply::Statx(&StatxOut::new(stat, kept.saturating_sub(age))));
        Ok(())
    }

    /// Attributes that are known without asking a meta.
    pub(super) fn known_attr(&self, ino: Ino) -> Option<Told> {
        if let Some(told) = self.known_dir(ino) {
            return Some(told);
        }
        // The cache of settled attributes lacks the times of a directory with promises.
        let behind = &self.backend.behind;
        if !behind.is_sole() && behind.has_dir(ino) {
            return None;
        }
        self.backend.settled.get(ino).filter(|told| self.holds(told))
    }

    pub(super) fn set_attr(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        args: &SetattrIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let set = wanted(args);
        let known = self.time_of_write(ino, &set).or_else(|| self.time_of_gone(ino, &set));
        if let Some(attr) = known.or_else(|| self.promise_time(ino, set)) {
            let attr = self.without_names(attr);
            self.send_attr(Told { attr, version: 0 }, send);
            return Ok(());
        }
        let set = self.with_set_ids_gone(ticket, (ino, set), args.valid)?;
        // Earlier writes keep their time only if the meta learns of them first.
        self.unless_refused(ino, self.tell(ino))?;
        let before = self.leases.told(ino);
        let told = if set.size.is_some() {
            self.resize(ticket, ino, set)?
        } else {
            self.set_told(ticket, ino, set)?
        };
        self.send_attr(told, send);
        // The kernel takes these attributes without checking its pages. Another client changed the
        // file in between, so the next open drops them.
        if before.is_none_or(|before| before + 1 < told.attr.version) {
            self.leases.forget(ino);
        }
        Ok(())
    }

    /// Updates the access time when an inode is opened for reading.
    pub(super) fn note_read(&self, ticket: &mut Ticket, (told, flags): (Told, i32)) {
        let at = Timestamp::from_unix_nanos(RealClock::wall_nanos());
        let reads = flags & libc::O_ACCMODE != libc::O_WRONLY && flags & libc::O_NOATIME == 0;
        if !self.relatime || !reads || !told.attr.is_read_due(at) {
            return;
        }
        let set = SetAttr { read: Some(at), ..SetAttr::default() };
        let done = self.backend.attr(ticket, MetaOp::SetAttr { ino: told.attr.ino, set });
        // An error does not fail the open.
        match (done, self.device.get()) {
            (Ok(_), Some(device)) => drop(device.inval_inode(told.attr.ino.0, Pages::None)),
            (Err(Errno(errno)), _) => tracing::debug!("cannot record a read: errno {errno}"),
            _ => {}
        }
    }

    /// Sets attributes of a file after its bytes were reported to a meta. No other thread reports
    /// bytes in the meantime, so that the time of an earlier write does not replace the time that
    /// is set.
    fn set_told(&self, ticket: &mut Ticket, ino: Ino, set: SetAttr) -> Result<Told, Errno> {
        let file = self.files().get(ino).filter(|_| set.mtime.is_some());
        let _shared = file.as_ref().map(|file| deadline::read(&file.gate)).transpose()?;
        let _telling = file.as_ref().map(|file| deadline::lock(&file.telling)).transpose()?;
        self.backend.attr(ticket, MetaOp::SetAttr { ino, set })
    }

    /// Takes the time of a write from the kernel.
    ///
    /// A kernel that keeps the modification time sends it before every fsync: the time of the
    /// write, not of the write-back. A meta gets it soon, in place of the time of arrival. Returns
    /// the file's attributes, or `None` when the request sets more.
    fn time_of_write(&self, ino: Ino, set: &SetAttr) -> Option<Attr> {
        let Some(SetTime::At(at)) = set.mtime else { return None };
        if self.mode != Mode::OneWriter || !sets_times_of_write(set) {
            return None;
        }
        let file = self.files().get(ino)?;
        let attr = self.files().wrote_at(&file, at)?;
        // A report with the other time may be in flight.
        self.files().note_untold(ino);
        self.wake.wake();
        Some(attr)
    }

    /// Attributes of a file without the name that a promise removes: a program that has the file
    /// open sees that at once.
    pub(super) fn without_names(&self, attr: Attr) -> Attr {
        let is_gone = self.backend.behind.single.gone(attr.ino).is_some();
        if is_gone { Attr { nlink: 0, ..attr } } else { attr }
    }

    /// The kernel also sends it for a file whose only name it has just removed.
    fn time_of_gone(&self, ino: Ino, set: &SetAttr) -> Option<Attr> {
        let gone = self.backend.behind.single.gone(ino)?;
        (sets_times_of_write(set) && !self.files().is_open(ino)).then_some(gone)
    }

    /// Sets a new length, and perhaps other attributes. No read or write of this mount runs in the
    /// meantime.
    pub(super) fn resize(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        set: SetAttr,
    ) -> Result<Told, Errno> {
        let file = self.files().get(ino);
        if let Some(file) = &file {
            self.drop_capabilities(ticket, file)?;
        }
        let _alone = file.as_ref().map(|file| deadline::write(&file.gate)).transpose()?;
        let size = set.size.unwrap_or(0);
        // An earlier process cut it before it asked a meta: another client may have written beyond
        // that end since.
        let mut is_cut = self.files().knows(ticket.unique());
        if let Some(file) = &file {
            // A cut to nothing drops the held bytes too.
            if size == 0 {
                self.unless_refused(ino, self.tell_of(file))?;
            } else {
                self.unless_refused(ino, self.settle(file))?;
            }
        }
        for _ in 0..RESIZE_TRIES {
            let mut set = set;
            if size > 0 {
                let told = self.backend.attr(ticket, MetaOp::GetAttr { ino })?;
                let old = self.here(told);
                set.stored = old.is_stored();
                if size != old.size && !set.stored && !std::mem::take(&mut is_cut) {
                    let known = file.as_ref().map_or_else(|| self.files().known(told), Arc::clone);
                    // Beyond the end there may be bytes of a write that was never finished.
                    let cut = |chunks: &Chunks, old| self.cut(&known, chunks, (size.min(old), old));
                    set.stored = self.change(&known, cut)?.is_none();
                }
            }
            let told = self.backend.attr(ticket, MetaOp::SetAttr { ino, set });
            self.ahead.changed(ino);
            let told = told?;
            let _ = self.here(told);
            if told.attr.size != size {
                // Its bytes were moved to chunks in between.
                continue;
            }
            if let Some(file) = &file {
                self.files().give_up_length(file);
                if size == 0 {
                    self.files().sent(file);
                }
            }
            return Ok(told);
        }
        Err(unexpected())
    }
}

/// Converts attributes to the form of `statx(2)`.
pub(crate) fn statx_of(attr: abi::Attr, born: Option<Timestamp>) -> Statx {
    let time = |secs: u64, nanos| StatxTime {
        tv_sec: secs.cast_signed(),
        tv_nsec: nanos,
        ..StatxTime::default()
    };
    let has = if born.is_some() { libc::STATX_BTIME } else { 0 };
    let born = born.unwrap_or_default();
    // Encoded as the kernel does it for programs: 12 bits between the two parts of a minor number.
    let (major, minor) =
        ((attr.rdev & 0xf_ff00) >> 8, (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00));
    Statx {
        mask: libc::STATX_BASIC_STATS | has,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: u16::try_from(attr.mode).unwrap_or(0),
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime, attr.atimensec),
        btime: time(born.secs.cast_unsigned(), born.nanos),
        ctime: time(attr.ctime, attr.ctimensec),
        mtime: time(attr.mtime, attr.mtimensec),
        rdev_major: major,
        rdev_minor: minor,
        ..Statx::default()
    }
}

/// Whether these are the attributes that the kernel sends before an fsync: the times of a write,
/// and nothing else.
pub(super) fn sets_times_of_write(set: &SetAttr) -> bool {
    let times = SetAttr { mtime: set.mtime, ctime: set.ctime, ..SetAttr::default() };
    matches!(set.mtime, Some(SetTime::At(_))) && *set == times
}

/// The attributes that the kernel sets.
fn wanted(args: &SetattrIn) -> SetAttr {
    let has = |flag| args.valid.contains(flag);
    let time = |flag, now, secs: u64, nanos| {
        if has(now) {
            Some(SetTime::Now)
        } else {
            let at = Timestamp { secs: secs.cast_signed(), nanos };
            has(flag).then_some(SetTime::At(at))
        }
    };
    let (atime, mtime) = (SetattrValid::ATIME, SetattrValid::MTIME);
    SetAttr {
        mode: has(SetattrValid::MODE).then(|| u16::try_from(args.mode & 0o7777).unwrap_or(0)),
        uid: has(SetattrValid::UID).then_some(args.uid),
        gid: has(SetattrValid::GID).then_some(args.gid),
        size: has(SetattrValid::SIZE).then_some(args.size),
        atime: time(atime, SetattrValid::ATIME_NOW, args.atime, args.atimensec),
        mtime: time(mtime, SetattrValid::MTIME_NOW, args.mtime, args.mtimensec),
        ctime: has(SetattrValid::CTIME)
            .then(|| Timestamp { secs: args.ctime.cast_signed(), nanos: args.ctimensec }),
        stored: false,
        read: None,
    }
}
