//! With any file missing, cut or flipped, a store starts with everything that was acknowledged, or
//! it refuses and gives advice.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millpond_types::meta::keys;

use super::{EmbeddedBackend, EmbeddedOptions};
use crate::{KeyRange, RangeOptions, Store, StoreError, StoreErrorKind};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(path: &Path) -> Result<EmbeddedBackend, StoreError> {
    EmbeddedBackend::open(&EmbeddedOptions::new(path))
}

/// Commits more data, in all trees, one batch after the other.
async fn fill(backend: &EmbeddedBackend, round: u8, written: &mut Entries) {
    let store = Store::new(Arc::new(backend.clone()));
    for n in 0..6_u8 {
        let txn = store.begin();
        for (key, len) in [
            (vec![b'k', round, n], 40),
            ([keys::CONTENTS, &[round, n]].concat(), 700),
            (b"counter".to_vec(), 8),
        ] {
            let value = vec![round * 16 + n + 1; len];
            txn.put(&key, value.clone()).unwrap();
            written.insert(key, value);
        }
        if n == 3 {
            let gone = [keys::CONTENTS, &[round, 1]].concat();
            txn.delete(&gone).unwrap();
            written.remove(&gone);
        }
        txn.commit().await.unwrap();
    }
}

/// Flushes the memory tables of these trees: data, meta, contents.
fn flush(backend: &EmbeddedBackend, trees: &[usize]) {
    let all = backend.0.shared.tables.trees();
    for tree in trees {
        all[*tree].rotate_memtable_and_wait().unwrap();
    }
}

/// Makes a store with tables in all trees, two journals, and commits that only the journals have.
/// `is_killed`: copies it while it is open, as a kill leaves it.
async fn populated(folder: &Path, is_killed: bool) -> (PathBuf, Entries) {
    let (live, copy) = (folder.join("live"), folder.join("copy"));
    let mut written = Entries::new();
    let backend = open(&live).unwrap();
    fill(&backend, 0, &mut written).await;
    flush(&backend, &[0, 1, 2]);
    fill(&backend, 1, &mut written).await;
    // The first journal holds contents that no table has.
    flush(&backend, &[0, 1]);
    drop(backend);
    // fjall starts the next journal if it exists.
    fs::write(live.join("1.jnl"), []).unwrap();
    let backend = open(&live).unwrap();
    fill(&backend, 2, &mut written).await;
    flush(&backend, &[0]);
    fill(&backend, 3, &mut written).await;
    let open = is_killed.then_some(backend);
    copy_folder(&live, &copy);
    drop(open);
    (copy, written)
}

/// Copies a folder, without the zeros at the ends of journals; second names become second names
/// again.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let mut entries: Vec<_> =
        fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else if path.extension().is_some_and(|extension| extension == "jnl") {
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            fs::write(&target, bytes).unwrap();
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
    for entry in fs::read_dir(to.join("kept")).into_iter().flatten() {
        let second = entry.unwrap().path();
        let first = to.join(second.file_name().unwrap());
        if first.exists() {
            fs::remove_file(&second).unwrap();
            fs::hard_link(&first, &second).unwrap();
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Damage to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Remove,
    Cut(usize),
    Flip(usize),
}

impl Harm {
    fn all(len: usize) -> Vec<Self> {
        let mut harms = vec![Self::Remove];
        let cuts = [0, 1, len / 3, len / 2, len.saturating_sub(9), len.saturating_sub(1)];
        harms.extend(cuts.into_iter().filter(|cut| *cut < len).map(Self::Cut));
        // Each byte of small files, the ends of all, and places in between.
        let step = if len <= 64 { 1 } else { (len / 37).max(1) };
        harms.extend((0..len).step_by(step).map(Self::Flip));
        harms.extend((len.saturating_sub(20)..len).step_by(3).map(Self::Flip));
        harms
    }

    fn act(self, path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        match self {
            Self::Remove => return fs::remove_file(path).unwrap(),
            Self::Cut(len) => bytes.truncate(len),
            Self::Flip(at) => bytes[at] ^= 0x21,
        }
        fs::write(path, bytes).unwrap();
    }
}

async fn everything(path: &Path) -> Result<Entries, StoreError> {
    let store = Store::new(Arc::new(open(path)?));
    let found = store.begin().range_all(&KeyRange::all(), RangeOptions::default()).await?;
    // The store accepts commits.
    let txn = store.begin();
    txn.put(b"counter", found.iter().find(|(key, _)| key == b"counter").unwrap().1.clone())?;
    txn.commit().await?;
    Ok(found.into_iter().collect())
}

/// Checks that the store starts with everything, or refuses with advice and has everything once the
/// file is back. Returns whether it started.
async fn starts_right_or_refuses(
    sound: &Path,
    at: &Path,
    harm: &str,
    written: &Entries,
    act: impl Fn(&Path),
) -> bool {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    copy_folder(sound, &store);
    act(&store.join(at));
    let what = format!("{}: {harm}", at.display());
    match everything(&store).await {
        Ok(found) => {
            assert!(found == *written, "{what}: it started with something else");
            assert!(everything(&store).await.unwrap() == *written, "{what}: opened again");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Damaged, "{what}: {error}");
            let text = error.to_string();
            assert!(text.contains("put the whole folder back from a copy"), "{what}: {text}");
            assert!(text.contains(store.to_str().unwrap()), "{what}: {text}");
            // Nothing else was touched.
            let (from, to) = (sound.join(at), store.join(at));
            if from.is_dir() {
                copy_folder(&from, &to);
            } else {
                // In place, so that a second name has it too.
                fs::write(to, fs::read(from).unwrap()).unwrap();
            }
            let found = everything(&store).await.expect(&what);
            assert!(found == *written, "{what}: put back, and not everything");
            false
        }
    }
}

#[tokio::test]
async fn a_store_starts_with_everything_or_refuses_whatever_is_wrong_with_its_files() {
    for is_killed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (sound, written) = populated(folder.path(), is_killed).await;
        let names = files(&sound);
        let has = |end: &str| names.iter().any(|path| path.ends_with(end));
        assert!(has("seal") && has("1.jnl") && has("keyspaces/3/current"), "{names:?}");
        let (mut started, mut refused) = (0, 0);
        for path in &names {
            let at = path.strip_prefix(&sound).unwrap();
            let len = usize::try_from(fs::metadata(path).unwrap().len()).unwrap();
            for harm in Harm::all(len) {
                let act = |path: &Path| harm.act(path);
                let text = format!("{harm:?} of {len} bytes");
                if starts_right_or_refuses(&sound, at, &text, &written, act).await {
                    started += 1;
                } else {
                    refused += 1;
                }
            }
        }
        let folders = [
            "keyspaces",
            "keyspaces/0",
            "keyspaces/1",
            "keyspaces/2/tables",
            "keyspaces/3",
            "kept",
        ];
        for at in folders.map(Path::new) {
            let act = |path: &Path| fs::remove_dir_all(path).unwrap();
            starts_right_or_refuses(&sound, at, "removed", &written, act).await;
        }
        assert!(started > 20 && refused > 200, "{started} started, {refused} refused");
    }
}
