//! What fjall's journals were before it opened them.
//!
//! fjall reads a journal up to the first entry that it cannot read and cuts off the rest, without a
//! word. After a power cut that is right: the last batch may be torn, and nobody was told that
//! it was committed. But a damaged entry in the middle would take acknowledged commits with it. So
//! what was cut off is looked at: there may be one batch in it, not more. The same holds for a batch
//! whose checksum is wrong, which fjall refuses to open: if it is the last one it is dropped here.

use std::io;
use std::path::{Path, PathBuf};

use millpond_env::files::{FileReader, list, publish, truncate};

/// How fjall ends a batch.
const END: &[u8] = b"FJL\x03";
/// What the copy of a torn journal is called; fjall reads `.jnl` only.
const KEPT: &str = "damaged";

/// The journals of a store, oldest first, without the zeros they are preallocated with.
pub(crate) struct Journals(Vec<(PathBuf, Vec<u8>)>);

impl Journals {
    /// Reads the journals in `folder`: none when there is no such folder.
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let journals = journals(folder)?.into_iter().map(|(_, path)| {
            let mut file = FileReader::open(&path)?;
            let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
            let mut bytes = vec![0; len];
            file.read_exact(&mut bytes)?;
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            Ok((path, bytes))
        });
        Ok(Self(journals.collect::<io::Result<_>>()?))
    }

    /// Cuts the end mark of the last batch, so that fjall drops it; false when there is none.
    /// If another batch has the wrong checksum, opening fails again, as it must.
    pub(crate) fn drop_last_batch(&self) -> io::Result<bool> {
        let Some((path, bytes)) = self.0.last().filter(|(_, bytes)| !bytes.is_empty()) else {
            return Ok(false);
        };
        publish(&path.with_extension(KEPT), &[bytes])?;
        truncate(path, bytes.len() as u64 - 1)?;
        Ok(true)
    }

    /// Looks at what fjall cut off when it opened them; what was lost with it, in words.
    pub(crate) fn losses(&self) -> Option<String> {
        for (index, (path, before)) in self.0.iter().enumerate() {
            // A journal that is gone was in tables already.
            let Ok(after) = FileReader::open(path).and_then(|file| file.len()) else { continue };
            let cut = usize::try_from(after).ok().and_then(|after| before.get(after..));
            let Some(cut) = cut.filter(|cut| !cut.is_empty()) else { continue };
            let newest = index + 1 == self.0.len();
            if newest && is_one_batch(cut) {
                tracing::warn!(path = %path.display(), bytes = cut.len(),
                    "the last batch of the store's journal is torn and was dropped");
                continue;
            }
            let path = path.display();
            return Some(format!(
                "{path} cannot be read at byte {after}, and acknowledged commits follow: restore \
                 it, or cut it off there to accept their loss"
            ));
        }
        None
    }

    /// Puts all journals back as they were.
    pub(crate) fn restore(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|(path, bytes)| publish(path, &[bytes]))
    }
}

/// The journals in `folder`, oldest first: none when there is no such folder.
pub(crate) fn journals(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let files = match list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let number =
        |path: &Path| path.file_name()?.to_str()?.strip_suffix(".jnl")?.parse::<u64>().ok();
    let mut paths: Vec<_> =
        files.into_iter().filter_map(|file| Some((number(&file.path)?, file.path))).collect();
    paths.sort();
    Ok(paths)
}

/// True when at most one batch ends in `cut`, and then with its last byte.
fn is_one_batch(cut: &[u8]) -> bool {
    let end = cut.windows(END.len()).position(|bytes| bytes == END);
    end.is_none_or(|at| at + END.len() == cut.len())
}

#[cfg(test)]
mod tests {
    use super::is_one_batch;

    #[test]
    fn what_follows_an_end_is_another_batch() {
        assert!(is_one_batch(b"torn"));
        assert!(is_one_batch(b"torn in the middle FJL\x03"));
        assert!(!is_one_batch(b"torn FJL\x03 and more"));
    }
}
