//! Credentials: a file of tokens, each with the namespaces it may use.

use std::path::Path;
use std::rc::Rc;

use millpond_types::Crc32c;
use millpond_types::limits::TOKEN_BYTES_MAX;

/// What a credential may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Name patterns; empty for every namespace.
    patterns: Vec<String>,
    /// The line it came from, for logs; the token itself is never logged.
    pub line: usize,
}

impl Scope {
    /// Everything: the server asks for no credential.
    pub const OPEN: Self = Self { patterns: Vec::new(), line: 0 };

    /// Whether the namespace may be used.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.is_unlimited() || self.patterns.iter().any(|pattern| matches(pattern, name))
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

/// The credentials of the server.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// `None`: no credential is asked for.
    entries: Option<Vec<(Vec<u8>, Scope)>>,
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
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A line cannot be used.
    #[error("token file {path} line {line}: {fix}")]
    Line {
        /// The file.
        path: String,
        /// From one.
        line: usize,
        /// What to write instead.
        fix: &'static str,
    },
}

impl Tokens {
    /// Reads a token file: lines of a token and the name patterns it may use; `#` starts a comment.
    ///
    /// # Errors
    /// [`TokenError`] naming file, line and fix.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenError::Read { path: name.clone(), source })?;
        Self::from_text(&text, &name)
    }

    fn from_text(text: &str, path: &str) -> Result<Self, TokenError> {
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let bad = |fix| TokenError::Line { path: path.to_owned(), line: index + 1, fix };
            let mut words = line.split_whitespace();
            let Some(token) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            if token.len() < 8 {
                return Err(bad("a token has at least 8 characters"));
            }
            if token.len() > TOKEN_BYTES_MAX {
                return Err(bad("a token has at most 4096 characters"));
            }
            let patterns =
                words.take_while(|word| !word.starts_with('#')).map(str::to_owned).collect();
            entries.push((token.as_bytes().to_vec(), Scope { patterns, line: index + 1 }));
        }
        if entries.is_empty() {
            return Err(TokenError::Line {
                path: path.to_owned(),
                line: 1,
                fix: "the file names no token: nobody could connect; write one token a line",
            });
        }
        Ok(Self { entries: Some(entries) })
    }

    /// Whether a credential is asked for.
    #[must_use]
    pub const fn required(&self) -> bool {
        self.entries.is_some()
    }

    /// What `token` may do; `None` for an unknown one. Takes equally long whichever it is.
    #[must_use]
    pub fn check(&self, token: &[u8]) -> Option<Rc<Scope>> {
        let Some(entries) = &self.entries else { return Some(Rc::new(Scope::OPEN)) };
        let mut found = None;
        for (known, scope) in entries {
            if equal_in_constant_time(known, token) {
                found = Some(scope);
            }
        }
        found.map(|scope| Rc::new(scope.clone()))
    }
}

/// Compares without telling by its duration how many bytes agree. The length is no secret.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        // The work is done all the same.
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
