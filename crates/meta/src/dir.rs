//! Directory listings in pages.
//!
//! A cookie is the hash of the entry's name and its rank among entries of that hash. It needs no
//! memory anywhere, stays valid when other entries come and go, and a page costs as much as it
//! returns.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Attr, Caller, DIR_PAGE_MAX, DirEntry, DirTimes, EntryRecord, InodeRecord, MetaReply, ReadDir,
    keys,
};

use crate::error::Failed;
use crate::permit;
use crate::view::{View, opened, with_times};

/// Entries of one hash that a cookie can distinguish; further names are listed again after the last
/// one.
const RANK_MAX: u64 = (1 << keys::RANK_BITS) - 1;

const fn cookie(hash: u64, rank: u64) -> u64 {
    (hash + 1) << keys::RANK_BITS | if rank > RANK_MAX { RANK_MAX } else { rank }
}

/// Returns the hash to continue at, and the number of its entries already listed.
const fn place(cookie: u64) -> (u64, u64) {
    match cookie >> keys::RANK_BITS {
        0 => (0, 0),
        hash => (hash - 1, (cookie & RANK_MAX) + 1),
    }
}

/// Reads one page of a directory.
pub(crate) async fn read(
    view: &View,
    caller: &Caller,
    wanted: ReadDir,
) -> Result<MetaReply, Failed> {
    if caller.checked {
        view.may_see_names_of(wanted.dir).await?;
    } else {
        permit::access(caller, &view.dir(wanted.dir).await?.attr, permit::READ)?;
    }
    let limit = (wanted.limit as usize).clamp(1, DIR_PAGE_MAX);
    let (start, known) = place(wanted.after);
    let mut rest = KeyRange::prefix(&keys::entries(wanted.dir));
    rest.start = keys::entries_from(wanted.dir, start);
    let (mut entries, mut rank, mut hash) = (Vec::with_capacity(limit), 0, start);
    let mut more = Some(rest);
    while let Some(range) = more.take_if(|_| entries.len() < limit) {
        let room = limit - entries.len() + usize::try_from(known).unwrap_or(0);
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(room) };
        let page = view.txn.range(&range, options).await?;
        more = page.rest;
        for (key, value) in page.entries {
            let Some((of, name)) = keys::split_entry(&key) else { continue };
            rank = if of == hash { rank + 1 } else { 1 };
            hash = of;
            if of == start && rank <= known {
                continue;
            }
            if entries.len() == limit {
                more = Some(range);
                break;
            }
            let entry: EntryRecord = opened(&key, &value)?;
            let cookie = cookie(of, rank - 1);
            entries.push(DirEntry { cookie, name, ino: entry.ino, kind: entry.kind, attr: None });
        }
    }
    if wanted.attrs {
        fill(view, &mut entries).await?;
    }
    Ok(MetaReply::Page { entries, end: more.is_none() })
}

/// Adds the attributes; an inode that was removed in the meantime stays without.
async fn fill(view: &View, entries: &mut [DirEntry]) -> Result<(), Failed> {
    let mut wanted: Vec<Vec<u8>> = Vec::with_capacity(2 * entries.len());
    for entry in &*entries {
        wanted.push(keys::inode(entry.ino));
        wanted.push(keys::times(entry.ino));
    }
    let names: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    let mut found = view.txn.get_many_snapshot(&names).await?.into_iter();
    let mut held = Vec::new();
    for (entry, pair) in entries.iter_mut().zip(wanted.chunks(2)) {
        let (inode, times) = (found.next().flatten(), found.next().flatten());
        let Some(inode) = inode else { continue };
        let inode: InodeRecord = opened(&pair[0], &inode)?;
        if let Err(Failed::Delegated(of_dir)) = view.may_see(&inode) {
            held.extend(of_dir);
        }
        let times: Option<DirTimes> = times.map(|bytes| opened(&pair[1], &bytes)).transpose()?;
        let attr: Attr = with_times(inode.attr, times);
        entry.attr = Some(attr);
    }
    // All of them are recalled together.
    if held.is_empty() { Ok(()) } else { Err(Failed::Delegated(held)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_name_places() {
        assert_eq!(place(0), (0, 0));
        assert_eq!(place(cookie(0, 0)), (0, 1));
        assert_eq!(place(cookie((1 << 51) - 1, 7)), ((1 << 51) - 1, 8));
        assert!(i64::try_from(cookie((1 << 51) - 1, RANK_MAX)).is_ok(), "offsets are signed");
        assert!(cookie(0, 0) > 2, "'.' and '..' are 1 and 2");
    }
}
