//! Credentials: a file of tokens, each with the namespaces it may use.
//!
//! A line may name patterns of namespaces, and `+files` for the verbs of files. A token with
//! neither may do everything, any other token only the named things. No namespace's name has a `+`.
//!
//! The file is read again when it changes. A connection keeps the scope it was admitted with, and
//! is closed when its token is gone from the file or has another scope.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use millpond_types::Crc32c;
use millpond_types::limits::TOKEN_BYTES_MAX;
use parking_lot::{Mutex, RwLock};

/// The word that allows the verbs of files.
const FILES: &str = "+files";

/// Rights of a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Scope {
    /// The credential itself, to find it again in a changed file.
    token: Arc<[u8]>,
    /// Contents of its line: name patterns, and perhaps [`FILES`]; empty for everything.
    patterns: Vec<String>,
    /// Whether requests reserved for nodes of the cluster are accepted.
    is_node: bool,
    /// The line it came from, for logs; the token itself is never logged.
    pub line: usize,
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { patterns, is_node, line, token: _ } = self;
        let mut shown = f.debug_struct("Scope");
        shown.field("patterns", patterns).field("is_node", is_node).field("line", line).finish()
    }
}

impl Scope {
    /// Rights to everything, for a server that requires no credential. Includes those of a node if
    /// nodes have no secret.
    fn open(is_node: bool) -> Self {
        Self { token: Arc::default(), patterns: Vec::new(), is_node, line: 0 }
    }

    /// Rights of a node of the cluster.
    fn node(secret: &Arc<[u8]>) -> Self {
        Self { token: Arc::clone(secret), patterns: Vec::new(), is_node: true, line: 0 }
    }

    /// Whether replica messages, heartbeats and registrations are accepted.
    #[must_use]
    pub fn is_node(&self) -> bool {
        self.is_node
    }

    /// Whether the namespace may be used.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.is_unlimited() || self.patterns.iter().any(|pattern| matches(pattern, name))
    }

    /// Whether bytes of files may be read and written.
    #[must_use]
    pub fn allows_files(&self) -> bool {
        self.is_unlimited() || self.patterns.iter().any(|pattern| pattern == FILES)
    }

    /// Whether both are the same token with the same rights, on any line.
    fn same(&self, other: &Self) -> bool {
        self.token == other.token && self.patterns == other.patterns
    }

    /// Whether every namespace may be used; only then is the buffer pool shared.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.patterns.is_empty()
    }
}

/// Whether `name` matches `pattern`, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Distinguishes versions of the file without reading it.
type Stamp = (SystemTime, u64, u64);

/// The file with the credentials.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// The stamp of the last read or attempt, and the latest stamp seen.
    stamps: Mutex<(Option<Stamp>, Option<Stamp>)>,
}

/// The credentials of the server.
#[derive(Debug, Default)]
pub struct Tokens {
    /// `None`: no credential is required.
    source: Option<Source>,
    entries: RwLock<Arc<[Scope]>>,
    generation: AtomicU64,
    /// Secret of the cluster's nodes; none if they use the credentials of clients.
    node_secret: Option<Arc<[u8]>>,
}

/// The token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error(
        "token file {path}: {source}: check the path (security.token_file) and its permissions"
    )]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A line cannot be used.
    #[error("token file {path} line {line}: {fix}")]
    Line {
        /// The file.
        path: String,
        /// Number of the line, from 1.
        line: usize,
        /// The fix.
        fix: &'static str,
    },
}

impl Tokens {
    /// Reads a token file: lines of a token and the name patterns it may use; `#` starts a comment.
    ///
    /// # Errors
    /// [`TokenError`] naming file, line and fix.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        // Before the text, so that a change in between leads to another read.
        let read = stamp(path).ok();
        let entries = read_file(path)?;
        let source = Source { path: path.to_owned(), stamps: Mutex::new((read, read)) };
        Ok(Self {
            source: Some(source),
            entries: RwLock::new(entries.into()),
            generation: AtomicU64::new(0),
            node_secret: None,
        })
    }

    /// Adds a secret of the nodes.
    #[must_use]
    pub fn with_node_secret(self, secret: Option<Vec<u8>>) -> Self {
        Self { node_secret: secret.map(Into::into), ..self }
    }

    /// Whether the file has changed, but not since the last look: a file that is still being
    /// written would have too few tokens, and their connections would be closed.
    #[must_use]
    pub fn changed(&self) -> bool {
        let Some(source) = &self.source else { return false };
        let now = stamp(&source.path).ok();
        let mut stamps = source.stamps.lock();
        let settled = stamps.1 == now;
        stamps.1 = now;
        settled && stamps.0 != now
    }

    /// Reads the file again; `None` without a file, else the number of tokens. After an error the
    /// old tokens stay.
    ///
    /// # Errors
    /// Those of [`Tokens::from_file`].
    pub fn reload(&self) -> Result<Option<usize>, TokenError> {
        let Some(source) = &self.source else { return Ok(None) };
        let now = stamp(&source.path).ok();
        *source.stamps.lock() = (now, now);
        let entries: Arc<[Scope]> = read_file(&source.path)?.into();
        let count = entries.len();
        let mut held = self.entries.write();
        let same = held.len() == count && held.iter().zip(&*entries).all(|(a, b)| a.same(b));
        if !same {
            *held = entries;
            self.generation.fetch_add(1, Ordering::Release);
        }
        Ok(Some(count))
    }

    /// Grows whenever tokens change: connections must then be checked again.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether a connection admitted with `scope` would be admitted with it today.
    pub(super) fn still_allows(&self, scope: &Scope) -> bool {
        self.check(&scope.token).is_some_and(|now| now.same(scope))
    }

    #[cfg(test)]
    fn from_text(text: &str, path: &str) -> Result<Self, TokenError> {
        let source = Source { path: path.into(), stamps: Mutex::default() };
        let entries = RwLock::new(parse(text, path)?.into());
        Ok(Self { source: Some(source), entries, ..Self::default() })
    }

    /// Whether a credential is required.
    #[must_use]
    pub const fn required(&self) -> bool {
        self.source.is_some()
    }

    /// Scope of `token`; `None` for an unknown one. Takes the same time for every token.
    #[must_use]
    pub fn check(&self, token: &[u8]) -> Option<Rc<Scope>> {
        let secret = self.node_secret.as_ref();
        if let Some(secret) = secret.filter(|secret| equal_in_constant_time(secret, token)) {
            return Some(Rc::new(Scope::node(secret)));
        }
        if !self.required() {
            return Some(Rc::new(Scope::open(secret.is_none())));
        }
        let entries = Arc::clone(&self.entries.read());
        let mut found = None;
        for scope in &*entries {
            if equal_in_constant_time(&scope.token, token) {
                found = Some(scope);
            }
        }
        found.map(|scope| Rc::new(scope.clone()))
    }
}

fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let facts = std::fs::metadata(path)?;
    Ok((facts.modified()?, facts.len(), facts.ino()))
}

fn read_file(path: &Path) -> Result<Vec<Scope>, TokenError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|source| TokenError::Read { path: name.clone(), source })?;
    parse(&text, &name)
}

fn parse(text: &str, path: &str) -> Result<Vec<Scope>, TokenError> {
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bad = |fix| TokenError::Line { path: path.to_owned(), line: index + 1, fix };
        let mut words = line.split_whitespace();
        let Some(token) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        if token.len() < 8 {
            return Err(bad("a token must have at least 8 characters"));
        }
        if token.len() > TOKEN_BYTES_MAX {
            return Err(bad("a token must have at most 4096 characters"));
        }
        let patterns = words.take_while(|word| !word.starts_with('#')).map(str::to_owned).collect();
        let token = token.as_bytes().into();
        entries.push(Scope { token, patterns, is_node: false, line: index + 1 });
    }
    if entries.is_empty() {
        return Err(TokenError::Line {
            path: path.to_owned(),
            line: 1,
            fix: "the file has no token, so no client could connect; write one token per line",
        });
    }
    Ok(entries)
}

/// Compares in a time that does not depend on the number of equal bytes. The length is no secret.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        // Takes the same time anyway.
        let _ = std::hint::black_box(Crc32c::of(b));
        return false;
    }
    let different = a.iter().zip(b).fold(0u8, |sum, (x, y)| sum | std::hint::black_box(x ^ y));
    std::hint::black_box(different) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_carry_their_namespaces() {
        let text = "# comment\nsecret-one\nsecret-two prod/* test # mine\n\n";
        let tokens = Tokens::from_text(text, "f").unwrap();
        assert!(tokens.check(b"secret-one").unwrap().allows("anything"));
        let two = tokens.check(b"secret-two").unwrap();
        assert!(two.allows("prod/a"));
        assert!(two.allows("test"));
        assert!(!two.allows("tests"));
        assert!(!two.is_unlimited());
        assert!(tokens.check(b"secret-ten").is_none());
        assert!(tokens.check(b"").is_none());
        assert!(Tokens::default().check(b"").unwrap().is_unlimited());
    }

    #[test]
    fn nodes_are_known_by_their_secret_and_by_no_token() {
        let secret = Some(b"the-secret-of-nodes".to_vec());
        let tokens = Tokens::from_text("token-for-all\n", "f").unwrap();
        assert!(!tokens.check(b"token-for-all").unwrap().is_node(), "it is a client's");
        let tokens = tokens.with_node_secret(secret.clone());
        assert!(!tokens.check(b"token-for-all").unwrap().is_node());
        let node = tokens.check(b"the-secret-of-nodes").unwrap();
        assert!(node.is_node() && node.is_unlimited() && tokens.still_allows(&node));
        // Without tokens everybody is a client, and also a node if nodes have no secret.
        let open = Tokens::default().with_node_secret(secret);
        let client = open.check(b"").unwrap();
        assert!(!client.is_node() && client.is_unlimited() && open.still_allows(&client));
        assert!(open.check(b"the-secret-of-nodes").unwrap().is_node());
        assert!(Tokens::default().check(b"").unwrap().is_node());
    }

    #[test]
    fn a_limited_token_uses_files_only_if_its_line_says_so() {
        let text = "token-all\ntoken-kv prod/*\ntoken-both prod/* +files\ntoken-files +files\n";
        let tokens = Tokens::from_text(text, "f").unwrap();
        let may = |token: &[u8]| {
            let scope = tokens.check(token).unwrap();
            (scope.allows_files(), scope.allows("prod/a"), scope.is_unlimited())
        };
        assert_eq!(may(b"token-all"), (true, true, true));
        assert_eq!(may(b"token-kv"), (false, true, false));
        assert_eq!(may(b"token-both"), (true, true, false));
        assert_eq!(may(b"token-files"), (true, false, false));
    }

    #[test]
    fn a_changed_file_is_read_once_it_is_at_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, "first-token\nsecond-token a*\n").unwrap();
        let tokens = Tokens::from_file(&path).unwrap();
        let first = tokens.check(b"first-token").unwrap();
        let second = tokens.check(b"second-token").unwrap();
        assert!(!tokens.changed() && !tokens.changed());
        std::fs::write(&path, "# moved\nsecond-token a*\n").unwrap();
        assert!(!tokens.changed(), "seen for the first time");
        assert!(tokens.changed() && tokens.changed());
        assert!(tokens.still_allows(&first), "not read yet");
        assert_eq!(tokens.reload().unwrap(), Some(1));
        assert!(!tokens.changed());
        assert_eq!(tokens.generation(), 1);
        assert!(!tokens.still_allows(&first) && tokens.check(b"first-token").is_none());
        assert!(tokens.still_allows(&second), "the line does not matter");

        // An invalid file changes nothing, and is not tried again until it changes.
        std::fs::write(&path, "short\n").unwrap();
        assert!(!tokens.changed() && tokens.changed());
        assert!(tokens.reload().unwrap_err().to_string().contains("line 1"));
        assert!(tokens.still_allows(&second) && !tokens.changed());
        std::fs::remove_file(&path).unwrap();
        assert!(!tokens.changed() && tokens.changed());
        assert!(tokens.reload().is_err() && tokens.still_allows(&second));
        std::fs::write(&path, "second-token b*\n").unwrap();
        assert!(!tokens.changed() && tokens.changed());
        assert_eq!(tokens.reload().unwrap(), Some(1));
        assert!(!tokens.still_allows(&second), "it may do something else now");
        assert_eq!((tokens.generation(), Tokens::default().reload().unwrap()), (2, None));
        assert!(!format!("{tokens:?}").contains("second-token"), "tokens are not logged");
    }

    #[test]
    fn bad_lines_are_named() {
        let message = Tokens::from_text("long-enough\nshort", "f").unwrap_err().to_string();
        assert!(message.contains("line 2"), "{message}");
        assert!(Tokens::from_text("# nothing", "f").is_err());
    }

    #[test]
    fn patterns() {
        for (pattern, name, wanted) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("*b", "ab", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXbY", false),
            ("*", "anything", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
