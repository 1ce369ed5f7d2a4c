//! Whether a backend has the bytes that were sent, by the `ETag` of what went there in parts: over plain HTTP nothing else would tell
//! of a byte that was damaged on its way. What goes in one request has its MD5 with it.
//!
//! The `ETag` of what came in parts is made of the MD5s of these, and is the same wherever it goes in the same parts; but not with
//! backends that encrypt with keys of their users, among others. So a backend is believed to be one of these when a second attempt
//! is no better, or, if it once was right, a tenth.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Attempts that are not believed, with a backend of which nothing is known, and with one that was right before.
const DOUBTED: [u32; 2] = [1, 9];
/// Keys that are remembered at most.
const KEYS_MAX: usize = 1_024;

#[derive(Debug, Default)]
struct Known {
    /// Whether the backend makes such `ETag`s.
    makes_them: Option<bool>,
    /// How often it had another one for a key, in turn.
    odd: HashMap<String, u32>,
}

/// What is known of a backend's `ETag`s.
#[derive(Debug, Default)]
pub(crate) struct Etags(Mutex<Known>);

impl Etags {
    /// Whether a backend that tells this `ETag` has what was sent, or nobody can know.
    pub(crate) fn is_sent(&self, key: &str, (wanted, told): (&str, &str)) -> bool {
        let mut known = self.0.lock();
        if wanted == told {
            known.makes_them = Some(true);
            known.odd.remove(key);
            return true;
        }
        let doubted = match known.makes_them {
            Some(false) => return true,
            Some(true) => DOUBTED[1],
            None => DOUBTED[0],
        };
        if known.odd.len() >= KEYS_MAX {
            known.odd.clear();
        }
        let times = known.odd.entry(key.to_owned()).or_default();
        *times += 1;
        if *times <= doubted {
            return false;
        }
        known.odd.remove(key);
        known.makes_them = Some(false);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_part_is_sent_again_and_other_etags_are_believed_once_they_stay() {
        let etags = Etags::default();
        assert!(!etags.is_sent("k", ("a-2", "b-2")));
        assert!(etags.is_sent("k", ("a-2", "a-2")));
        // It was right before: ten in turn are needed.
        assert!((0..9).all(|_| !etags.is_sent("k", ("a-2", "b-2"))));
        assert!(etags.is_sent("k", ("a-2", "b-2")));
        assert!(etags.is_sent("other", ("a-2", "b-2")), "it is known by now");
        assert!(etags.is_sent("other", ("a-2", "a-2")));
        assert!(!etags.is_sent("other", ("a-2", "b-2")));
        // One that never is right costs one attempt.
        let etags = Etags::default();
        assert!(!etags.is_sent("k", ("a-2", "b")) && etags.is_sent("k", ("a-2", "c")));
        assert!(etags.is_sent("x", ("a-2", "b")));
    }
}
