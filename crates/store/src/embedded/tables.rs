//! Assignment of keys to fjall's trees (RFC 0026).
//!
//! Bytes of files are most of a store, and have growing numbers as keys. In a tree of their own
//! their tables follow each other, and move down the levels unchanged. In one tree with all other
//! keys each table covers all of them, and four new ones are merged with the whole next level.

use fjall::{
    AbstractTree as _, Database, Guard, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch,
    Readable as _, Slice, Snapshot,
};
use millpond_types::meta::keys;

use super::damage::Damage;
use super::damaged;
use super::journal::Link;
use crate::{KeyRange, StoreError, Version};

pub(crate) const VERSION_KEY: &[u8] = b"version";
/// Bytes of contents that are flushed at once. A sync of the journal waits for the flush, and so
/// does every commit: smaller flushes are shorter and more frequent.
const CONTENTS_AT_ONCE: u64 = 32 << 20;
/// Flag after the version: contents have their own tree. Programs that do not know a flag refuse
/// the record.
const APART: u8 = 1;
/// Flag: the previous batch is named after the flags.
const CHAINED: u8 = 2;

/// The record of each batch about itself, under one key, as its last item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The version that the batch makes.
    pub(crate) version: Version,
    /// Contents have their own tree.
    pub(crate) is_apart: bool,
    /// The previous batch; `None` in batches of older programs.
    pub(crate) before: Option<Link>,
}

impl Record {
    /// ```text
    /// version u64  [flags u8  [version before u64  sequence before u64]]
    /// ```
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.version.0.to_le_bytes().to_vec();
        let chained = if self.before.is_some() { CHAINED } else { 0 };
        bytes.push(chained | if self.is_apart { APART } else { 0 });
        if let Some(before) = self.before {
            bytes.extend(before.version.to_le_bytes());
            bytes.extend(before.sequence.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self, StoreError> {
        let short = || StoreError::Damaged("the version counter has less than 8 bytes".into());
        let (version, rest) = record.split_first_chunk::<8>().ok_or_else(short)?;
        let version = Version(u64::from_le_bytes(*version));
        let (flags, rest) = rest.split_first().map_or((0, rest), |(flags, rest)| (*flags, rest));
        let before = match rest.split_first_chunk::<8>() {
            None if rest.is_empty() && flags & CHAINED == 0 => Some(None),
            Some((version, sequence)) if flags & CHAINED != 0 => {
                sequence.try_into().ok().map(|sequence| {
                    let version = u64::from_le_bytes(*version);
                    Some(Link { version, sequence: u64::from_le_bytes(sequence) })
                })
            }
            _ => None,
        };
        match before {
            Some(before) if flags & !(APART | CHAINED) == 0 => {
                Ok(Self { version, is_apart: flags & APART != 0, before })
            }
            _ => Err(StoreError::Damaged(
                "the store was made by a newer program: start that version, or a newer one".into(),
            )),
        }
    }
}

/// Iterator over the entries of a range.
pub(super) type Found<'a> = Box<dyn Iterator<Item = Guard> + 'a>;

pub(crate) struct Tables {
    data: Keyspace,
    /// The bytes of files; `None` in stores from before this tree, which have them in `data`.
    contents: Option<Keyspace>,
    /// The version counter, in the same batch as the data.
    meta: Keyspace,
}

impl Tables {
    /// Opens the trees, or makes them if nothing was committed yet.
    pub(crate) fn open(database: &Database, is_used: bool) -> Result<(Self, Version), StoreError> {
        let open = |name, options: &KeyspaceCreateOptions| {
            if is_used && !database.keyspace_exists(name) {
                let damage = Damage::new(super::trees::FOLDER, format!("has no tree named {name}"));
                return Err(StoreError::Damaged(Box::new(damage)));
            }
            database.keyspace(name, || options.clone()).map_err(damaged)
        };
        let options = KeyspaceCreateOptions::default();
        let (data, meta) = (open("data", &options)?, open("meta", &options)?);
        let record = meta.get(VERSION_KEY).map_err(damaged)?;
        let (version, is_apart) = match record.as_deref().map(Record::decode).transpose()? {
            None => (Version(0), !is_used || database.keyspace_exists("contents")),
            Some(record) => (record.version, record.is_apart),
        };
        let contents = is_apart
            .then(|| open("contents", &options.max_memtable_size(CONTENTS_AT_ONCE)))
            .transpose()?;
        Ok((Self { data, contents, meta }, version))
    }

    #[cfg(test)]
    pub(crate) fn trees(&self) -> [&Keyspace; 3] {
        [&self.data, &self.meta, self.contents.as_ref().unwrap()]
    }

    /// The trees, by fjall's number: a bit for each.
    pub(crate) fn numbers(&self) -> u64 {
        let all = [Some(&self.data), Some(&self.meta), self.contents.as_ref()];
        all.into_iter().flatten().fold(0, |numbers, tree| numbers | 1 << (tree.id() % 64))
    }

    /// The number that fjall gave the last batch; 0 if it is no longer known.
    pub(crate) fn sequence(&self) -> fjall::Result<u64> {
        let found = self.meta.tree.get_internal_entry(VERSION_KEY, u64::MAX)?;
        Ok(found.map_or(0, |entry| entry.key.seqno))
    }

    fn of(&self, key: &[u8]) -> &Keyspace {
        match &self.contents {
            Some(contents) if key.starts_with(keys::CONTENTS) => contents,
            _ => &self.data,
        }
    }

    pub(crate) fn get(&self, at: &Snapshot, key: &[u8]) -> fjall::Result<Option<Slice>> {
        at.get(self.of(key), key)
    }

    /// Returns the entries of a range, in order.
    pub(crate) fn range(&self, at: &Snapshot, range: &KeyRange, reverse: bool) -> Found<'static> {
        let mut parts: Vec<Found<'static>> = Vec::new();
        for (tree, part) in self.parts(range) {
            let found = at.range(tree, part.start..part.end);
            parts.push(if reverse { Box::new(found.rev()) } else { Box::new(found) });
        }
        if reverse {
            parts.reverse();
        }
        Box::new(parts.into_iter().flatten())
    }

    /// Splits a range into its non-empty parts, each in its tree.
    fn parts(&self, range: &KeyRange) -> Vec<(&Keyspace, KeyRange)> {
        let Some(contents) = &self.contents else { return vec![(&self.data, range.clone())] };
        let own = KeyRange::prefix(keys::CONTENTS);
        let cut = |start: &Vec<u8>, end: &Vec<u8>| KeyRange {
            start: start.max(&range.start).clone(),
            end: end.min(&range.end).clone(),
        };
        let parts = [
            (&self.data, cut(&range.start, &own.start)),
            (contents, cut(&own.start, &own.end)),
            (&self.data, cut(&own.end, &range.end)),
        ];
        parts.into_iter().filter(|(_, part)| !part.is_empty()).collect()
    }

    pub(crate) fn write(&self, batch: &mut OwnedWriteBatch, key: &[u8], value: Option<&[u8]>) {
        match value {
            Some(value) => batch.insert(self.of(key), key, value),
            None => batch.remove(self.of(key), key),
        }
    }

    /// Writes the record of a batch: the version that it makes, and the previous batch. It must be
    /// the last item.
    pub(crate) fn write_version(
        &self,
        batch: &mut OwnedWriteBatch,
        version: Version,
        before: Link,
    ) {
        let record = Record { version, is_apart: self.contents.is_some(), before: Some(before) };
        batch.insert(&self.meta, VERSION_KEY, record.encode());
    }
}

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions};

    use super::{Link, Record, Tables, VERSION_KEY, keys};
    use crate::{KeyRange, StoreError, Version};

    fn open(path: &std::path::Path) -> Result<(Database, Tables, Version), StoreError> {
        let database = Database::builder(path).open().unwrap();
        let (tables, version) = Tables::open(&database, database.keyspace_exists("data"))?;
        Ok((database, tables, version))
    }

    #[test]
    fn a_store_of_before_keeps_its_one_tree() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let key = [keys::CONTENTS, b"1"].concat();
        let database = Database::builder(folder.path()).open().unwrap();
        let tree = |name| database.keyspace(name, KeyspaceCreateOptions::default).unwrap();
        let (data, meta) = (tree("data"), tree("meta"));
        data.insert(&key, "old").unwrap();
        meta.insert(VERSION_KEY, 7_u64.to_le_bytes()).unwrap();
        drop((data, meta));
        drop(database);
        for version in 7..9 {
            let (database, tables, found) = open(folder.path()).unwrap();
            assert_eq!(found, Version(version));
            assert!(tables.contents.is_none());
            let at = database.snapshot();
            assert_eq!(tables.get(&at, &key).unwrap().as_deref(), Some(&b"old"[..]));
            assert_eq!(tables.range(&at, &KeyRange::all(), false).count(), 1);
            let mut batch = database.batch();
            let before = Link { version, sequence: tables.sequence().unwrap() };
            tables.write_version(&mut batch, Version(version + 1), before);
            batch.commit().unwrap();
            let record = tables.meta.get(VERSION_KEY).unwrap().unwrap();
            let record = Record::decode(&record).unwrap();
            assert_eq!(record.before, Some(before));
            assert!(!record.is_apart && before.sequence < tables.sequence().unwrap());
        }
    }

    #[test]
    fn programs_of_before_refuse_what_they_do_not_know() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let (database, tables, version) = open(folder.path()).unwrap();
        assert_eq!(version, Version(0));
        let mut batch = database.batch();
        tables.write(&mut batch, &[keys::CONTENTS, b"1"].concat(), Some(b"new"));
        tables.write_version(&mut batch, Version(1), Link::default());
        batch.commit().unwrap();
        let record = tables.meta.get(VERSION_KEY).unwrap().unwrap();
        assert!(record.len() > 9, "they want 8 bytes, or 9");
        assert!(tables.numbers() > 1 && tables.numbers() % 2 == 0, "0 is fjall's own");
        tables.meta.insert(VERSION_KEY, [&record[..8], &[9]].concat()).unwrap();
        drop((tables, database));
        let refused = open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(refused.contains("newer program"), "{refused}");
    }
}
