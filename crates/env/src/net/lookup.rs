//! Name lookups within a deadline.
//!
//! The system's resolver blocks its thread for ten seconds and more while its servers do not
//! answer, and nothing can end its wait. So a bounded number of separate threads asks it, one at a
//! time for each name, and a caller waits only until its deadline. When the resolver is late, its
//! last answer stands in. While it works, an answer is used once, so the next caller finds an
//! address that moved.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millpond_types::Tick;

use crate::clock::RealClock;
use crate::fork::PerProcess;
use crate::rt::{thread, timeout};
use crate::sync::{Condvar, Mutex};

/// Threads that ask the resolver at once, so that a few unanswered names leave room for others.
const THREADS_MAX: usize = 8;
/// Names that are cached or waited for: enough for the nodes and managers of a large cluster.
const NAMES_MAX: usize = 4096;
/// Time after which a resolver counts as late, if a last answer can stand in.
const LATE: Duration = Duration::from_millis(100);
/// Longest wait of [`lookup_host`] without another deadline: two servers that time out.
const PATIENCE: Duration = Duration::from_secs(10);

type Found = io::Result<Vec<IpAddr>>;
type Ask = dyn Fn(&str) -> Found + Send + Sync;

/// Result of one question, once there is one.
#[derive(Default)]
struct Outcome {
    answer: Option<Result<Vec<IpAddr>, (io::ErrorKind, String)>>,
    wakers: Vec<Waker>,
}

/// A question for which a thread asks the resolver, now or later.
struct Question {
    asked: Tick,
    outcome: Mutex<Outcome>,
    told: Condvar,
}

impl Question {
    fn tell(&self, found: Found) {
        let answer = found.map_err(|error| (error.kind(), error.to_string()));
        let mut outcome = self.outcome.lock();
        outcome.answer = Some(answer);
        let wakers = std::mem::take(&mut outcome.wakers);
        drop(outcome);
        self.told.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn wait(&self, until: Tick) -> Option<Found> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(answer) = &outcome.answer {
                return Some(copied(answer));
            }
            let left = until.since(RealClock::tick());
            if left.is_zero() {
                return None;
            }
            self.told.wait_for(&mut outcome, left);
        }
    }
}

fn copied(answer: &Result<Vec<IpAddr>, (io::ErrorKind, String)>) -> Found {
    answer.clone().map_err(|(kind, text)| io::Error::new(kind, text))
}

#[derive(Default)]
struct Name {
    /// The last answer with an address in it.
    known: Option<Vec<IpAddr>>,
    question: Option<Arc<Question>>,
}

#[derive(Default)]
struct State {
    names: HashMap<String, Name>,
    queue: VecDeque<String>,
    threads: usize,
}

/// Looks names up.
struct Names {
    ask: Box<Ask>,
    state: Mutex<State>,
}

impl Names {
    fn new(ask: Box<Ask>) -> Arc<Self> {
        Arc::new(Self { ask, state: Mutex::default() })
    }

    /// The names of this process. Threads do not survive a fork, so a child starts with an empty
    /// table.
    fn of_process() -> &'static Arc<Self> {
        static NAMES: PerProcess<Arc<Names>> = PerProcess::empty();
        NAMES.get_or(|| Self::new(Box::new(ask_system)))
    }

    /// Joins the question about `host`, or asks it; returns it with the last answer.
    fn begin(self: &Arc<Self>, host: &str) -> io::Result<(Arc<Question>, Option<Vec<IpAddr>>)> {
        let mut state = self.state.lock();
        if state.names.len() >= NAMES_MAX && !state.names.contains_key(host) {
            state.names.retain(|_, name| name.question.is_some());
            if state.names.len() >= NAMES_MAX {
                let text = "too many names are being looked up: the resolver does not answer";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
        }
        let name = state.names.entry(host.to_owned()).or_default();
        let known = name.known.clone();
        if let Some(question) = &name.question {
            return Ok((Arc::clone(question), known));
        }
        let asked = RealClock::tick();
        let question =
            Arc::new(Question { asked, outcome: Mutex::default(), told: Condvar::new() });
        name.question = Some(Arc::clone(&question));
        state.queue.push_back(host.to_owned());
        if state.threads < THREADS_MAX {
            let names = Arc::clone(self);
            match thread("millpond-names", move || names.work()) {
                Ok(_ends_by_itself) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.queue.clear();
                    state.names.retain(|_, name| name.question.is_none());
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Ok((question, known))
    }

    /// Asks the resolver while there are questions.
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(host) = state.queue.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            let found = (self.ask)(&host);
            let mut state = self.state.lock();
            let question = state.names.get_mut(&host).and_then(|name| {
                match &found {
                    Ok(all) if !all.is_empty() => name.known = Some(all.clone()),
                    _ => {}
                }
                name.question.take()
            });
            drop(state);
            if let Some(question) = question {
                question.tell(found);
            }
        }
    }

    fn lookup(self: &Arc<Self>, host: &str, deadline: Tick) -> Found {
        if let Ok(literal) = host.parse() {
            return Ok(vec![literal]);
        }
        let (question, known) = self.begin(host)?;
        let until = patience(&question, known.is_some(), deadline);
        question.wait(until).unwrap_or_else(|| known.ok_or_else(|| late(host)))
    }
}

/// Deadline for an answer.
fn patience(question: &Question, is_known: bool, deadline: Tick) -> Tick {
    if is_known { deadline.min(question.asked.plus(LATE)) } else { deadline }
}

fn late(host: &str) -> io::Error {
    let text = format!(
        "the resolver has not answered for '{host}' in time: check /etc/resolv.conf, or use an IP \
         address"
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

fn ask_system(host: &str) -> Found {
    let found = std::net::ToSocketAddrs::to_socket_addrs(&(host, 0))?;
    Ok(found.map(|address| address.ip()).collect())
}

fn with_port(found: Found, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(found?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

/// The current addresses of `host`, with `port`. Blocks until `deadline` at most.
///
/// # Errors
/// Errors of the resolver; `TimedOut` when it does not answer in time and never answered before.
pub fn lookup(host: &str, port: u16, deadline: Tick) -> io::Result<Vec<SocketAddr>> {
    with_port(Names::of_process().lookup(host, deadline), port)
}

/// The current addresses of `host:port`, within ten seconds.
///
/// # Errors
/// As [`lookup`]; a text without a port is `InvalidInput`.
pub fn lookup_host(name: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(literal) = name.parse() {
        return Ok(vec![literal]);
    }
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not host:port");
    let (host, port) = name.rsplit_once(':').ok_or_else(invalid)?;
    let port = port.parse().map_err(|_| invalid())?;
    lookup(host, port, RealClock::tick().plus(PATIENCE))
}

/// [`lookup`] for tasks of a [`Runtime`](crate::Runtime).
///
/// # Errors
/// As [`lookup`].
pub async fn lookup_async(host: &str, port: u16, deadline: Tick) -> io::Result<Vec<SocketAddr>> {
    if let Ok(literal) = host.parse() {
        return Ok(vec![SocketAddr::new(literal, port)]);
    }
    let (question, known) = Names::of_process().begin(host)?;
    let left = patience(&question, known.is_some(), deadline).since(RealClock::tick());
    let found = timeout(left, Answer { question }).await;
    let found = found.unwrap_or_else(|_| known.ok_or_else(|| late(host)));
    with_port(found, port)
}

/// The addresses of a host, for tasks of any executor that bounds the wait itself. Dropping the
/// future leaves the question to the resolver thread.
///
/// # Errors
/// Errors of the resolver.
pub async fn lookup_unbounded(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(literal) = host.parse() {
        return Ok(vec![literal]);
    }
    let (question, known) = Names::of_process().begin(host)?;
    let is_late = RealClock::tick() >= question.asked.plus(LATE);
    match known {
        Some(known) if is_late => Ok(known),
        _ => Answer { question }.await,
    }
}

/// Future of the answer.
struct Answer {
    question: Arc<Question>,
}

impl Future for Answer {
    type Output = Found;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Found> {
        let mut outcome = self.question.outcome.lock();
        if let Some(answer) = &outcome.answer {
            return Poll::Ready(copied(answer));
        }
        if !outcome.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            outcome.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn within(ms: u64) -> Tick {
        RealClock::tick().plus(Duration::from_millis(ms))
    }

    /// Names with a resolver that answers when the test sends the answer, and counts concurrent
    /// questions.
    fn slow() -> (Arc<Names>, mpsc::Sender<Found>, Arc<AtomicUsize>) {
        let (answer, answers) = mpsc::channel::<Found>();
        let (answers, asking) = (Mutex::new(answers), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&asking);
        let names = Names::new(Box::new(move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
            let found = answers.lock().recv();
            seen.fetch_sub(1, Ordering::SeqCst);
            found.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        }));
        (names, answer, asking)
    }

    #[test]
    fn a_lookup_ends_with_its_deadline() {
        let (names, answer, _) = slow();
        let began = RealClock::tick();
        let error = names.lookup("silent.example", within(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("silent.example"), "{error}");
        assert!(RealClock::tick().since(began) < Duration::from_secs(5));
        // A late answer reaches the caller that waits for it.
        let late = IpAddr::from([10, 0, 0, 1]);
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| names.lookup("silent.example", within(60_000)));
            answer.send(Ok(vec![late])).unwrap();
            waiting.join().unwrap()
        });
        // It joined that question, or it asked again and the last answer stood in.
        assert_eq!(waiting.unwrap(), [late]);
    }

    #[test]
    fn a_resolver_that_went_silent_is_stood_in_for_by_its_last_answer() {
        let (names, answer, _) = slow();
        let known = IpAddr::from([10, 0, 0, 2]);
        answer.send(Ok(vec![known])).unwrap();
        assert_eq!(names.lookup("node", within(60_000)).unwrap(), [known]);
        let began = RealClock::tick();
        assert_eq!(names.lookup("node", within(60_000)).unwrap(), [known]);
        assert_eq!(names.lookup("node", within(60_000)).unwrap(), [known]);
        assert!(RealClock::tick().since(began) < Duration::from_secs(30));
    }

    #[test]
    fn a_silent_resolver_holds_a_bounded_number_of_threads() {
        let (names, answer, asking) = slow();
        for index in 0..3 * THREADS_MAX {
            let host = format!("host-{index}");
            for _ in 0..3 {
                assert!(names.lookup(&host, within(1)).is_err());
            }
        }
        assert!(asking.load(Ordering::SeqCst) <= THREADS_MAX);
        assert_eq!(names.state.lock().threads, THREADS_MAX);
        assert_eq!(names.lookup("10.0.0.3", within(0)).unwrap(), [IpAddr::from([10, 0, 0, 3])]);
        drop(answer);
    }

    #[test]
    fn names_of_the_system_are_found() {
        let found = lookup("localhost", 7, within(60_000)).unwrap();
        assert!(found.iter().all(|at| at.ip().is_loopback() && at.port() == 7), "{found:?}");
        assert!(!found.is_empty());
        assert_eq!(lookup_host("[::1]:8").unwrap(), ["[::1]:8".parse().unwrap()]);
        assert_eq!(lookup_host("no-port").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let runtime = crate::Runtime::new(crate::RuntimeOptions::default()).unwrap();
        let found = runtime.block_on(async { lookup_async("localhost", 9, within(60_000)).await });
        assert!(!found.unwrap().is_empty());
    }
}
