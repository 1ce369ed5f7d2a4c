//! The name of a cached file: one name for one content.

use std::fmt;

use millpond_types::meta::{Attr, FileKind, Timestamp};
use millpond_types::wire::{Reader, WireError, Writer};

/// One content of one file.
///
/// A data id belongs to one file, regardless of chunks shared by clones, and is never reused in a
/// volume. Every change of the bytes changes the version. The modification time is included for
/// volumes that were restored from an older state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The creation time of the volume's root in nanoseconds: volumes have no id.
    pub(super) volume: u64,
    pub(super) data: u64,
    pub(super) version: u64,
    pub(super) changed: u64,
    /// Size of the file in bytes.
    pub(crate) len: u64,
}

/// Nanoseconds since 1970; a time out of range wraps, which does not matter.
fn nanos(at: Timestamp) -> u64 {
    at.secs.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(u64::from(at.nanos))
}

impl Key {
    /// Numbers in the form for a journal.
    const FIELDS: usize = 5;

    /// The volume with this root.
    pub(crate) fn volume(root: &Attr) -> u64 {
        nanos(root.btime)
    }

    /// The key of a file's content; `None` if it is not cached: small files come with their inode.
    pub(crate) fn of(volume: u64, attr: &Attr) -> Option<Self> {
        let is_cached = attr.kind == FileKind::Regular && !attr.is_stored() && attr.size > 0;
        is_cached.then(|| Self {
            volume,
            data: attr.data,
            version: attr.version,
            changed: nanos(attr.mtime),
            len: attr.size,
        })
    }

    const fn fields(self) -> [u64; Self::FIELDS] {
        [self.volume, self.data, self.version, self.changed, self.len]
    }

    const fn from_fields([volume, data, version, changed, len]: [u64; Self::FIELDS]) -> Self {
        Self { volume, data, version, changed, len }
    }

    /// Parses a name; `None` when it is not a valid one.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut fields = [0; Self::FIELDS];
        let mut parts = name.split('-');
        for field in &mut fields {
            *field = u64::from_str_radix(parts.next()?, 16).ok()?;
        }
        let key = Self::from_fields(fields);
        (key.to_string() == name).then_some(key)
    }

    pub(crate) fn encode(self, w: &mut Writer) {
        for field in self.fields() {
            w.u64(field);
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut fields = [0; Self::FIELDS];
        for field in &mut fields {
            *field = r.u64()?;
        }
        Ok(Self::from_fields(fields))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [volume, data, version, changed, len] = self.fields();
        write!(f, "{volume:016x}-{data:x}-{version:x}-{changed:016x}-{len:x}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::files::tests::attr;

    pub(crate) fn key(data: u64, len: u64) -> Key {
        Key { volume: 1 << 60, data, version: 3, changed: 7, len }
    }

    #[test]
    fn a_name_says_which_content_it_is() {
        let one = key(5, 1 << 40);
        assert_eq!(Key::parse(&one.to_string()), Some(one));
        for wrong in ["", "a-b", "1-2-3-4-5", "x-2-3-4-5", &format!("{one}-1"), &format!("+{one}")]
        {
            assert_eq!(Key::parse(wrong), None, "{wrong}");
        }
        let mut w = Writer::with_capacity(40);
        one.encode(&mut w);
        assert_eq!(Key::decode(&mut Reader::new(&w.into_bytes())), Ok(one));
    }

    #[test]
    fn another_content_has_another_name() {
        let before = attr(10, 1);
        let of = |attr: &Attr| Key::of(9, attr).unwrap();
        let mut later = before;
        later.mtime.nanos += 1;
        for other in [attr(11, 1), attr(10, 2), Attr { data: 77, ..before }, later] {
            assert_ne!(of(&before), of(&other));
        }
        assert_ne!(of(&before), Key::of(8, &before).unwrap(), "of another volume");
        for none in [Attr { chunks: None, ..before }, Attr { size: 0, ..before }] {
            assert_eq!(Key::of(9, &none), None);
        }
    }
}
