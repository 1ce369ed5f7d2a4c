//! Values that say who wrote them: every page of a value carries its key, the number of its put and
//! its place, so that a reader can tell any mixture, and a page can be recognized on the disk.

use millpond_types::BlockKey;

/// Bytes of a page, as on the disk.
pub(crate) const PAGE: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"MPCHAOS1");
/// Magic, key, number, page and length, checksum.
const HEADER: usize = 40;
/// Lengths of values; most are small, so that many fit.
const LENS: [usize; 8] = [40, 100, 3_000, 4_096, 5_000, 20_000, 70_000, 300_000];

/// Room for the largest value.
pub(crate) const LEN_MAX: usize = 300_000;

/// The name of a key.
pub(crate) fn name(key: u64) -> BlockKey {
    BlockKey::new(format!("key {key}").as_bytes()).unwrap()
}

const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn len_of(number: u64) -> usize {
    let dice = usize::try_from(mix(number) % 64).unwrap();
    // One in 64 is large, the others share the rest.
    if dice == 0 { LEN_MAX } else { LENS[dice % (LENS.len() - 1)] }
}

/// The value that put number `number` writes under `key`.
pub(crate) fn make(key: u64, number: u64) -> Vec<u8> {
    let len = len_of(number);
    let mut value = Vec::with_capacity(len + PAGE);
    for page in 0..len.div_ceil(PAGE) as u64 {
        let check = mix(number ^ mix(key));
        for word in [MAGIC, key, number, page << 32 | len as u64, check] {
            value.extend_from_slice(&word.to_le_bytes());
        }
        let mut state = mix(number ^ (page << 40)) | 1;
        for _ in 0..(PAGE - HEADER) / 8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            value.extend_from_slice(&state.to_le_bytes());
        }
    }
    value.truncate(len);
    value
}

fn word(page: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_le_bytes(page.get(8 * index..)?.first_chunk().copied()?))
}

/// Key and number of the put that a page on a disk belongs to.
pub(crate) fn recognize(page: &[u8]) -> Option<(u64, u64)> {
    (word(page, 0)? == MAGIC).then_some((word(page, 1)?, word(page, 2)?))
}

/// The number of the put that wrote what was read under `key`; what is wrong, when some byte is.
pub(crate) fn verify(key: u64, value: &[u8]) -> Result<u64, String> {
    let Some((of, number)) = recognize(value) else {
        return Err(format!("key {key}: {} bytes that nobody wrote", value.len()));
    };
    if of != key {
        return Err(format!("key {key}: the value of key {of}"));
    }
    let right = make(key, number);
    if value == right {
        return Ok(number);
    }
    let at = right.iter().zip(value).position(|(a, b)| a != b).unwrap_or(value.len());
    let lens = (value.len(), right.len());
    Err(format!("key {key}: put {number} differs at byte {at}; length {} of {}", lens.0, lens.1))
}

#[test]
fn a_wrong_byte_is_seen_wherever_it_is() {
    for number in 0..200 {
        let value = make(7, number);
        assert_eq!(verify(7, &value), Ok(number));
        assert!(verify(8, &value).is_err());
        let mut wrong = value.clone();
        let at = usize::try_from(mix(number) >> 20).unwrap() % wrong.len();
        wrong[at] ^= 1;
        assert!(verify(7, &wrong).is_err(), "byte {at} of {}", wrong.len());
        wrong[at] ^= 1;
        wrong.pop();
        assert!(verify(7, &wrong).is_err());
    }
}
