//! fjall's trees, checked before fjall opens them: it silently starts a tree without its first file
//! as an empty one.
//!
//! `keyspaces/N/current` names a list of tables `vM` and its checksum; the list names each table
//! and the checksum of all its bytes. fjall compares neither when it opens a tree. This module
//! compares both, and the tables up to a bound (`CHECKED_AT_START`); the rest of a large store is
//! compared in the background, and each block of it when it is read.

use std::io::{self, Cursor};
use std::path::{Path, PathBuf};

use millpond_env::files::{FileReader, exists, folders_in};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::damage::Damage;

pub(crate) const FOLDER: &str = "keyspaces";
const CURRENT: &str = "current";
/// Bytes of tables that a start compares: a fraction of a second.
const CHECKED_AT_START: u64 = 256 << 20;
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// A required table.
pub(crate) struct Table {
    pub(crate) path: PathBuf,
    sum: u128,
}

impl Table {
    pub(crate) fn is_there(&self) -> bool {
        exists(&self.path).unwrap_or(true)
    }

    /// Compares all its bytes. Calls `pause` between two pieces, and stops when that returns true.
    pub(crate) fn verify(&self, mut pause: impl FnMut() -> bool) -> Result<(), Damage> {
        let mut compare = |file: &mut FileReader| -> io::Result<Option<u128>> {
            let (mut left, mut hash) = (file.len()?, Xxh3::new());
            let mut piece = vec![0; PIECE];
            while left > 0 {
                let len = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                file.read_exact(&mut piece[..len])?;
                hash.update(&piece[..len]);
                left -= len as u64;
                if pause() {
                    return Ok(None);
                }
            }
            Ok(Some(hash.digest128()))
        };
        match FileReader::open(&self.path).and_then(|mut file| compare(&mut file)) {
            Ok(sum) if sum.is_none_or(|sum| sum == self.sum) => Ok(()),
            Ok(_) => Err(Damage::new(
                &self.path,
                "differs from the written bytes: its checksum is wrong",
            )),
            Err(error) => Err(unreadable(&self.path, &error)),
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Damage {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "is missing".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    Damage::new(path, what)
}

fn read(path: &Path) -> Result<Vec<u8>, Damage> {
    let whole = FileReader::open(path).and_then(|mut file| {
        let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut bytes = vec![0; len];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    });
    whole.map_err(|error| unreadable(path, &error))
}

/// Lists the trees that have a folder, by number. fjall accepts no other folder there.
pub(crate) fn numbers(store: &Path) -> Result<Vec<u64>, Damage> {
    let folder = store.join(FOLDER);
    let names = match folders_in(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.map_err(|error| unreadable(&folder, &error))?,
    };
    let number = |name: &String| {
        name.parse::<u64>()
            .map_err(|_| Damage::new(folder.join(name), "is not a file of the store"))
    };
    names.iter().map(number).collect()
}

/// True when no tree except fjall's own has a table: nothing was ever flushed.
pub(crate) fn are_bare(store: &Path, numbers: &[u64]) -> Result<bool, Damage> {
    for number in numbers.iter().filter(|number| **number != 0) {
        let folder = store.join(FOLDER).join(number.to_string()).join("tables");
        if exists(&folder).map_err(|error| unreadable(&folder, &error))? {
            let tables = millpond_env::files::list(&folder);
            if !tables.map_err(|error| unreadable(&folder, &error))?.is_empty() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Checks these trees. Returns the tables that are left for later.
pub(crate) fn check(store: &Path, numbers: &[u64]) -> Result<Vec<Table>, Damage> {
    let mut later = Vec::new();
    let mut compared = 0;
    for number in numbers {
        for table in tables(&store.join(FOLDER).join(number.to_string()))? {
            let file = FileReader::open(&table.path).and_then(|file| file.len());
            compared += file.map_err(|error| unreadable(&table.path, &error))?;
            if compared <= CHECKED_AT_START {
                table.verify(|| false)?;
            } else {
                later.push(table);
            }
        }
    }
    Ok(later)
}

/// Lists the tables of a tree.
fn tables(tree: &Path) -> Result<Vec<Table>, Damage> {
    let path = tree.join(CURRENT);
    let current = read(&path)?;
    let wrong = || {
        Damage::new(&path, "differs from the written bytes: it does not have the form of its kind")
    };
    let (id, rest) = current.split_first_chunk::<8>().ok_or_else(wrong)?;
    let (sum, kind) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
    if kind != [0] {
        return Err(wrong());
    }
    let list = tree.join(format!("v{}", u64::from_le_bytes(*id)));
    let bytes = read(&list)?;
    if xxh3_128(&bytes) != u128::from_le_bytes(*sum) {
        let text =
            format!("or {} differs from the written bytes: they do not match", path.display());
        return Err(Damage::new(list, text));
    }
    let unknown = || Damage::new(&list, "has a form that this program does not know");
    let found = parse(&bytes).ok_or_else(unknown)?;
    let folder = tree.join("tables");
    Ok(found
        .into_iter()
        .map(|(id, sum)| Table { path: folder.join(id.to_string()), sum })
        .collect())
}

/// Decodes a list of tables, each with its checksum.
fn parse(list: &[u8]) -> Option<Vec<(u64, u128)>> {
    let container = sfa::Reader::from_reader(&mut Cursor::new(list)).ok()?;
    let section = container.toc().section(b"tables")?;
    let start = usize::try_from(section.pos()).ok()?;
    let end = start.checked_add(usize::try_from(section.len()).ok()?)?;
    let mut rest = list.get(start..end)?;
    let mut take = |len: usize| {
        let (taken, behind) = rest.split_at_checked(len)?;
        rest = behind;
        Some(taken)
    };
    let mut found = Vec::new();
    let levels = take(1)?[0];
    for _ in 0..levels {
        let runs = take(1)?[0];
        for _ in 0..runs {
            let tables = u32::from_le_bytes(take(4)?.try_into().ok()?);
            for _ in 0..tables {
                let id = u64::from_le_bytes(take(8)?.try_into().ok()?);
                let kind = take(1)?[0];
                let sum = u128::from_le_bytes(take(16)?.try_into().ok()?);
                let _sequence = take(8)?;
                (kind == 0).then(|| found.push((id, sum)))?;
            }
        }
    }
    Some(found)
}
