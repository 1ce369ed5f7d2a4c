//! A worker: acts like one thread of a program that uses the endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, Rng};
use millpond_types::Tick;
use tokio::sync::Barrier;

use super::{LoadOptions, Record, Workload, is_up};
use crate::LoadError;
use crate::client::{Client, Failure};
use crate::content::Content;
use crate::journal::{KeyState, Write};

/// Pause after a failed request, so that a refusing endpoint is not called in a busy loop.
const PAUSE: Duration = Duration::from_millis(10);
/// Attempts for a put that reads need.
const PREPARE_TRIES: usize = 5;

/// A key that belongs to a worker.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) key: String,
    pub(super) state: KeyState,
}

/// Result of a worker.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) slots: Vec<Slot>,
    pub(super) record: Record,
    pub(super) begun: Tick,
    pub(super) ended: Tick,
}

/// A worker: owns a part of the keys.
pub(super) struct Worker {
    writer: Client,
    reader: Option<Client>,
    options: LoadOptions,
    slots: Vec<Slot>,
    rng: Rng,
    stop: Arc<AtomicBool>,
    record: Record,
    next: usize,
}

impl Worker {
    pub(super) fn new(
        number: usize,
        options: &LoadOptions,
        slots: Vec<Slot>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let endpoints = &options.endpoints;
        let client = |number: usize| {
            Client::new(endpoints[number % endpoints.len()].clone(), options.client.clone())
        };
        // With several servers, data written through one is read through another.
        let reader = (endpoints.len() > 1 && options.workload == Workload::ReadAfterWrite)
            .then(|| client(number + 1));
        Self {
            writer: client(number),
            reader,
            slots,
            rng: Rng::with_stream(options.seed, number as u64),
            options: options.clone(),
            stop,
            record: Record::default(),
            next: 0,
        }
    }

    /// Prepares, waits for the others, and works until the time is over.
    pub(super) async fn run(mut self, barrier: Arc<Barrier>) -> Result<Done, LoadError> {
        let prepared = self.prepare().await;
        if prepared.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        barrier.wait().await;
        prepared?;
        let begun = RealClock::tick();
        let end = begun.plus(self.options.time);
        while RealClock::tick() < end && !is_up(&self.stop) {
            self.step().await;
        }
        let ended = RealClock::tick();
        Ok(Done { slots: self.slots, record: self.record, begun, ended })
    }

    /// Puts the objects that reads need.
    async fn prepare(&mut self) -> Result<(), LoadError> {
        if !matches!(self.options.workload, Workload::Get | Workload::Mixed) {
            return Ok(());
        }
        for index in 0..self.slots.len() {
            let mut tries = 0;
            while !self.slots[index].state.is_there() && !is_up(&self.stop) {
                let Err(failure) = self.put(index).await else { break };
                tries += 1;
                if tries == PREPARE_TRIES {
                    let what = format!("put of {}", self.slots[index].key);
                    return Err(LoadError::Refused { what, code: failure.code });
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        // Puts up to here are not measured.
        self.record = Record::default();
        Ok(())
    }

    async fn step(&mut self) {
        let any = self.rng.index(self.slots.len());
        let worked = match self.options.workload {
            Workload::Get => {
                self.next += 1;
                let is_checked = (self.next - 1).is_multiple_of(self.options.check_every as usize);
                if is_checked { self.get(any).await } else { self.skim(any).await }
            }
            Workload::Mixed => self.mixed(any).await,
            Workload::Put => {
                let index = self.turn();
                self.put(index).await
            }
            Workload::ReadAfterWrite => {
                let index = self.turn();
                match self.put(index).await {
                    Ok(()) => self.get(index).await,
                    refused => refused,
                }
            }
        };
        if worked.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn turn(&mut self) -> usize {
        self.next = (self.next + 1) % self.slots.len();
        self.next
    }

    async fn mixed(&mut self, index: usize) -> Result<(), Failure> {
        let draw = self.rng.below(100);
        let reads = u64::from(self.options.read_percent);
        if draw < reads {
            self.get(index).await
        } else if draw < reads + u64::from(self.options.delete_percent) {
            self.delete(index).await
        } else {
            self.put(index).await
        }
    }

    async fn put(&mut self, index: usize) -> Result<(), Failure> {
        let slot = &mut self.slots[index];
        if !slot.state.is_writable() {
            return Ok(());
        }
        let write = Write { seq: slot.state.next_seq(), size: Some(self.options.size) };
        let content = Content::new(&slot.key, write.seq, self.options.size);
        let begun = RealClock::tick();
        let answer = self.writer.put(&slot.key, content).await;
        let lane = &mut self.record.put;
        match &answer {
            Ok(()) => lane.done(RealClock::tick().since(begun)),
            Err(failure) => lane.failed(&failure.code),
        }
        settle(&mut slot.state, write, answer)
    }

    async fn delete(&mut self, index: usize) -> Result<(), Failure> {
        let slot = &mut self.slots[index];
        if !slot.state.is_writable() {
            return Ok(());
        }
        let write = Write { seq: slot.state.next_seq(), size: None };
        let begun = RealClock::tick();
        let answer = self.writer.delete(&slot.key).await;
        let lane = &mut self.record.delete;
        match &answer {
            Ok(()) => lane.done(RealClock::tick().since(begun)),
            Err(failure) => lane.failed(&failure.code),
        }
        settle(&mut slot.state, write, answer)
    }

    /// Reads and counts; an answer of unexpected length is read again and judged.
    async fn skim(&mut self, index: usize) -> Result<(), Failure> {
        let slot = &self.slots[index];
        let begun = RealClock::tick();
        match self.writer.skim(&slot.key).await {
            Ok(Some(len)) if slot.state.size() == Some(len) => {
                self.record.get.done(RealClock::tick().since(begun));
                Ok(())
            }
            Ok(_) => self.get(index).await,
            Err(failure) => {
                self.record.get.failed(&failure.code);
                Err(failure)
            }
        }
    }

    async fn get(&mut self, index: usize) -> Result<(), Failure> {
        let slot = &self.slots[index];
        let reader = self.reader.as_mut().unwrap_or(&mut self.writer);
        let begun = RealClock::tick();
        match reader.get(&slot.key).await {
            Ok(seen) => {
                self.record.get.done(RealClock::tick().since(begun));
                let verdict = slot.state.judge(seen);
                self.record.judged(verdict, || {
                    format!("{}: {verdict:?}: {seen:?}, known is {:?}", slot.key, slot.state)
                });
                Ok(())
            }
            Err(failure) => {
                self.record.get.failed(&failure.code);
                Err(failure)
            }
        }
    }
}

/// Records the outcome of a write.
fn settle(state: &mut KeyState, write: Write, answer: Result<(), Failure>) -> Result<(), Failure> {
    match &answer {
        Ok(()) => state.ack(write),
        Err(failure) if failure.doubt => state.doubt(write),
        Err(_) => {}
    }
    answer
}
