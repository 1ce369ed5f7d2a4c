//! The rounds of MD5 (RFC 1321), over one word or over a word of each of several bodies at once.
//!
//! One body's blocks depend on each other, so a processor waits for itself; blocks of different
//! bodies do not. This technique, which Go's `md5-simd` and Intel's ISA-L call a multi-buffer hash,
//! is written here once, for numbers and for vectors of them.

#![expect(
    clippy::inline_always,
    reason = "vector instructions are on in what is inlined into dispatch!"
)]

use std::num::Wrapping;
use std::ops::{Add, BitAnd, BitOr, BitXor, Not};

use fearless_simd::{Level, Simd, SimdBase as _, dispatch, u32x16};

/// Bytes that are hashed at once.
pub const BLOCK: usize = 64;
/// Bodies that are hashed side by side.
pub const LANES: usize = 16;
/// The initial state of every body.
pub(crate) const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
/// The whole part of 2^32 times the sine of 1 to 64.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// The operations of the rounds.
trait Word:
    Copy
    + Add<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
{
    /// Rotates the bits to the left.
    fn turned(self, by: u32) -> Self;
}

impl Word for Wrapping<u32> {
    #[inline(always)]
    fn turned(self, by: u32) -> Self {
        Self(self.0.rotate_left(by))
    }
}

impl<S: Simd> Word for u32x16<S> {
    #[inline(always)]
    fn turned(self, by: u32) -> Self {
        (self << by) | (self >> (32 - by))
    }
}

/// One block: its sixteen words, and how a constant becomes a word.
#[inline(always)]
fn block<W: Word>(state: [W; 4], word: impl Fn(usize) -> W, constant: impl Fn(u32) -> W) -> [W; 4] {
    let [mut a, mut b, mut c, mut d] = state;
    macro_rules! round {
        ($round:literal, $mix:expr, $place:expr) => {
            round!($round, $mix, $place, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
        };
        ($round:literal, $mix:expr, $place:expr, $($step:literal)*) => {$(
            let mix: fn(W, W, W) -> W = $mix;
            let place: fn(usize) -> usize = $place;
            let sum = a + mix(b, c, d) + constant(SINES[$round * 16 + $step]) + word(place($step) % 16);
            (a, d, c, b) = (d, c, b, b + sum.turned(SHIFTS[$round][$step % 4]));
        )*};
    }
    round!(0, |b, c, d| d ^ (b & (c ^ d)), |step| step);
    round!(1, |b, c, d| c ^ (d & (b ^ c)), |step| 5 * step + 1);
    round!(2, |b, c, d| b ^ c ^ d, |step| 3 * step + 5);
    round!(3, |b, c, d| c ^ (b | !d), |step| 7 * step);
    [state[0] + a, state[1] + b, state[2] + c, state[3] + d]
}

#[inline(always)]
fn words(bytes: &[u8; BLOCK]) -> [u32; 16] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|at| u32::from_le_bytes(words[at]))
}

/// Hashes the blocks of one body.
pub(crate) fn alone(state: &mut [u32; 4], blocks: &[[u8; BLOCK]]) {
    let mut now = state.map(Wrapping);
    for bytes in blocks {
        let words = words(bytes);
        now = block(now, |at| Wrapping(words[at]), Wrapping);
    }
    *state = now.map(|word| word.0);
}

/// Hashes as many blocks of every body; all have the same number.
pub(crate) fn beside(
    level: Level,
    states: &mut [[u32; 4]; LANES],
    bodies: &[&[[u8; BLOCK]]; LANES],
) {
    dispatch!(level, simd => lanes(simd, states, bodies));
}

#[inline(always)]
fn lanes<S: Simd>(simd: S, states: &mut [[u32; 4]; LANES], bodies: &[&[[u8; BLOCK]]; LANES]) {
    let mut now: [u32x16<S>; 4] = std::array::from_fn(|word| {
        let of_all: [u32; LANES] = std::array::from_fn(|lane| states[lane][word]);
        u32x16::from_slice(simd, &of_all)
    });
    let count = bodies.iter().map(|body| body.len()).min().unwrap_or(0);
    for at in 0..count {
        let mut turned = [[0_u32; LANES]; 16];
        for (lane, body) in bodies.iter().enumerate() {
            for (word, row) in words(&body[at]).into_iter().zip(&mut turned) {
                row[lane] = word;
            }
        }
        let word = |at: usize| u32x16::from_slice(simd, &turned[at]);
        now = block(now, word, |constant| u32x16::splat(simd, constant));
    }
    for (word, of_all) in now.into_iter().enumerate() {
        let mut out = [0; LANES];
        of_all.store_slice(&mut out);
        for (state, value) in states.iter_mut().zip(out) {
            state[word] = value;
        }
    }
}
