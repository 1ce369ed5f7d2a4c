//! Directories, in pages from a meta: listings are not cached.

use millpond_fuse_wire::abi::{Attr as KernelAttr, EntryOut, OpenFlags, OpenIn, OpenOut, ReadIn};
use millpond_fuse_wire::{DirBuffer, FileKind as EntryKind, Reply};
use millpond_types::meta::{
    Answered, Attr, DIR_PAGE_MAX, DirEntry, Ino, MetaOp, MetaReply, ReadDir,
};

use super::{Fs, Keeping, Send};
use crate::backend::{Ticket, Told, unexpected};
use crate::errno::Errno;

/// Cookies of the two entries that every directory has; those of a meta are larger.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Bytes of an average entry, with a name of some twenty bytes.
const ENTRY_BYTES: usize = 48;
/// Bytes of an average entry with attributes.
const ENTRY_PLUS_BYTES: usize = 176;

impl Fs {
    pub(super) fn open_dir(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        (args, send): (&OpenIn, Send<'_>),
    ) -> Result<(), Errno> {
        let told = match self.known_dir(ino) {
            Some(told) => told,
            None => self.dir_attr(ticket, ino)?,
        };
        self.note_read(ticket, (told, args.flags.cast_signed()));
        let _file = self.files().open(ticket.unique(), told);
        send(Reply::Open(OpenOut::new(0, OpenFlags::NONE)));
        Ok(())
    }

    pub(super) fn read_dir(
        &self,
        ticket: &mut Ticket,
        dir: Ino,
        (args, plus): (&ReadIn, bool),
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let mut buffer = DirBuffer::new(args.size as usize);
        let mut fits = true;
        if args.offset < DOT_DOT {
            let dir = self.backend.attr(ticket, MetaOp::GetAttr { ino: dir })?;
            fits = push_dots(&mut buffer, (&dir.attr, args.offset), plus);
        }
        if fits {
            let each = if plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
            let limit = (args.size as usize / each).clamp(1, DIR_PAGE_MAX);
            let limit = u32::try_from(limit).unwrap_or(1);
            let after = if args.offset <= DOT_DOT { 0 } else { args.offset };
            let page = MetaOp::ReadDir(ReadDir { dir, after, limit, attrs: plus });
            let changes = self.backend.behind.names.all_changes();
            let before = self.backend.settled.all_changes();
            let Answered { answer, version, .. } = self.backend.ask(ticket, page)?;
            let MetaReply::Page { entries, .. } = answer? else { return Err(unexpected()) };
            self.note_page(dir, &entries, changes);
            for attr in entries.iter().filter_map(|entry| entry.attr) {
                self.note_looked(Told { attr, version }, before);
            }
            let keeping = plus.then(|| self.keeping());
            for entry in &entries {
                // The kernel would take the name for the file of the listing.
                let hidden = self.watch.hides(dir, entry.name.as_bytes());
                let bare = hidden.then(|| DirEntry { attr: None, ..entry.clone() });
                let entry = bare.as_ref().unwrap_or(entry);
                if !push(&mut buffer, (dir, entry), version, keeping.as_ref()) {
                    break;
                }
            }
            send(Reply::Directory(&buffer));
            return Ok(());
        }
        send(Reply::Directory(&buffer));
        Ok(())
    }
}

/// Adds an entry, with attributes if the kernel may cache them; false when it does not fit.
fn push(
    buffer: &mut DirBuffer,
    (dir, entry): (Ino, &DirEntry),
    version: u64,
    keeping: Option<&Keeping<'_>>,
) -> bool {
    let kind = EntryKind::of_mode(entry.kind.mode_bits());
    let name = entry.name.as_bytes();
    let Some(keeping) = keeping else {
        return buffer.push(entry.ino.0, entry.cookie, kind, name);
    };
    let out = if let Some(attr) = entry.attr {
        keeping.entry((dir, name), Told { attr, version })
    } else {
        let attr = KernelAttr { ino: entry.ino.0, ..KernelAttr::default() };
        EntryOut { attr, ..EntryOut::default() }
    };
    buffer.push_plus(&out, entry.cookie, kind, name)
}

/// Adds `.` and `..`; false when there is no room for more.
fn push_dots(buffer: &mut DirBuffer, (attr, offset): (&Attr, u64), plus: bool) -> bool {
    let mut push = |ino: Ino, cookie, name: &[u8]| {
        if !plus {
            return buffer.push(ino.0, cookie, EntryKind::DIRECTORY, name);
        }
        // Without a node id: the kernel takes no reference of these.
        let attr = KernelAttr { ino: ino.0, ..KernelAttr::default() };
        let entry = EntryOut { attr, ..EntryOut::default() };
        buffer.push_plus(&entry, cookie, EntryKind::DIRECTORY, name)
    };
    (offset >= DOT || push(attr.ino, DOT, b".")) && push(attr.parent, DOT_DOT, b"..")
}
