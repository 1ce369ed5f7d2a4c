//! Keys and ranges of keys.

use millpond_types::limits::STORE_KEY_BYTES_MAX;

use crate::StoreError;

/// First byte of the keys that the store keeps for itself.
pub(crate) const RESERVED: u8 = 0xff;

/// A half-open range of keys, `start..end`, in byte order. An empty one has `start >= end`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyRange {
    /// First key of the range.
    pub start: Vec<u8>,
    /// First key after the range.
    pub end: Vec<u8>,
}

impl KeyRange {
    /// The keys from `start` up to but excluding `end`.
    pub fn new(start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self { start: start.into(), end: end.into() }
    }

    /// The keys that start with `prefix`.
    ///
    /// ```
    /// use millpond_store::KeyRange;
    /// assert_eq!(KeyRange::prefix(b"a/"), KeyRange::new(*b"a/", *b"a0"));
    /// ```
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let kept = prefix.iter().rposition(|byte| *byte != u8::MAX).map_or(0, |last| last + 1);
        let mut end = prefix[..kept].to_vec();
        match end.last_mut() {
            Some(last) => *last += 1,
            None => return Self::new(prefix, vec![RESERVED]),
        }
        Self::new(prefix, end)
    }

    /// Every key a user of the store can have.
    #[must_use]
    pub fn all() -> Self {
        Self::new(vec![], vec![RESERVED])
    }

    /// The range of one key.
    #[must_use]
    pub fn one(key: &[u8]) -> Self {
        Self::new(key, after(key))
    }

    /// True when no key can be in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// True when `key` is in it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && key < self.end.as_slice()
    }

    /// Refuses a range that reaches into the store's own keys.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let longest = self.start.len().max(self.end.len());
        if longest > STORE_KEY_BYTES_MAX + 1 {
            return Err(too_long(longest));
        }
        let open = self.is_empty() || self.end.as_slice() <= [RESERVED].as_slice();
        if open { Ok(()) } else { Err(StoreError::BadKey) }
    }
}

/// The first key after `key`.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    let mut after = Vec::with_capacity(key.len() + 1);
    after.extend_from_slice(key);
    after.push(0);
    after
}

/// Refuses a key that no user of the store may have.
pub(crate) fn check(key: &[u8]) -> Result<(), StoreError> {
    match key.first() {
        None | Some(&RESERVED) => Err(StoreError::BadKey),
        Some(_) if key.len() > STORE_KEY_BYTES_MAX => Err(too_long(key.len())),
        Some(_) => Ok(()),
    }
}

fn too_long(actual: usize) -> StoreError {
    StoreError::TooLarge { what: "bytes of a key", bound: STORE_KEY_BYTES_MAX, actual }
}

#[cfg(test)]
mod tests {
    use super::{KeyRange, check};

    #[test]
    fn a_prefix_covers_what_starts_with_it_and_nothing_else() {
        let range = KeyRange::prefix(&[1, 0xff, 0xff]);
        assert!(range.contains(&[1, 0xff, 0xff]));
        assert!(range.contains(&[1, 0xff, 0xff, 9]));
        assert!(!range.contains(&[2]));
        assert!(!range.contains(&[1, 0xff]));
        assert_eq!(KeyRange::prefix(b""), KeyRange::all());
    }

    #[test]
    fn the_stores_own_keys_are_out_of_reach() {
        assert!(check(b"").is_err());
        assert!(check(&[0xff, 1]).is_err());
        assert!(check(&vec![1; 2049]).is_err());
        assert!(check(&[0xfe, 0xff]).is_ok());
        assert!(KeyRange::all().check().is_ok());
        assert!(KeyRange::new([1], [0xff, 0]).check().is_err());
    }
}
