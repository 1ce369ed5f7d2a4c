//! Which of fjall's trees a key lies in (RFC 0026).
//!
//! Bytes of files are most of what a store has, and are named by numbers that grow: a tree of nothing else has tables that follow
//! each other, which go down the levels as they are. In one tree with all other keys each table covers all of them,
//! and four new ones are merged with all that the next level has.

use fjall::{
    Database, Guard, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, Readable as _, Slice,
    Snapshot,
};
use millpond_types::meta::keys;

use super::damaged;
use crate::{KeyRange, StoreError, Version};

const VERSION_KEY: &[u8] = b"version";
/// Bytes of contents that are written out at once. A sync of the journal waits behind them, and so does every commit: less is shorter
/// and more often.
const CONTENTS_AT_ONCE: u64 = 32 << 20;
/// Follows the version where contents have a tree of their own. Programs that know of none refuse such a record.
const APART: u8 = 1;

/// Where a page of a range comes from.
pub(super) type Found<'a> = Box<dyn Iterator<Item = Guard> + 'a>;

pub(crate) struct Tables {
    data: Keyspace,
    /// The bytes of files; with all others in stores that were made before there was a tree for them.
    contents: Option<Keyspace>,
    /// The version counter, in the same batch as the data.
    meta: Keyspace,
}

impl Tables {
    /// Opens the trees, or makes them.
    pub(crate) fn open(database: &Database) -> Result<(Self, Version), StoreError> {
        let open = |name, options: &KeyspaceCreateOptions| {
            database.keyspace(name, || options.clone()).map_err(damaged)
        };
        let options = KeyspaceCreateOptions::default();
        let (data, meta) = (open("data", &options)?, open("meta", &options)?);
        let record = meta.get(VERSION_KEY).map_err(damaged)?;
        let (version, is_apart) = match record.as_deref() {
            None => (Version(0), true),
            Some(record) => read_version(record)?,
        };
        let contents = is_apart
            .then(|| open("contents", &options.max_memtable_size(CONTENTS_AT_ONCE)))
            .transpose()?;
        Ok((Self { data, contents, meta }, version))
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

    /// What a range has, in order.
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

    /// The parts of a range that have something, each in its tree.
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

    pub(crate) fn write_version(&self, batch: &mut OwnedWriteBatch, version: Version) {
        let mut record = version.0.to_le_bytes().to_vec();
        record.extend(self.contents.is_some().then_some(APART));
        batch.insert(&self.meta, VERSION_KEY, record);
    }
}

/// The version that a record says, and whether contents have a tree of their own.
fn read_version(record: &[u8]) -> Result<(Version, bool), StoreError> {
    let (version, rest) = record
        .split_first_chunk::<8>()
        .ok_or_else(|| StoreError::Damaged("the version counter has less than 8 bytes".into()))?;
    let version = Version(u64::from_le_bytes(*version));
    match rest {
        [] => Ok((version, false)),
        [APART] => Ok((version, true)),
        _ => Err(StoreError::Damaged(
            "the store was made by a newer program: start that one, or a newer one".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions};

    use super::{Tables, VERSION_KEY, keys};
    use crate::{KeyRange, StoreError, Version};

    fn open(path: &std::path::Path) -> Result<(Database, Tables, Version), StoreError> {
        let database = Database::builder(path).open().unwrap();
        let (tables, version) = Tables::open(&database)?;
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
            tables.write_version(&mut batch, Version(version + 1));
            batch.commit().unwrap();
            let record = tables.meta.get(VERSION_KEY).unwrap().unwrap();
            assert_eq!(record.len(), 8, "programs of before go on with it");
        }
    }

    #[test]
    fn programs_of_before_refuse_what_they_do_not_know() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let (database, tables, version) = open(folder.path()).unwrap();
        assert_eq!(version, Version(0));
        let mut batch = database.batch();
        tables.write(&mut batch, &[keys::CONTENTS, b"1"].concat(), Some(b"new"));
        tables.write_version(&mut batch, Version(1));
        batch.commit().unwrap();
        let record = tables.meta.get(VERSION_KEY).unwrap().unwrap();
        assert!(<[u8; 8]>::try_from(&record[..]).is_err(), "they want 8 bytes");
        tables.meta.insert(VERSION_KEY, [&record[..8], &[9]].concat()).unwrap();
        drop((tables, database));
        let refused = open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(refused.contains("newer program"), "{refused}");
    }
}
