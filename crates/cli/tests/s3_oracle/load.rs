//! Clients at work: each has keys of its own and one request under way, through any gateway.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::Rng;
use millpond_s3_load::content::Torn;
use millpond_s3_load::journal::{Verdict, Write};

use crate::client::{Answer, Client, Request};
use crate::oracle::{Key, Shown, seen};

/// How long a client waits for an answer: longer than gateways try.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);
/// Behind a request that failed.
const PAUSE: Duration = Duration::from_millis(20);
/// At most so long between two requests of a client.
const BREATH_MS: u64 = 70;
/// How often a part is sent until its upload is given up.
const PART_TRIES: usize = 6;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What all clients share.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    pub(crate) acked: AtomicU64,
    pub(crate) doubts: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) uploads: AtomicU64,
    pub(crate) copies: AtomicU64,
    /// Puts whose condition was not met.
    pub(crate) unmet: AtomicU64,
    /// Puts on a condition that were answered where it was known whether it is met.
    pub(crate) judged: AtomicU64,
    /// What nobody may be shown.
    pub(crate) wrong: Mutex<Vec<String>>,
    /// Failures by what they say.
    pub(crate) failures: Mutex<BTreeMap<String, u64>>,
}

impl Shared {
    pub(crate) fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn wrong(&self, what: String) {
        eprintln!("WRONG: {what}");
        self.wrong.lock().unwrap().push(what);
    }

    pub(crate) fn failed(&self, what: &str) {
        *self.failures.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }
}

pub(crate) fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}

/// What became of a request.
pub(crate) enum Came {
    Done(Answer),
    /// It was not done, and never will be.
    Refused,
    /// Nobody knows.
    Doubt,
}

/// What an answer to GET shows; none if it says nothing of the key.
pub(crate) fn shown(name: &str, answer: &Answer) -> Option<Result<Shown, Torn>> {
    match answer.status {
        200 => Some(
            seen(name, &answer.body)
                .map(|seen| Shown { seen: Some(seen), etag: answer.header("etag") }),
        ),
        404 if answer.tag("Code") == "NoSuchKey" => {
            Some(Ok(Shown { seen: None, etag: String::new() }))
        }
        _ => None,
    }
}

/// A client.
pub(crate) struct Worker {
    pub(crate) bucket: &'static str,
    /// What its keys begin with.
    pub(crate) prefix: String,
    pub(crate) keys: Vec<Key>,
    pub(crate) gateways: Vec<Client>,
    pub(crate) rng: Rng,
}

impl Worker {
    pub(crate) fn new(
        (bucket, prefix): (&'static str, &str),
        keys: usize,
        gateways: &[Client],
        rng: Rng,
    ) -> Self {
        // Some lie in folders, which come and go with them; some are folders and objects.
        let name = |n: usize| match n % 4 {
            0 => format!("{prefix}k{n}"),
            1 => format!("{prefix}k{}/below", n - 1),
            2 => format!("{prefix}folder/k{n}"),
            _ => format!("{prefix}folder/of ü/k{n}"),
        };
        let keys = (0..keys).map(|n| Key::new(name(n))).collect();
        Self { bucket, prefix: prefix.to_owned(), keys, gateways: gateways.to_vec(), rng }
    }

    pub(crate) fn gateway(&mut self) -> Client {
        self.gateways[self.rng.index(self.gateways.len())].clone()
    }

    /// Works until it is told to stop.
    pub(crate) fn run(&mut self, shared: &Shared) {
        while !shared.stops() {
            let at = self.rng.index(self.keys.len());
            // What was replaced is kept for a minute: disks must not be full of it.
            std::thread::sleep(Duration::from_millis(self.rng.below(BREATH_MS)));
            let is_fine = match self.rng.below(100) {
                0..30 => self.get(at, shared),
                30..36 => self.list(shared),
                36..50 => self.remove(at, shared),
                50..52 => self.upload(at, shared),
                52..60 => self.put_if(at, shared),
                60..64 => self.remove_many(at, shared),
                64..70 => self.touch(at, shared),
                _ => self.put(at, shared),
            };
            if !is_fine {
                std::thread::sleep(PAUSE);
            }
        }
    }

    pub(crate) fn path(&self, at: usize) -> String {
        format!("/{}/{}", self.bucket, self.keys[at].name)
    }

    /// Sends something that changes a key.
    fn change(shared: &Shared, what: &str, request: Request) -> Came {
        Self::came(shared, what, request.try_send(PATIENCE))
    }

    /// What became of something that changes a key.
    pub(crate) fn came(shared: &Shared, what: &str, sent: std::io::Result<Answer>) -> Came {
        match sent {
            Ok(answer) if answer.status < 300 && !answer.text().contains("<Error>") => {
                Came::Done(answer)
            }
            Ok(answer) if answer.status < 500 && answer.status >= 300 => {
                let text = answer.text();
                shared.wrong(format!("{what} was refused: {} {text}", answer.status));
                Came::Refused
            }
            Ok(answer) => {
                let verb = what.split(' ').next().unwrap_or_default();
                shared.failed(&format!("{verb}: {} {}", answer.status, answer.tag("Code")));
                Came::Doubt
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Came::Refused,
            Err(error) => {
                let text = error.to_string();
                let verb = what.split(' ').next().unwrap_or_default();
                shared.failed(&format!("{verb}: {}", text.lines().next().unwrap_or("cut short")));
                Came::Doubt
            }
        }
    }

    /// Notes what became of a write.
    pub(crate) fn noted(
        &mut self,
        shared: &Shared,
        (at, write): (usize, Write),
        came: &Came,
    ) -> bool {
        let key = &mut self.keys[at];
        match came {
            Came::Done(answer) => {
                count(&shared.acked);
                key.done(write, &answer.header("etag"));
            }
            Came::Refused => {}
            Came::Doubt => {
                count(&shared.doubts);
                key.state.doubt(write);
            }
        }
        matches!(came, Came::Done(_))
    }

    pub(crate) fn size(&mut self) -> u64 {
        match self.rng.below(20) {
            0..8 => 24 + self.rng.below(3_000),
            8..14 => 24 + self.rng.below(63 * KIB),
            14..19 => 64 * KIB + self.rng.below(300 * KIB),
            _ => MIB + self.rng.below(MIB),
        }
    }

    fn put(&mut self, at: usize, shared: &Shared) -> bool {
        if !self.keys[at].state.is_writable() {
            return false;
        }
        let size = self.size();
        let write = self.keys[at].begin(Some(size));
        let body = self.keys[at].bytes(write, 0, size);
        let path = self.path(at);
        let came = Self::change(shared, "PUT", self.gateway().put(&path, body));
        self.noted(shared, (at, write), &came)
    }

    fn remove(&mut self, at: usize, shared: &Shared) -> bool {
        if !self.keys[at].state.is_writable() {
            return false;
        }
        let write = self.keys[at].begin(None);
        let path = self.path(at);
        let came = Self::change(shared, "DELETE", self.gateway().delete(&path));
        self.noted(shared, (at, write), &came)
    }

    fn get(&mut self, at: usize, shared: &Shared) -> bool {
        let path = self.path(at);
        let Ok(answer) = self.gateway().get(&path).try_send(PATIENCE) else { return false };
        let key = &mut self.keys[at];
        let Some(shown) = shown(&key.name, &answer) else {
            shared.failed(&format!("GET: {} {}", answer.status, answer.tag("Code")));
            if answer.status < 500 {
                shared.wrong(format!("GET {path}: {} {}", answer.status, answer.text()));
            }
            return false;
        };
        count(&shared.reads);
        match key.read(&shown) {
            Ok(Verdict::Late) => count(&shared.late),
            Ok(_) => {}
            Err(what) => shared.wrong(format!("{}/{what}", self.bucket)),
        }
        true
    }

    /// Lists its own keys: what is known of them must be there, and as long.
    fn list(&mut self, shared: &Shared) -> bool {
        let request = self.gateway().get(&format!("/{}", self.bucket));
        let request = request.query("list-type", "2").query("prefix", &self.prefix);
        let Ok(answer) = request.try_send(PATIENCE) else { return false };
        if answer.status != 200 {
            shared.failed(&format!("LIST: {} {}", answer.status, answer.tag("Code")));
            return false;
        }
        count(&shared.lists);
        let sizes = answer.tags("Size").into_iter().map(|it| it.parse::<u64>().unwrap());
        let there: BTreeMap<String, u64> = answer.tags("Key").into_iter().zip(sizes).collect();
        for key in &self.keys {
            let found = there.get(&key.name).copied();
            if !key.may_be_listed(found) {
                let told = format!("{}/{}: listed as {found:?}", self.bucket, key.name);
                shared.wrong(format!("{told}, known is {:?}", key.state));
            }
        }
        true
    }

    /// An object in two parts, through any gateways; some are given up instead of completed.
    fn upload(&mut self, at: usize, shared: &Shared) -> bool {
        let size = 5 * MIB + 24 + self.rng.below(100 * KIB);
        let path = self.path(at);
        if !self.keys[at].state.is_writable() {
            return false;
        }
        let begun =
            Self::change(shared, "begin", self.gateway().post(&path, "").query("uploads", ""));
        let Came::Done(begun) = begun else { return false };
        let id = begun.tag("UploadId");
        let write = self.keys[at].begin(Some(size));
        let mut named = String::new();
        for (number, (from, to)) in (1..).zip([(0, 5 * MIB), (5 * MIB, size)]) {
            let Some(etag) = self.part((&path, &id, number), (at, write), (from, to), shared)
            else {
                // What is left behind would fill the disks.
                let _ = self.gateway().delete(&path).query("uploadId", &id).try_send(PATIENCE);
                return false;
            };
            let part = format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
            named.push_str(&part);
        }
        if self.rng.chance(1, 8) {
            let gone = self.gateway().delete(&path).query("uploadId", &id);
            return matches!(Self::change(shared, "abort", gone), Came::Done(_));
        }
        let all = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
        // One whose answer was lost may be sent again.
        for _ in 0..2 {
            let whole = self.gateway().post(&path, all.clone()).query("uploadId", &id);
            let came = match Self::change(shared, "complete", whole) {
                Came::Done(answer) => {
                    count(&shared.uploads);
                    count(&shared.acked);
                    self.keys[at].done(write, &answer.tag("ETag").replace("&quot;", "\""));
                    return true;
                }
                other => other,
            };
            if matches!(came, Came::Refused) {
                continue;
            }
            if !self.keys[at].state.doubts.contains(&write) {
                self.noted(shared, (at, write), &came);
            }
            std::thread::sleep(PAUSE);
        }
        false
    }

    fn part(
        &mut self,
        (path, id, number): (&str, &str, u32),
        (at, write): (usize, Write),
        (from, to): (u64, u64),
        shared: &Shared,
    ) -> Option<String> {
        let body = self.keys[at].bytes(write, from, to);
        for _ in 0..PART_TRIES {
            let put = self.gateway().put(path, body.clone()).query("uploadId", id);
            let put = put.query("partNumber", &number.to_string());
            if let Came::Done(answer) = Self::change(shared, "part", put) {
                return Some(answer.header("etag"));
            }
            std::thread::sleep(5 * PAUSE);
        }
        None
    }
}
