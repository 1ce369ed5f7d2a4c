//! The access log: a reader gets a line for every request, as long as it keeps up.
//!
//! Each reader has a buffer for lines that it has not read. Lines that do not fit are dropped and
//! counted, so that no reader slows the mount down. A read that finds no line is put aside until
//! there is one, and answered by the thread that writes it: no thread waits. Reads put aside end
//! with the process; the kernel resends them to the next one, which does not know the reader and
//! makes a new buffer for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_fuse_wire::{Device, Reply, ReplyTo};
use millpond_types::metrics::Counter;
use parking_lot::Mutex;

use super::line::event;
use crate::early::Early;
use crate::worker::send;

/// Buffered bytes of one reader: some 8,000 lines.
const ROOM_BYTES: usize = 1 << 20;
/// Readers of one mount: each line is written once for each.
const READERS_MAX: usize = 16;

/// The address of the answer to a read.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) unique: u64,
    pub(super) to: ReplyTo,
    pub(super) device: Arc<Device>,
}

/// A read that waits for lines.
#[derive(Debug)]
struct Waiting {
    asker: Asker,
    size: usize,
}

/// The outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Lines(Vec<u8>),
    /// There are no lines, and the reader is non-blocking.
    Nothing,
    /// It is answered later.
    Later,
    Interrupted,
}

#[derive(Debug, Default)]
struct Reader {
    lines: VecDeque<u8>,
    /// Number of dropped lines since the last one that fitted.
    dropped: u64,
    waiting: VecDeque<Waiting>,
}

impl Reader {
    /// Adds a line; false when it does not fit.
    fn push(&mut self, line: &[u8]) -> bool {
        let gap = self.gap();
        if self.lines.len() + gap.len() + line.len() > ROOM_BYTES {
            self.dropped += 1;
            return false;
        }
        self.dropped = 0;
        self.lines.extend(gap);
        self.lines.extend(line);
        true
    }

    /// The line with the number of dropped ones.
    fn gap(&self) -> Vec<u8> {
        if self.dropped == 0 {
            return Vec::new();
        }
        event(&format!("dropped count={}", self.dropped))
    }

    /// Takes lines of at most `size` bytes: whole ones, unless the first is longer than that.
    fn take(&mut self, size: usize) -> Vec<u8> {
        if self.lines.is_empty() {
            self.lines.extend(self.gap());
            self.dropped = 0;
        }
        let mut end = self.lines.len();
        if end > size {
            let whole = self.lines.iter().take(size).rposition(|byte| *byte == b'\n');
            end = whole.map_or(size, |at| at + 1);
        }
        self.lines.drain(..end).collect()
    }
}

#[derive(Debug, Default)]
struct Readers {
    of: HashMap<u64, Reader>,
    early: Early,
}

/// The access log of a mount.
#[derive(Debug, Default)]
pub(super) struct AccessLog {
    readers: Mutex<Readers>,
    /// Number of readers: the only state that a request checks while there are none.
    count: AtomicUsize,
    dropped: Counter,
}

impl AccessLog {
    /// Whether there are readers.
    pub(super) fn is_read(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn readers(&self) -> u64 {
        self.count.load(Ordering::Relaxed) as u64
    }

    /// Number of lines that some reader did not get.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Adds a reader; false when there are too many.
    pub(super) fn open(&self, handle: u64) -> bool {
        let mut readers = self.readers.lock();
        if readers.of.len() >= READERS_MAX && !readers.of.contains_key(&handle) {
            return false;
        }
        readers.of.entry(handle).or_default();
        self.count.store(readers.of.len(), Ordering::Relaxed);
        true
    }

    pub(super) fn close(&self, handle: u64) {
        let mut readers = self.readers.lock();
        readers.of.remove(&handle);
        self.count.store(readers.of.len(), Ordering::Relaxed);
    }

    /// Takes lines of at most `size` bytes, or puts the read aside.
    pub(super) fn read(
        &self,
        handle: u64,
        (size, waits): (usize, bool),
        asker: impl FnOnce() -> Asker,
    ) -> Taken {
        let mut readers = self.readers.lock();
        let Readers { of, early } = &mut *readers;
        let count = of.len() + 1;
        let reader = of.entry(handle).or_insert_with(|| {
            // Opened in an earlier process of the mount.
            self.count.store(count, Ordering::Relaxed);
            Reader { lines: event("resumed").into(), ..Reader::default() }
        });
        let lines = reader.take(size);
        if !lines.is_empty() {
            return Taken::Lines(lines);
        }
        if !waits {
            return Taken::Nothing;
        }
        let asker = asker();
        if early.take(asker.unique) {
            return Taken::Interrupted;
        }
        reader.waiting.push_back(Waiting { asker, size });
        Taken::Later
    }

    /// Adds a line for every reader.
    pub(super) fn push(&self, line: &[u8]) {
        let mut answers = Vec::new();
        {
            let mut readers = self.readers.lock();
            for reader in readers.of.values_mut() {
                if !reader.push(line) {
                    self.dropped.inc();
                }
                if let Some(Waiting { asker, size }) = reader.waiting.pop_front() {
                    answers.push((asker, reader.take(size)));
                }
            }
        }
        for (asker, lines) in answers {
            send(&asker.device, asker.to, &Reply::Data(&lines));
        }
    }

    /// Interrupts a waiting read; false when there is none under this number.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut readers = self.readers.lock();
        let is_it = |waiting: &Waiting| waiting.asker.unique == unique;
        let mut found = None;
        for reader in readers.of.values_mut() {
            if let Some(at) = reader.waiting.iter().position(is_it) {
                found = reader.waiting.remove(at);
            }
        }
        let Some(Waiting { asker, .. }) = found else {
            readers.early.note(unique);
            return false;
        };
        drop(readers);
        send(&asker.device, asker.to, &Reply::Error(libc::EINTR));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> Asker {
        panic!("it does not wait")
    }

    /// Reads without waiting.
    fn take(log: &AccessLog, size: usize) -> String {
        match log.read(7, (size, false), nobody) {
            Taken::Lines(lines) => String::from_utf8(lines).unwrap(),
            Taken::Nothing => String::new(),
            taken => panic!("{taken:?}"),
        }
    }

    #[test]
    fn lines_come_whole_and_in_order() {
        let log = AccessLog::default();
        assert!(!log.is_read() && log.open(7) && log.is_read());
        for line in ["one\n", "two\n", "three\n"] {
            log.push(line.as_bytes());
        }
        assert_eq!(take(&log, 10), "one\ntwo\n");
        assert_eq!(take(&log, 3), "thr", "the line is longer than the reader's buffer");
        assert_eq!(take(&log, 100), "ee\n");
        assert_eq!(take(&log, 100), "");
        log.close(7);
        assert!(!log.is_read());
    }

    #[test]
    fn a_slow_reader_loses_lines_and_is_told_how_many() {
        let log = AccessLog::default();
        assert!(log.open(7) && log.open(8));
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        for _ in 0..1024 + 5 {
            log.push(&line);
        }
        assert_eq!(log.dropped(), 2 * 5, "of both");
        let text = take(&log, 4096);
        assert_eq!(text.len(), 4096);
        log.push(b"next\n");
        let mut text = String::new();
        loop {
            let more = take(&log, 1 << 20);
            if more.is_empty() {
                break;
            }
            text.push_str(&more);
        }
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        assert!(last[0] == "next" && last[1].ends_with("event=dropped count=5"), "{last:?}");
        // Dropped lines are reported even without a line after them.
        for _ in 0..1024 + 2 {
            log.push(&line);
        }
        assert_eq!(take(&log, 1 << 20).len(), 1 << 20);
        assert!(take(&log, 4096).ends_with("event=dropped count=2\n"));
    }

    #[test]
    fn readers_are_few_and_one_of_an_earlier_process_goes_on() {
        let log = AccessLog::default();
        for handle in 0..READERS_MAX as u64 {
            assert!(log.open(100 + handle));
        }
        assert!(!log.open(5) && log.open(100), "an open that is sent again is not a new one");
        log.close(100);
        assert!(take(&log, 4096).ends_with("event=resumed\n"));
        log.push(b"line\n");
        assert_eq!(take(&log, 4096), "line\n");
        assert_eq!(log.readers(), READERS_MAX as u64);
    }

    #[test]
    fn an_interrupt_may_come_before_the_read() {
        let log = AccessLog::default();
        assert!(log.open(7));
        assert!(!log.interrupt(199));
        let device = Arc::new(Device::from_fd(std::io::pipe().unwrap().0.into()));
        let asker = |unique| {
            let device = Arc::clone(&device);
            move || Asker { unique, to: ReplyTo::from_raw(unique), device }
        };
        assert_eq!(log.read(7, (10, true), asker(199)), Taken::Interrupted);
        assert_eq!(log.read(7, (10, true), asker(199)), Taken::Later, "it is for one read");
        assert_eq!(log.readers.lock().of[&7].waiting.len(), 1);
    }
}
