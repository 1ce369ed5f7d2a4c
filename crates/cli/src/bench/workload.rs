//! What a benchmark asks for: sizes, keys, their popularity, and values that can be checked.

use std::str::FromStr;

use millpond_types::limits::CHUNK_BYTES_MAX;
use millpond_types::{BlockKey, ByteSize};

/// `splitmix64`, a bijection with good avalanche (Steele, Lea, Flood: Fast splittable
/// pseudorandom number generators, 2014).
pub(super) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A small generator for one worker: the same seed makes the same requests.
#[derive(Clone, Debug)]
pub(super) struct Dice {
    state: u64,
}

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        mix(self.state)
    }

    /// Uniform in `[0, 1)`.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub(super) const fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`.
    pub(super) const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }
}

/// Sizes of values: one, or several with weights.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SizeMix {
    /// Size in bytes and the share of keys up to and including it.
    parts: Vec<(u32, f64)>,
}

impl SizeMix {
    /// The size of the value of key `index`; always the same for the same key.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub(super) fn of(&self, index: u64) -> u32 {
        let at = (mix(index ^ 0x51ce) >> 11) as f64 / (1u64 << 53) as f64;
        self.parts.iter().find(|(_, up_to)| at < *up_to).unwrap_or(&self.parts[0]).0
    }

    /// The largest size in bytes.
    pub(super) fn max(&self) -> u32 {
        self.parts.iter().map(|(size, _)| *size).max().unwrap_or(0)
    }

    /// The average size in bytes.
    pub(super) fn mean(&self) -> f64 {
        let mut before = 0.0;
        self.parts.iter().fold(0.0, |sum, (size, up_to)| {
            let share = up_to - before;
            before = *up_to;
            sum + f64::from(*size) * share
        })
    }
}

impl std::fmt::Display for SizeMix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut before = 0.0;
        for (i, (size, up_to)) in self.parts.iter().enumerate() {
            let size = ByteSize(u64::from(*size));
            if self.parts.len() == 1 {
                write!(f, "{size}")?;
            } else {
                let comma = if i == 0 { "" } else { ", " };
                write!(f, "{comma}{size} ({:.0} %)", (up_to - before) * 100.0)?;
            }
            before = *up_to;
        }
        Ok(())
    }
}

impl FromStr for SizeMix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut total = 0.0;
        for part in text.split(',') {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            let size: ByteSize =
                size.parse().map_err(|e: millpond_types::units::UnitError| e.to_string())?;
            let size = u32::try_from(size.0).unwrap_or(u32::MAX);
            if size == 0 || size as usize > CHUNK_BYTES_MAX {
                return Err(format!("'{part}': use a size of 1 B to 64 MiB"));
            }
            let weight: f64 = weight.trim().parse().map_err(|_| {
                format!("'{part}': write SIZE or SIZE:WEIGHT,SIZE:WEIGHT, such as 4KiB:70,1MiB:30")
            })?;
            if !weight.is_finite() || weight <= 0.0 {
                return Err(format!("'{part}': use a weight above 0"));
            }
            total += weight;
            parts.push((size, total));
        }
        for part in &mut parts {
            part.1 /= total;
        }
        Ok(Self { parts })
    }
}

/// Picks among `n` ranks, rank 0 the most popular: uniform, or Zipf with exponent theta, by
/// rejection-inversion (Hörmann, Derflinger: Rejection-inversion to generate variates from
/// monotone discrete distributions, 1996), which needs no table and takes any theta.
#[derive(Clone, Debug)]
pub(super) struct Popularity {
    n: u64,
    theta: f64,
    h_first: f64,
    h_last: f64,
    squeeze: f64,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ranks are counts of keys, far below 2^53, and clamped to 1..=n"
)]
impl Popularity {
    pub(super) fn new(n: u64, theta: f64) -> Self {
        let mut new = Self { n, theta, h_first: 0.0, h_last: 0.0, squeeze: 0.0 };
        if theta > 0.0 {
            new.h_first = new.integral(1.5) - 1.0;
            new.h_last = new.integral(n as f64 + 0.5);
            new.squeeze = 2.0 - new.inverse(new.integral(2.5) - (-(2f64.ln()) * theta).exp());
        }
        new
    }

    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.theta) * log;
        let expm1_by_t = if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 };
        expm1_by_t * log
    }

    fn inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.theta)).max(-1.0);
        let log1p_by_t = if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 };
        (log1p_by_t * x).exp()
    }

    /// A key's index. Popular ranks are spread over the indexes, so that hot keys are not
    /// neighbours.
    pub(super) fn pick(&self, dice: &mut Dice) -> u64 {
        if self.theta <= 0.0 {
            return dice.below(self.n);
        }
        mix(self.rank(dice)) % self.n
    }

    fn rank(&self, dice: &mut Dice) -> u64 {
        loop {
            let u = self.h_last + dice.unit() * (self.h_first - self.h_last);
            let x = self.inverse(u);
            let k = ((x + 0.5) as u64).clamp(1, self.n);
            let near = k as f64 - x <= self.squeeze;
            if near || u >= self.integral(k as f64 + 0.5) - (-(k as f64).ln() * self.theta).exp() {
                return k - 1;
            }
        }
    }
}

/// The key of index `index` with a value of `len` bytes: text, so that `millpond kv ls` can show
/// it. The length keeps runs with --keep and another --size apart.
pub(super) fn key(index: u64, len: u32) -> BlockKey {
    BlockKey::new(format!("bench-{len:08x}-{index:016x}").as_bytes()).expect("31 bytes are a key")
}

/// Values derived from their key without any work per value: each is a window of one sea of
/// random bytes, at a place that the key decides. A value of another key differs from its
/// first byte on.
#[derive(Debug)]
pub(super) struct Values {
    sea: Vec<u8>,
}

/// Places at which a value can start.
const PLACES: u64 = 16_384;
/// Distance of the places in bytes: one cache line.
const STEP: usize = 64;
/// Bytes compared at both ends of a value when only a sample is checked.
const SAMPLE: usize = 64;

impl Values {
    pub(super) fn new(size_max: u32) -> Self {
        let bytes = size_max as usize + usize::try_from(PLACES).unwrap_or(0) * STEP;
        let sea = (0..bytes.div_ceil(8) as u64).flat_map(|i| mix(i).to_le_bytes()).collect();
        Self { sea }
    }

    /// The value of key `index`.
    pub(super) fn value(&self, index: u64, len: u32) -> &[u8] {
        let at = usize::try_from(mix(index ^ 0x5ea) % PLACES).unwrap_or(0) * STEP;
        &self.sea[at..at + len as usize]
    }

    /// Whether `bytes` are the value of key `index`: all of them, or both ends.
    pub(super) fn check(&self, index: u64, bytes: &[u8], whole: bool) -> bool {
        let Ok(len) = u32::try_from(bytes.len()) else { return false };
        let expected = self.value(index, len);
        if whole || bytes.len() <= 2 * SAMPLE {
            return bytes == expected;
        }
        let tail = bytes.len() - SAMPLE;
        bytes[..SAMPLE] == expected[..SAMPLE] && bytes[tail..] == expected[tail..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_and_without_weights() {
        let one: SizeMix = "64KiB".parse().unwrap();
        assert_eq!((one.of(7), one.max(), one.to_string().as_str()), (65536, 65536, "64 KiB"));
        let two: SizeMix = "4KiB:75,1MiB:25".parse().unwrap();
        assert_eq!(two.to_string(), "4 KiB (75 %), 1 MiB (25 %)");
        let large = (0..10_000).filter(|i| two.of(*i) == 1 << 20).count();
        assert!((2200..2800).contains(&large), "{large}");
        assert!((two.mean() - 265_216.0).abs() < 1.0);
        for bad in ["", "0", "65MiB", "4KiB:x", "4KiB:0", "4KiB:-1", "4KiB:inf"] {
            assert!(bad.parse::<SizeMix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn values_are_checked_by_key() {
        let values = Values::new(4096);
        let value = values.value(3, 4096).to_vec();
        assert!(values.check(3, &value, true));
        assert!(!values.check(4, &value, false));
        let mut bad = value.clone();
        bad[2000] ^= 1;
        assert!(!values.check(3, &bad, true));
        bad = value;
        bad[4095] ^= 1;
        assert!(!values.check(3, &bad, false));
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    fn zipf_has_the_shares_it_should() {
        for theta in [0.5, 0.99, 1.0, 1.4] {
            let popularity = Popularity::new(1000, theta);
            let mut dice = Dice::new(1);
            let mut seen = vec![0u32; 1000];
            for _ in 0..200_000 {
                seen[usize::try_from(popularity.rank(&mut dice)).unwrap()] += 1;
            }
            let total: f64 = (1..=1000).map(|k| f64::from(k).powf(-theta)).sum();
            for rank in [0usize, 1, 9, 99] {
                let expected = 200_000.0 * (rank as f64 + 1.0).powf(-theta) / total;
                let off = (f64::from(seen[rank]) - expected).abs();
                assert!(off < 5.0 * expected.sqrt() + 1.0, "theta {theta} rank {rank}: {off}");
            }
        }
        let mut dice = Dice::new(2);
        assert!((0..1000).all(|_| Popularity::new(10, 0.0).pick(&mut dice) < 10));
    }
}
