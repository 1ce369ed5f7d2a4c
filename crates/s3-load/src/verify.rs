//! Compares a journal with an endpoint: every key is read and judged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millpond_env::RealClock;
use serde::Serialize;

use crate::LoadError;
use crate::client::{Client, ClientOptions, Endpoint, Failure};
use crate::content::{Seen, Torn};
use crate::journal::{Journal, KeyState, Verdict};

/// Pause before the next read of an unreadable key.
const PAUSE: Duration = Duration::from_millis(200);
/// Keys listed in a report, per kind.
const NAMED_MAX: usize = 100;

/// Settings of a verification.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The server.
    pub endpoint: Endpoint,
    /// Settings of the clients; the bucket may differ from that of the journal.
    pub client: ClientOptions,
    /// Requests in flight.
    pub concurrency: usize,
    /// How long reads of an unreadable key are repeated.
    pub patience: Duration,
    /// Whether an unacknowledged write that replaces a later acknowledged one is wrong.
    pub strict: bool,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// Keys of the journal.
    pub keys: usize,
    /// Number of keys by verdict.
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Keys that could not be read within the patience.
    pub unread: u64,
    /// Wrong and unreadable keys with their state, up to 100 of each kind.
    pub faults: BTreeMap<String, Vec<String>>,
}

impl Findings {
    /// Whether every key was read with an allowed verdict.
    #[must_use]
    pub fn is_right(&self, strict: bool) -> bool {
        self.unread == 0 && self.verdicts.keys().all(|verdict| verdict.is_right(strict))
    }

    fn fault(&mut self, kind: String, told: String) {
        let named = self.faults.entry(kind).or_default();
        if named.len() < NAMED_MAX {
            named.push(told);
        }
    }

    fn judged(
        &mut self,
        key: &str,
        state: &KeyState,
        seen: Result<Option<Seen>, Torn>,
        strict: bool,
    ) {
        let verdict = state.judge(seen);
        *self.verdicts.entry(verdict).or_default() += 1;
        if !verdict.is_right(strict) {
            let told = format!("{key}: {seen:?}, known is {state:?}");
            self.fault(format!("{verdict:?}").to_lowercase(), told);
        }
    }
}

/// Remaining keys, and the findings so far. The lock is held briefly, never across a wait.
#[derive(Default)]
struct Work {
    left: VecDeque<(String, KeyState)>,
    findings: Findings,
}

/// Reads every key of `journal`.
///
/// # Errors
/// [`LoadError::System`]; keys that cannot be read are findings.
pub fn run(options: &VerifyOptions, journal: Journal) -> Result<Findings, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| LoadError::System { what: "an event loop", source })?;
    let findings = Findings { keys: journal.keys.len(), ..Findings::default() };
    let work = Arc::new(Mutex::new(Work { left: journal.keys.into_iter().collect(), findings }));
    runtime.block_on(async {
        let readers: Vec<_> = (0..options.concurrency.max(1))
            .map(|_| tokio::spawn(read_all(options.clone(), Arc::clone(&work))))
            .collect();
        for reader in readers {
            if let Err(error) = reader.await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    });
    let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut work.findings))
}

async fn read_all(options: VerifyOptions, work: Arc<Mutex<Work>>) {
    let mut client = Client::new(options.endpoint.clone(), options.client.clone());
    let locked = || work.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some((key, state)) = locked().left.pop_front() else { return };
        let read = read_patiently(&mut client, &key, options.patience).await;
        let findings = &mut locked().findings;
        match read {
            Ok(seen) => findings.judged(&key, &state, seen, options.strict),
            Err(failure) => {
                findings.unread += 1;
                findings.fault("unread".to_owned(), format!("{key}: {}", failure.code));
            }
        }
    }
}

async fn read_patiently(
    client: &mut Client,
    key: &str,
    patience: Duration,
) -> Result<Result<Option<Seen>, Torn>, Failure> {
    let end = RealClock::tick().plus(patience);
    loop {
        match client.get(key).await {
            Err(_) if RealClock::tick() < end => tokio::time::sleep(PAUSE).await,
            read => return read,
        }
    }
}
