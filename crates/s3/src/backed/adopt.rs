//! Adopts writes of mounts in a backed bucket: walks its files and the states of its keys in
//! parallel.

use std::collections::VecDeque;

use millpond_client::{Backing, ClientError, Mode, Volume};

use crate::store::{KeyState, ListObjects, Listed, Object, Wanted};

/// Keys requested at once.
const PAGE: u32 = 1_000;

/// Keys in order, page by page.
struct Keys<T, F> {
    page: VecDeque<(Vec<u8>, T)>,
    /// Position after which more keys may follow; `None` at the end.
    after: Option<Vec<u8>>,
    ask: F,
}

type Page<T> = (VecDeque<(Vec<u8>, T)>, Option<Vec<u8>>);

impl<T, F: FnMut(&[u8]) -> Result<Page<T>, ClientError>> Keys<T, F> {
    const fn new(ask: F) -> Self {
        Self { page: VecDeque::new(), after: Some(Vec::new()), ask }
    }

    fn front(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        while self.page.is_empty() {
            let Some(after) = self.after.take() else { return Ok(None) };
            (self.page, self.after) = (self.ask)(&after)?;
        }
        Ok(self.page.front().map(|(key, _)| key.clone()))
    }

    fn next(&mut self) -> Option<T> {
        self.page.pop_front().map(|(_, item)| item)
    }
}

/// Has the metas adopt changes of mounts below a prefix: writes and removals. Returns the number of
/// adopted keys.
///
/// # Errors
/// Those of the volume.
pub(crate) fn walk(
    volume: &Volume,
    (bucket, prefix): (&str, &[u8]),
    backing: &Backing,
) -> Result<u64, ClientError> {
    let mut files = Keys::new(|after: &[u8]| {
        let page = volume.list_objects(&ListObjects {
            bucket,
            prefix,
            delimiter: b"",
            after,
            limit: PAGE,
        })?;
        let keys = page.items.into_iter().filter_map(|item| match item {
            Listed::Key { key, object } => Some((key, object)),
            Listed::Prefix(_) => None,
        });
        Ok((keys.collect(), page.next))
    });
    let mut states = Keys::new(|after: &[u8]| {
        let page = volume.states_page(bucket, prefix, after, PAGE)?;
        let last = page.states.last().map(|entry| entry.0.clone()).filter(|_| !page.end);
        Ok((page.states.into(), last))
    });
    let mut adopted = 0;
    loop {
        let (file, state) = (files.front()?, states.front()?);
        let (key, file, state) = match (file, state) {
            (None, None) => return Ok(adopted),
            (Some(file), Some(state)) if file == state => (file, files.next(), states.next()),
            (Some(file), state) if state.as_ref().is_none_or(|state| file < *state) => {
                (file, files.next(), None)
            }
            (_, Some(state)) => (state, None, states.next()),
            (Some(file), None) => (file, files.next(), None),
        };
        let is_transient = backing.rule_of(&key).mode == Mode::Transient;
        if is_strange(file.as_ref(), state.as_ref(), is_transient) {
            volume.adopt(bucket, &key)?;
            adopted += 1;
        }
    }
}

/// Whether a mount has changed the key.
fn is_strange(file: Option<&Object>, state: Option<&KeyState>, is_transient: bool) -> bool {
    let wanted = state.map(|state| state.wanted);
    match (file, wanted) {
        (Some(_), None) => !is_transient,
        (Some(file), Some(Wanted::File { ino, size, ctime })) => {
            (ino, size, ctime) != (file.attr.ino, file.attr.size, file.attr.ctime)
        }
        (None, Some(Wanted::File { .. })) | (Some(_), Some(_)) => true,
        (None, _) => false,
    }
}
