//! What was answered and no meta knows of yet, as the journal has it.

use millpond_env::RealClock;
use millpond_types::meta::{Ino, MetaOp, MetaRequest, SetTime, Timestamp};

use super::{File, Files, Table, Times, Written, promise};
use crate::backend::Told;
use crate::journal::Entry;

/// Bytes that are promised with a request.
fn written(op: &MetaOp) -> Option<Written> {
    match op {
        MetaOp::WriteInline(write) => {
            Some(Written { end: write.end(), at: write.mtime, data: write.data })
        }
        MetaOp::Extend(extend) => {
            Some(Written { end: extend.size, at: extend.mtime, data: extend.data })
        }
        MetaOp::Create(create) => {
            let promised = create.promised.as_ref().filter(|it| !it.bytes.is_empty())?;
            let end = promised.bytes.len() as u64;
            Some(Written { end, at: promised.written, data: promised.ino.0 })
        }
        _ => None,
    }
}

/// Times that are promised with a request, and nothing else.
fn times(op: &MetaOp) -> Option<Times> {
    let MetaOp::SetAttr { set, .. } = op else { return None };
    let Some(SetTime::At(mtime)) = set.mtime else { return None };
    // When it is done; until then, when it was promised.
    Some(Times { mtime, ctime: set.ctime.unwrap_or_default() })
}

impl Table {
    /// A file shows what was promised of it while it was closed, or by an earlier process.
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

    /// What was written to a file is promised now, and nothing that has to be told besides.
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
    /// Takes note of a change that is about to be answered; false when there is no journal to keep it. What was
    /// written to a file is not held any more when that is what is promised: the caller has the file alone.
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

    /// A change will be asked for by this request from now on.
    pub(crate) fn promised_as(&self, number: u64, ino: Ino, request: &MetaRequest) {
        let mut table = self.table.lock();
        if let Some(before) = table.promised.get_mut(&number) {
            *before = (ino, request.clone());
            table.note(&promise(number, ino, request));
        }
    }

    /// A meta knows of the change, and says this of the file.
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

    /// No meta will ever do it.
    pub(crate) fn broken(&self, number: u64) {
        self.table.lock().broken += 1;
        self.kept(number, None);
    }

    /// What an earlier process answered and told no meta of.
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
