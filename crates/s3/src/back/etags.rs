//! Checks by the `ETag` of a multipart object whether the backend has the bytes that were sent.
//! Over plain HTTP nothing else detects a damaged byte. An object sent in one request has its MD5
//! with it.
//!
//! The `ETag` of a multipart object is made of the MD5s of its parts, and is the same everywhere
//! for the same parts, except at backends that encrypt with keys of their users, among others. So a
//! backend is taken for such an exception when a second attempt does not match either; if its
//! `ETag` matched before, when a tenth attempt does not.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Mismatches that cause another attempt: at a backend without history, and at one that matched
/// before.
const DOUBTED: [u32; 2] = [1, 9];
/// Keys remembered at most.
const KEYS_MAX: usize = 1_024;

#[derive(Debug, Default)]
struct Known {
    /// Whether the `ETag`s of the backend are made of MD5s.
    makes_them: Option<bool>,
    /// Consecutive mismatches by key.
    odd: HashMap<String, u32>,
}

/// The knowledge about the `ETag`s of a backend.
#[derive(Debug, Default)]
pub(crate) struct Etags(Mutex<Known>);

impl Etags {
    /// Whether the backend has the sent bytes according to this `ETag`, or its `ETag`s cannot tell.
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
        // It matched before, so ten consecutive mismatches are needed.
        assert!((0..9).all(|_| !etags.is_sent("k", ("a-2", "b-2"))));
        assert!(etags.is_sent("k", ("a-2", "b-2")));
        assert!(etags.is_sent("other", ("a-2", "b-2")), "it is known by now");
        assert!(etags.is_sent("other", ("a-2", "a-2")));
        assert!(!etags.is_sent("other", ("a-2", "b-2")));
        // A backend that never matches costs one attempt.
        let etags = Etags::default();
        assert!(!etags.is_sent("k", ("a-2", "b")) && etags.is_sent("k", ("a-2", "c")));
        assert!(etags.is_sent("x", ("a-2", "b")));
    }
}
