//! Drops the torn last batch of fjall's journal.
//!
//! A batch ends with a checksum and a marker. Without the last byte of its marker it is an
//! unfinished batch, and fjall drops those. If the batch with the wrong checksum was not the last
//! one, the journal is damaged where it had been synced: then opening fails again, as it must. What
//! the journal was is kept beside it.

use std::io;
use std::path::Path;

use millpond_env::files::{FileReader, list, publish, truncate};

/// What the copy of a damaged journal is called; fjall reads `.jnl` only.
const KEPT: &str = "damaged";

/// Cuts off the last byte written to the newest journal; false when there is none.
pub(crate) fn drop_last_batch(folder: &Path) -> io::Result<bool> {
    let journals = list(folder)?.into_iter().filter_map(|file| {
        let name = file.path.file_name()?.to_str()?;
        Some((name.strip_suffix(".jnl")?.parse::<u64>().ok()?, file.path))
    });
    let Some((_, newest)) = journals.max() else { return Ok(false) };
    let mut file = FileReader::open(&newest)?;
    let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; len];
    file.read_exact(&mut bytes)?;
    // The file is preallocated with zeros, and no batch ends with one.
    let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { return Ok(false) };
    publish(&newest.with_extension(KEPT), &[&bytes[..=last]])?;
    truncate(&newest, last as u64)?;
    Ok(true)
}
