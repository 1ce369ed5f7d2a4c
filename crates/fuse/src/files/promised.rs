//! Changes that were answered and that no meta knows of yet, as in the journal.

use millpond_env::RealClock;
use millpond_types::meta::{Ino, MetaOp, MetaRequest, SetTime, Timestamp};

use super::{File, Files, Table, Times, Written, promise};
use crate::backend::Told;
use crate::journal::Entry;

/// Bytes that a request promises.
fn written(op: &MetaOp) -> Option<Written> {
    match op {
        MetaOp::WriteInline(write) => {
            Some(Written { end: write.end(), at: write.mtime, data: write.data })
        }
        MetaOp::Extend(extend) => {
            Some(Written { end: extend.size, at: extend.mtime, data: extend.data })
        }
        MetaOp::Create(create) => {
            let promised = create.promised.as_ref().filter(|file| !file.bytes.is_empty())?;
            let end = promised.bytes.len() as u64;
            Some(Written { end, at: promised.written, data: promised.ino.0 })
        }
        _ => None,
    }
}

/// Times that a request promises, if it promises nothing else.
fn times(op: &MetaOp) -> Option<Times> {
    let MetaOp::SetAttr { set, .. } = op else { return None };
    let Some(SetTime::At(mtime)) = set.mtime else { return None };
    // Set to the time of execution; until then it is the time of the promise.
    Some(Times { mtime, ctime: set.ctime.unwrap_or_default() })
}

impl Table {
    /// Adds to a file the promises made while it was closed, or by an earlier process.
    pub(super) fn overlay_promised(&self, file: &File) {
        let all = self.promised.iter().filter(|(_, (ino, _))| *ino == file.ino);
        for (number, (_, request)) in all {
            if let Some(written) = written(&request.op) {
                file.show_promised(*number, written);
            }
            if let Some(times) = times(&request.op) {
                file.show_times(*number, times);
            }
        }
    }

    /// Turns the written bytes of a file into promised ones; the rest to report is dropped.
    fn hand_over(&mut self, number: u64, (ino, now): (Ino, Written)) {
        let Some(open) = self.open.get_mut(&ino) else { return };
        let (told, sent) = (open.written.take().is_some(), open.held.is_some());
        open.telling = None;
        if let Some(file) = open.file.clone() {
            file.show_promised(number, now);
            let mut state = file.state.lock();
            (state.written, state.held) = (None, None);
        }
        if sent {
            self.release(ino);
            self.note(&Entry::Sent { ino });
        }
        if told {
            self.note(&Entry::Told { ino });
        }
    }
}

impl Files {
    /// Notes a change that is about to be answered; false without a journal. Held bytes that the
    /// change contains are released: the caller has exclusive access to the file.
    pub(crate) fn promised(&self, number: u64, ino: Ino, request: &MetaRequest) -> bool {
        let mut table = self.table.lock();
        if table.journal.is_none() {
            return false;
        }
        table.promised.insert(number, (ino, request.clone()));
        table.note(&promise(number, ino, request));
        if table.journal.is_none() {
            table.promised.remove(&number);
            return false;
        }
        if let Some(written) = written(&request.op) {
            table.hand_over(number, (ino, written));
        }
        if let Some(times) = times(&request.op)
            && let Some(file) = table.open.get(&ino).and_then(|open| open.file.clone())
        {
            let ctime = times.ctime.max(Timestamp::from_unix_nanos(RealClock::wall_nanos()));
            file.show_times(number, Times { ctime, ..times });
        }
        true
    }

    /// Replaces the request of a change.
    pub(crate) fn promised_as(&self, number: u64, ino: Ino, request: &MetaRequest) {
        let mut table = self.table.lock();
        if let Some(before) = table.promised.get_mut(&number) {
            *before = (ino, request.clone());
            table.note(&promise(number, ino, request));
        }
    }

    /// Notes that a meta has executed the change, and the reported state of the file.
    pub(crate) fn kept(&self, number: u64, told: Option<Told>) {
        let mut table = self.table.lock();
        let Some((ino, _)) = table.promised.remove(&number) else { return };
        table.note(&Entry::Kept { number });
        let file = table.open.get(&ino).and_then(|open| open.file.clone());
        drop(table);
        let Some(file) = file else { return };
        if let Some(told) = told {
            let _ = file.learn(told);
        }
        let mut state = file.state.lock();
        state.promised = state.promised.filter(|(_, last)| *last != number);
        state.promised_times = state.promised_times.filter(|(_, last)| *last != number);
    }

    /// Notes that no meta will ever execute the change.
    pub(crate) fn broken(&self, number: u64) {
        self.table.lock().broken += 1;
        self.kept(number, None);
    }

    /// Changes that an earlier process answered and did not send to a meta.
    pub(crate) fn left(&self) -> Vec<(u64, Ino, MetaRequest)> {
        let table = self.table.lock();
        let left = table.promised.iter();
        left.map(|(number, (ino, request))| (*number, *ino, request.clone())).collect()
    }
}

impl File {
    fn show_promised(&self, number: u64, now: Written) {
        let mut state = self.state.lock();
        let before = state.promised.filter(|(before, _)| before.data == now.data);
        let end = before.map_or(now.end, |(before, _)| before.end.max(now.end));
        state.promised = Some((Written { end, ..now }, number));
        state.promised_times = None;
    }

    fn show_times(&self, number: u64, times: Times) {
        self.state.lock().promised_times = Some((times, number));
    }
}
