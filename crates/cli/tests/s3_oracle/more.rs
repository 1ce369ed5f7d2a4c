//! What clients do beside plain puts and removals: puts on conditions, removals of several keys at once, and copies of an
//! object onto itself.

use crate::client::Answer;
use crate::load::{Came, PATIENCE, Shared, Worker, count};

/// Keys of one `DeleteObjects`.
const AT_ONCE: usize = 3;
/// An `ETag` that nothing has.
const NOBODYS: &str = "\"0123456789abcdef0123456789abcdef\"";

impl Worker {
    /// A put that is done only where something, or nothing, is there.
    pub(crate) fn put_if(&mut self, at: usize, shared: &Shared) -> bool {
        let key = &self.keys[at];
        if !key.state.is_writable() {
            return false;
        }
        let (is_known, is_there, etag) = (key.is_known(), key.state.is_there(), key.etag());
        let (header, value, is_met) = match (self.rng.below(3), etag) {
            (0, _) => ("if-none-match", "*".to_owned(), !is_there),
            (1, Some(etag)) => ("if-match", etag, true),
            _ => ("if-match", NOBODYS.to_owned(), false),
        };
        let size = self.size();
        let write = self.keys[at].begin(Some(size));
        let body = self.keys[at].bytes(write, 0, size);
        let path = self.path(at);
        let put = self.gateway().put(&path, body).header(header, &value);
        let sent = put.try_send(PATIENCE);
        let what = format!("PUT {path} with {header}: {value}");
        if let Ok(answer) = &sent
            && matches!(answer.status, 404 | 409 | 412)
        {
            // 409: another change was under way, such as one of a request that was given up.
            if is_known && is_met && answer.status != 409 {
                shared.wrong(format!("{what}: {} {}", answer.status, answer.text()));
            }
            count(&shared.unmet);
            if is_known {
                count(&shared.judged);
            }
            return true;
        }
        let came = Self::came(shared, &what, sent);
        if matches!(came, Came::Done(_)) && is_known {
            count(&shared.judged);
            if !is_met {
                shared.wrong(format!("{what} was done, known is {:?}", self.keys[at].state));
            }
        }
        self.noted(shared, (at, write), &came)
    }

    /// Removes several keys with one request.
    pub(crate) fn remove_many(&mut self, first: usize, shared: &Shared) -> bool {
        let all: Vec<usize> = (0..AT_ONCE).map(|n| (first + n) % self.keys.len()).collect();
        if !all.iter().all(|at| self.keys[*at].state.is_writable()) {
            return false;
        }
        let writes: Vec<_> = all.iter().map(|at| (*at, self.keys[*at].begin(None))).collect();
        let named = |at: &usize| format!("<Object><Key>{}</Key></Object>", self.keys[*at].name);
        let body = format!("<Delete>{}</Delete>", all.iter().map(named).collect::<String>());
        let post = self.gateway().post(&format!("/{}", self.bucket), body).query("delete", "");
        let sent = post.try_send(PATIENCE);
        // Each key has an answer of its own.
        let (deleted, failed) = match &sent {
            Ok(answer) if answer.is(200) => (answer.tags("Deleted"), answer.tags("Error")),
            _ => Default::default(),
        };
        for text in failed.iter().filter(|it| !it.contains("SlowDown")) {
            shared.failed(&format!("DELETE of many: {text}"));
        }
        let is_answered = !deleted.is_empty() || !failed.is_empty();
        let whole = (!is_answered).then(|| Self::came(shared, "DELETE of many", sent));
        let mut is_fine = true;
        for (at, write) in writes {
            let named = format!("<Key>{}</Key>", self.keys[at].name);
            let came = match &whole {
                Some(Came::Refused) => Came::Refused,
                None if deleted.iter().any(|it| it.contains(&named)) => Came::Done(nothing()),
                _ => Came::Doubt,
            };
            is_fine &= self.noted(shared, (at, write), &came);
        }
        is_fine
    }

    /// Copies an object onto itself with other metadata: its bytes stay, and all else is written anew.
    pub(crate) fn touch(&mut self, at: usize, shared: &Shared) -> bool {
        if !self.keys[at].is_known() {
            return false;
        }
        let path = self.path(at);
        let stamp = self.rng.next_u64().to_string();
        let source: String = url(&path);
        let put = self.gateway().put(&path, "").header("x-amz-copy-source", &source);
        let put =
            put.header("x-amz-metadata-directive", "REPLACE").header("x-amz-meta-stamp", &stamp);
        let sent = put.try_send(PATIENCE);
        let is_there = self.keys[at].state.is_there();
        match &sent {
            Ok(answer) if answer.status == 404 && !is_there => return true,
            Ok(answer) if answer.is(200) && !answer.text().contains("<Error>") && !is_there => {
                shared.wrong(format!("copy of {path}, which is not there, was done"));
            }
            _ => {}
        }
        let came = Self::came(shared, &format!("copy of {path}"), sent);
        self.keys[at].copied(match &came {
            Came::Done(answer) => Some(answer.tag("ETag").replace("&quot;", "\"")),
            Came::Refused => return false,
            Came::Doubt => None,
        });
        count(if matches!(came, Came::Done(_)) { &shared.copies } else { &shared.doubts });
        matches!(came, Came::Done(_))
    }
}

/// The answer about a key among several.
const fn nothing() -> Answer {
    Answer { status: 204, headers: Vec::new(), body: Vec::new() }
}

/// A path as `x-amz-copy-source` has it.
fn url(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    path.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
