//! Keys of the file namespace's records in the transactional store.
//!
//! | key | record |
//! |---|---|
//! | `f/volume` | [`super::VolumeRecord`] |
//! | `f/by` | the session of the newest change, for watchers; every change writes it blindly |
//! | `f/ids` | [`super::CounterRecord`]: the next inode and data ids |
//! | `f/i` ino | [`super::InodeRecord`] |
//! | `f/t` ino | [`super::DirTimes`] of a directory: written blindly by changes of entries |
//! | `f/d` ino hash name | [`super::EntryRecord`] |
//! | `f/n` dir place | like `f/d`, in key order, for objects ([`super::object::places`]) |
//! | `f/a` ino | [`super::object::AttachmentRecord`]: bytes that a gateway keeps with an inode |
//! | `f/p` bucket upload | [`super::object::UploadRecord`]: a multipart upload |
//! | `f/p` bucket upload part | [`super::object::PartRecord`]; the part's number has two bytes |
//! | `f/v` bucket key NUL upload | nothing: the upload, in the order of keys |
//! | `f/w` bucket upload | nothing: the upload has ended, and its parts are to be removed |
//! | `f/b` bucket | [`super::object::Backing`]: the backend of the bucket |
//! | `f/e` bucket key | [`super::object::KeyState`] of a key in a backed bucket |
//! | `f/y` bucket lane due n | [`super::object::QueueRecord`]; the lane has one byte |
//! | `f/c` ino | [`super::ContentRecord`]: the bytes of a file without chunks |
//! | `f/m` ino | nothing: the file's bytes in the store are to move to chunks |
//! | `f/x` ino name | the value of an extended attribute, unencoded |
//! | `f/o` ino | [`super::OrphanRecord`]: an inode without a name that may be open |
//! | `f/g` data | [`super::GarbageRecord`]: bytes that nobody can reach |
//! | `f/h` chunks | [`super::SharedRecord`]: chunks that several files share or that are bases |
//! | `f/s` session | [`super::SessionRecord`] |
//! | `f/k` ino | [`super::LocksRecord`] |
//! | `f/l` session ino | nothing: the session has locks on the inode |
//! | `f/j` session ino | nothing: the session must return the directory |
//! | `f/q` ino | [`super::QuotaRecord`]: the directory has a quota |
//! | `f/r` dir ino | [`super::TrashRecord`]: a kept inode that was removed from the directory |
//! | `f/z` key | an unreadable record, as it was stored under the key |
//! | `f/u` ino shard | [`super::UsageRecord`]: a part of that quota's usage |
//!
//! Numbers are big endian, so that they sort. The entries of a directory are in the order of a hash
//! of their names. So a position in it is a number (a directory stream's cookie), and it stays
//! valid when entries are added or removed in the meantime.

use xxhash_rust::xxh3::xxh3_64;

use super::object::{Place, UploadId};
use super::{Ino, Name, USAGE_SHARDS, XattrName};

/// Prefix of all keys of the file namespace.
pub const PREFIX: &[u8] = b"f/";
/// Key of [`super::VolumeRecord`].
pub const VOLUME: &[u8] = b"f/volume";
/// Key of the session that made the newest change: 8 bytes, big endian.
pub const BY: &[u8] = b"f/by";
/// Key of [`super::CounterRecord`].
pub const IDS: &[u8] = b"f/ids";
/// Prefix of an orphan's inode number.
pub const ORPHANS: &[u8] = b"f/o";
/// Prefix of a garbage data id.
pub const GARBAGE: &[u8] = b"f/g";
/// Prefix of a session's number.
pub const SESSIONS: &[u8] = b"f/s";
/// Prefix of an inode's number.
pub const INODES: &[u8] = b"f/i";
/// Prefix of a directory's number, for its entries.
pub const ENTRIES: &[u8] = b"f/d";
/// Prefix of a directory's number, for the times of its entries.
pub const TIMES: &[u8] = b"f/t";
/// Prefix of the number of an inode with extended attributes.
pub const XATTRS: &[u8] = b"f/x";

/// Prefix of the number of a file with its bytes in the store.
pub const CONTENTS: &[u8] = b"f/c";
/// Prefix of the number of a file with so many bytes in the store that they must move to chunks.
pub const LARGE: &[u8] = b"f/m";
/// Prefix of a name of chunks that several files share, or that have bases.
pub const SHARED: &[u8] = b"f/h";
/// Prefix of the number of an inode with locks.
pub const LOCKS: &[u8] = b"f/k";
/// Prefix of the number of a session with locks.
pub const LOCKED: &[u8] = b"f/l";
/// Prefix of the number of a session that must return directories.
pub const RECALLED: &[u8] = b"f/j";
/// Prefix of the number of a directory with a quota.
pub const QUOTAS: &[u8] = b"f/q";
/// Prefix of the number of a directory with a trash.
pub const TRASH: &[u8] = b"f/r";
/// Prefix of the key of an unreadable record.
pub const ASIDE: &[u8] = b"f/z";
/// Prefix of the number of a directory with a quota, for its usage.
pub const USAGE: &[u8] = b"f/u";

/// Prefix of a directory of objects, for the places of its names.
pub const PLACES: &[u8] = b"f/n";
/// Prefix of an inode with an attachment of a gateway.
pub const ATTACHMENTS: &[u8] = b"f/a";
/// Prefix of a bucket with uploads, for the uploads and their parts.
pub const UPLOADS: &[u8] = b"f/p";
/// Prefix of a bucket with uploads, for the uploads in key order.
pub const UPLOADS_BY_KEY: &[u8] = b"f/v";
/// Prefix of a bucket with ended uploads.
pub const ENDED: &[u8] = b"f/w";
/// Prefix of a backed bucket, for its backing.
pub const BACKINGS: &[u8] = b"f/b";
/// Prefix of a backed bucket, for the states of its keys.
pub const STATES: &[u8] = b"f/e";
/// Prefix of a backed bucket, for its queue.
pub const QUEUES: &[u8] = b"f/y";

fn numbered(prefix: &[u8], number: u64, room: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + 8 + room);
    key.extend_from_slice(prefix);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Key of an inode.
#[must_use]
pub fn inode(ino: Ino) -> Vec<u8> {
    numbered(INODES, ino.0, 0)
}

/// Key of a directory's times.
#[must_use]
pub fn times(ino: Ino) -> Vec<u8> {
    numbered(TIMES, ino.0, 0)
}

/// Prefix of the keys of a directory's entries.
#[must_use]
pub fn entries(dir: Ino) -> Vec<u8> {
    numbered(ENTRIES, dir.0, 0)
}

/// Bits of a name's hash in a key and in a cookie.
const HASH_BITS: u32 = 51;
/// Bits of a cookie that count entries with the same hash.
pub const RANK_BITS: u32 = 62 - HASH_BITS;

/// Hash of a name, its position in the directory: below 2^51.
#[must_use]
pub fn hash(name: &Name) -> u64 {
    xxh3_64(name.as_bytes()) >> (64 - HASH_BITS)
}

/// Key of an entry.
#[must_use]
pub fn entry(dir: Ino, name: &Name) -> Vec<u8> {
    let mut key = numbered(ENTRIES, dir.0, 8 + name.as_bytes().len());
    key.extend_from_slice(&hash(name).to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// Lower bound of the keys of a directory's entries from this hash on.
#[must_use]
pub fn entries_from(dir: Ino, hash: u64) -> Vec<u8> {
    let mut key = numbered(ENTRIES, dir.0, 8);
    key.extend_from_slice(&hash.to_be_bytes());
    key
}

/// Hash and name of an entry's key; `None` for another key.
#[must_use]
pub fn split_entry(key: &[u8]) -> Option<(u64, Name)> {
    let rest = key.strip_prefix(ENTRIES)?.get(8..)?;
    let (hash, name) = rest.split_at_checked(8)?;
    Some((u64::from_be_bytes(hash.try_into().ok()?), Name::new(name).ok()?))
}

/// Directory and name of an entry's key; `None` for another key.
#[must_use]
pub fn directory_and_name(key: &[u8]) -> Option<(Ino, Name)> {
    let (_, name) = split_entry(key)?;
    Some((Ino(leading(ENTRIES, key)?), name))
}

/// The number after a prefix of this module; `None` for another key.
#[must_use]
pub fn number(prefix: &[u8], key: &[u8]) -> Option<u64> {
    let bytes = key.strip_prefix(prefix)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

/// The number directly after a prefix of this module, with any bytes after it; `None` for another
/// key.
#[must_use]
pub fn leading(prefix: &[u8], key: &[u8]) -> Option<u64> {
    let bytes = key.strip_prefix(prefix)?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*bytes))
}

/// Prefix of the keys of an inode's extended attributes.
#[must_use]
pub fn xattrs(ino: Ino) -> Vec<u8> {
    numbered(XATTRS, ino.0, 0)
}

/// Key of an extended attribute.
#[must_use]
pub fn xattr(ino: Ino, name: &XattrName) -> Vec<u8> {
    let mut key = numbered(XATTRS, ino.0, name.as_bytes().len());
    key.extend_from_slice(name.as_bytes());
    key
}

/// Key of a file's bytes.
#[must_use]
pub fn content(ino: Ino) -> Vec<u8> {
    numbered(CONTENTS, ino.0, 0)
}

/// Key of a file with bytes in the store that must move to chunks.
#[must_use]
pub fn large(ino: Ino) -> Vec<u8> {
    numbered(LARGE, ino.0, 0)
}

/// Key of the record of shared chunks.
#[must_use]
pub fn shared(chunks: u64) -> Vec<u8> {
    numbered(SHARED, chunks, 0)
}

/// Key of an orphan.
#[must_use]
pub fn orphan(ino: Ino) -> Vec<u8> {
    numbered(ORPHANS, ino.0, 0)
}

/// Key of garbage.
#[must_use]
pub fn garbage(data: u64) -> Vec<u8> {
    numbered(GARBAGE, data, 0)
}

/// Key of a session.
#[must_use]
pub fn session(id: u64) -> Vec<u8> {
    numbered(SESSIONS, id, 0)
}

/// Key of an inode's locks.
#[must_use]
pub fn locks(ino: Ino) -> Vec<u8> {
    numbered(LOCKS, ino.0, 0)
}

/// Prefix of the keys of the inodes on which a session has locks.
#[must_use]
pub fn locked_by(session: u64) -> Vec<u8> {
    numbered(LOCKED, session, 0)
}

/// Key of the mark that a session has locks on an inode.
#[must_use]
pub fn locked(session: u64, ino: Ino) -> Vec<u8> {
    let mut key = numbered(LOCKED, session, 8);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

/// Session and inode of a key of [`locked`]; `None` for another key.
#[must_use]
pub fn split_locked(key: &[u8]) -> Option<(u64, Ino)> {
    let session = leading(LOCKED, key)?;
    let ino = number(&locked_by(session), key)?;
    Some((session, Ino(ino)))
}

/// Prefix of the keys of the directories that a session must return.
#[must_use]
pub fn recalled_of(session: u64) -> Vec<u8> {
    numbered(RECALLED, session, 0)
}

/// Key of the mark that a session must return a directory.
#[must_use]
pub fn recalled(session: u64, dir: Ino) -> Vec<u8> {
    let mut key = numbered(RECALLED, session, 8);
    key.extend_from_slice(&dir.0.to_be_bytes());
    key
}

/// Key of a directory's quota.
#[must_use]
pub fn quota(dir: Ino) -> Vec<u8> {
    numbered(QUOTAS, dir.0, 0)
}

/// Prefix of the keys of the parts of a quota's usage.
#[must_use]
pub fn usages(dir: Ino) -> Vec<u8> {
    numbered(USAGE, dir.0, 0)
}

/// Key of the part of a quota's usage that counts an inode (Fibonacci hashing: inodes made one
/// after the other are far apart).
#[must_use]
pub fn usage(dir: Ino, ino: Ino) -> Vec<u8> {
    let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let shard = mixed % u64::from(USAGE_SHARDS);
    let mut key = numbered(USAGE, dir.0, 1);
    key.push(u8::try_from(shard).unwrap_or(0));
    key
}

/// Prefix of the keys of a directory's trash.
#[must_use]
pub fn trash_of(dir: Ino) -> Vec<u8> {
    numbered(TRASH, dir.0, 0)
}

/// Key of an inode in a directory's trash.
#[must_use]
pub fn trash(dir: Ino, ino: Ino) -> Vec<u8> {
    let mut key = numbered(TRASH, dir.0, 8);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

/// Directory and inode of a key of [`trash`]; `None` for another key.
#[must_use]
pub fn split_trash(key: &[u8]) -> Option<(Ino, Ino)> {
    let dir = Ino(leading(TRASH, key)?);
    let ino = number(&trash_of(dir), key)?;
    Some((dir, Ino(ino)))
}

/// Key for an unreadable record that a repair moved away.
#[must_use]
pub fn aside(key: &[u8]) -> Vec<u8> {
    [ASIDE, key].concat()
}

/// Prefix of the keys of the places in a directory.
#[must_use]
pub fn places(dir: Ino) -> Vec<u8> {
    numbered(PLACES, dir.0, 0)
}

/// Key of a place in a directory.
#[must_use]
pub fn place(dir: Ino, place: &[u8]) -> Vec<u8> {
    let mut key = numbered(PLACES, dir.0, place.len());
    key.extend_from_slice(place);
    key
}

/// Directory and place of a key of [`place`]; `None` for another key.
#[must_use]
pub fn split_place(key: &[u8]) -> Option<(Ino, &[u8])> {
    let dir = Ino(leading(PLACES, key)?);
    Some((dir, key.get(PLACES.len() + 8..)?))
}

/// Key of a gateway's attachment of an inode.
#[must_use]
pub fn attachment(ino: Ino) -> Vec<u8> {
    numbered(ATTACHMENTS, ino.0, 0)
}

fn of_upload(prefix: &[u8], bucket: Ino, id: UploadId, room: usize) -> Vec<u8> {
    let mut key = numbered(prefix, bucket.0, 8 + room);
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// Key of an upload, and prefix of the keys of its parts.
#[must_use]
pub fn upload(bucket: Ino, id: UploadId) -> Vec<u8> {
    of_upload(UPLOADS, bucket, id, 0)
}

/// Key of a part of an upload.
#[must_use]
pub fn part(bucket: Ino, id: UploadId, number: u16) -> Vec<u8> {
    let mut key = of_upload(UPLOADS, bucket, id, 2);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Number of the part of a key of [`part`]; `None` for the key of an upload, and for another key.
#[must_use]
pub fn part_number(key: &[u8]) -> Option<u16> {
    let number = key.strip_prefix(UPLOADS)?.get(16..)?;
    Some(u16::from_be_bytes(number.try_into().ok()?))
}

/// Prefix of the keys of a bucket's uploads in key order.
#[must_use]
pub fn uploads_by_key(bucket: Ino) -> Vec<u8> {
    numbered(UPLOADS_BY_KEY, bucket.0, 0)
}

/// Key of an upload in the key order of its bucket.
#[must_use]
pub fn upload_by_key(bucket: Ino, key: &[u8], id: UploadId) -> Vec<u8> {
    let mut all = numbered(UPLOADS_BY_KEY, bucket.0, key.len() + 9);
    all.extend_from_slice(key);
    all.push(0);
    all.extend_from_slice(&id.0.to_be_bytes());
    all
}

/// Bucket and upload of a key of [`upload_by_key`]; `None` for another key.
#[must_use]
pub fn split_upload_by_key(key: &[u8]) -> Option<(Ino, UploadId)> {
    let bucket = Ino(leading(UPLOADS_BY_KEY, key)?);
    let id = key.get(UPLOADS_BY_KEY.len() + 8..)?.last_chunk::<8>()?;
    Some((bucket, UploadId(u64::from_be_bytes(*id))))
}

/// Key of an upload that has ended.
#[must_use]
pub fn ended(bucket: Ino, id: UploadId) -> Vec<u8> {
    of_upload(ENDED, bucket, id, 0)
}

/// Bucket and upload of a key of [`ended`], [`upload`] or [`part`]; `None` for another key.
#[must_use]
pub fn split_upload(prefix: &[u8], key: &[u8]) -> Option<(Ino, UploadId)> {
    let bucket = Ino(leading(prefix, key)?);
    let id = key.get(prefix.len() + 8..)?.first_chunk::<8>()?;
    Some((bucket, UploadId(u64::from_be_bytes(*id))))
}

/// Key of a bucket's backing.
#[must_use]
pub fn backing(bucket: Ino) -> Vec<u8> {
    numbered(BACKINGS, bucket.0, 0)
}

/// Prefix of the keys of the states in a bucket.
#[must_use]
pub fn states(bucket: Ino) -> Vec<u8> {
    numbered(STATES, bucket.0, 0)
}

/// Key of the state of an object's key.
#[must_use]
pub fn state(bucket: Ino, key: &[u8]) -> Vec<u8> {
    let mut all = numbered(STATES, bucket.0, key.len());
    all.extend_from_slice(key);
    all
}

/// Bucket and object key of a key of [`state`]; `None` for another key.
#[must_use]
pub fn split_state(key: &[u8]) -> Option<(Ino, &[u8])> {
    let bucket = Ino(leading(STATES, key)?);
    Some((bucket, key.get(STATES.len() + 8..)?))
}

/// Prefix of the keys of a bucket's queue.
#[must_use]
pub fn queue(bucket: Ino) -> Vec<u8> {
    numbered(QUEUES, bucket.0, 0)
}

/// Prefix of the keys of one lane of a bucket's queue.
#[must_use]
pub fn lane(bucket: Ino, lane: u8) -> Vec<u8> {
    let mut key = numbered(QUEUES, bucket.0, 17);
    key.push(lane);
    key
}

/// Key of a place in a bucket's queue.
#[must_use]
pub fn queued(bucket: Ino, place: Place) -> Vec<u8> {
    let mut key = lane(bucket, place.lane);
    key.extend_from_slice(&place.due_ms.to_be_bytes());
    key.extend_from_slice(&place.n.to_be_bytes());
    key
}

/// Bucket and place of a key of [`queued`]; `None` for another key.
#[must_use]
pub fn split_queued(key: &[u8]) -> Option<(Ino, Place)> {
    let bucket = Ino(leading(QUEUES, key)?);
    let (lane, rest) = key.get(QUEUES.len() + 8..)?.split_first()?;
    let (due, n) = rest.split_first_chunk::<8>()?;
    let (due_ms, n) = (u64::from_be_bytes(*due), u64::from_be_bytes(n.try_into().ok()?));
    Some((bucket, Place { lane: *lane, due_ms, n }))
}
