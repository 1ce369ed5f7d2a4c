//! Hashes of a body, computed once while it streams: MD5 for the `ETag`, and the requested
//! checksum.

use crc_fast::{CrcAlgorithm, Digest as Crc};
use millpond_md5::Md5;
use s3s::crypto::{Checksum as _, Sha1, Sha256};
use s3s::{S3Error, S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::error::{custom, refuse};

/// The algorithms of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 5] =
        [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// The name in S3.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// Its header, in requests, responses and trailers.
    pub(crate) const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// The algorithm with this name.
    ///
    /// # Errors
    /// `InvalidRequest` for another.
    pub(crate) fn named(name: &str) -> S3Result<Self> {
        let found =
            Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            refuse(
                S3ErrorCode::InvalidRequest,
                "Checksum algorithm provided is unsupported. Please try again with any of the valid types: \
                 [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
            )
        })
    }

    const fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    /// Length of a checksum in bytes.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Whether the checksum of an object can be computed from those of its parts.
    pub(crate) const fn combines(self) -> bool {
        self.crc().is_some()
    }
}

/// A checksum in the form for clients and storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) algorithm: Algorithm,
    /// In base64; checksums of parts end with a dash and the number of parts.
    pub(crate) value: String,
    /// Whether it is a checksum of the parts' checksums instead of the content.
    #[serde(default)]
    pub(crate) composite: bool,
}

impl Sum {
    /// A checksum of the content.
    pub(crate) fn whole(algorithm: Algorithm, bytes: &[u8]) -> Self {
        Self { algorithm, value: base64(bytes), composite: false }
    }

    /// Whether it is well-formed; it may come from an untrusted source.
    pub(crate) fn is_one(&self) -> bool {
        let digest = if self.composite {
            let counted = self.value.split_once('-').filter(|pair| pair.1.parse::<u16>().is_ok());
            counted.map(|pair| pair.0)
        } else {
            Some(self.value.as_str())
        };
        digest.and_then(unbase64).is_some_and(|bytes| bytes.len() == self.algorithm.len())
    }
}

enum Running {
    Crc(Crc),
    Sha1(Sha1),
    Sha256(Sha256),
}

/// Hashes in progress.
pub(crate) struct Hasher {
    md5: Option<Md5>,
    sum: Option<(Algorithm, Running)>,
}

/// The computed hashes.
#[derive(Clone, Debug)]
pub(crate) struct Digest {
    pub(crate) md5: [u8; 16],
    pub(crate) sum: Option<Sum>,
}

impl Hasher {
    /// MD5 and this checksum.
    pub(crate) fn new(algorithm: Option<Algorithm>) -> Self {
        Self {
            md5: Some(Md5::new()),
            sum: algorithm.map(|algorithm| (algorithm, running(algorithm))),
        }
    }

    /// The checksum alone.
    pub(crate) fn of_sum(algorithm: Algorithm) -> Self {
        Self { md5: None, sum: Some((algorithm, running(algorithm))) }
    }

    /// No hashes: they are known.
    pub(crate) const fn none() -> Self {
        Self { md5: None, sum: None }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        self.update_sum(bytes);
    }

    /// Whether the checksum of a small body is too cheap to be worth another thread.
    pub(crate) const fn is_cheap(&self) -> bool {
        matches!(self.sum, None | Some((_, Running::Crc(_))))
    }

    /// Takes MD5 out, to hash it elsewhere in the meantime.
    pub(crate) const fn take_md5(&mut self) -> Option<Md5> {
        self.md5.take()
    }

    /// Puts MD5 back.
    pub(crate) const fn put_md5(&mut self, md5: Md5) {
        self.md5 = Some(md5);
    }

    /// Adds bytes to the checksum only.
    pub(crate) fn update_sum(&mut self, bytes: &[u8]) {
        match &mut self.sum {
            Some((_, Running::Crc(crc))) => crc.update(bytes),
            Some((_, Running::Sha1(sha))) => sha.update(bytes),
            Some((_, Running::Sha256(sha))) => sha.update(bytes),
            None => {}
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let md5 = self.md5.map_or([0; 16], Md5::finish);
        let sum = self.sum.map(|(algorithm, running)| match running {
            Running::Crc(crc) => Sum::whole(algorithm, &crc_bytes(algorithm, crc.finalize())),
            Running::Sha1(sha) => Sum::whole(algorithm, sha.finalize().as_ref()),
            Running::Sha256(sha) => Sum::whole(algorithm, sha.finalize().as_ref()),
        });
        Digest { md5, sum }
    }
}

fn running(algorithm: Algorithm) -> Running {
    match (algorithm.crc(), algorithm) {
        (Some(crc), _) => Running::Crc(Crc::new(crc)),
        (None, Algorithm::Sha1) => Running::Sha1(Sha1::new()),
        (None, _) => Running::Sha256(Sha256::new()),
    }
}

fn crc_bytes(algorithm: Algorithm, value: u64) -> Vec<u8> {
    value.to_be_bytes()[8 - algorithm.len()..].to_vec()
}

fn crc_value(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The checksum of a whole from the checksums and lengths of its parts; none if the algorithm does
/// not allow it.
pub(crate) fn combined(algorithm: Algorithm, parts: &[(Vec<u8>, u64)]) -> Option<Sum> {
    let crc = algorithm.crc()?;
    let (first, rest) = parts.split_first()?;
    let join = |whole, (sum, len): &(Vec<u8>, u64)| {
        crc_fast::checksum_combine(crc, whole, crc_value(sum), *len)
    };
    let value = rest.iter().fold(crc_value(&first.0), join);
    Some(Sum::whole(algorithm, &crc_bytes(algorithm, value)))
}

/// The checksum of the checksums of the parts, in order.
pub(crate) fn composite(algorithm: Algorithm, parts: &[(Vec<u8>, u64)]) -> Sum {
    let mut hasher = Hasher::new(Some(algorithm));
    for (sum, _) in parts {
        hasher.update(sum);
    }
    let value = hasher.finish().sum.map(|sum| sum.value).unwrap_or_default();
    Sum { algorithm, value: format!("{value}-{}", parts.len()), composite: true }
}

/// The MD5 of bytes.
pub(crate) fn md5(bytes: &[u8]) -> [u8; 16] {
    let mut hasher = Hasher::new(None);
    hasher.update(bytes);
    hasher.finish().md5
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(pair).collect()
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - three.len()));
        for place in 0..4 {
            let sign = BASE64[(word >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= three.len() { char::from(sign) } else { '=' });
        }
    }
    text
}

pub(crate) fn unbase64(text: &str) -> Option<Vec<u8>> {
    let signs = text.as_bytes();
    if signs.is_empty() || !signs.len().is_multiple_of(4) {
        return None;
    }
    let body = text.trim_end_matches('=');
    if signs.len() - body.len() > 2 {
        return None;
    }
    let (mut word, mut bits, mut bytes) = (0_u32, 0, Vec::new());
    for sign in body.bytes() {
        let value = BASE64.iter().position(|letter| *letter == sign)?;
        word = word << 6 | u32::try_from(value).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits & 0xff) as u8);
        }
    }
    Some(bytes)
}

/// The hashes that a client announced for its body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    md5: Option<Vec<u8>>,
    sum: Option<(Algorithm, String)>,
}

impl Expected {
    /// Reads them from header values.
    ///
    /// # Errors
    /// `InvalidDigest` and `InvalidRequest` for invalid values.
    pub(crate) fn new(md5: Option<&str>, sums: &[(Algorithm, Option<&String>)]) -> S3Result<Self> {
        let digest = |text: &str| unbase64(text).filter(|bytes| bytes.len() == 16);
        let md5 = match md5 {
            Some(text) => Some(digest(text).ok_or(S3ErrorCode::InvalidDigest)?),
            None => None,
        };
        let mut given =
            sums.iter().filter_map(|(algorithm, text)| Some((*algorithm, text.as_ref()?)));
        let sum = given.next();
        if given.next().is_some() {
            return Err(several_sums());
        }
        let mut expected = Self { md5, sum: None };
        if let Some((algorithm, text)) = sum {
            expected.add(algorithm, text)?;
        }
        Ok(expected)
    }

    /// Adds a checksum from a header or a trailer.
    ///
    /// # Errors
    /// `BadDigest` for a wrong length.
    pub(crate) fn add(&mut self, algorithm: Algorithm, text: &str) -> S3Result<()> {
        if unbase64(text).is_none_or(|bytes| bytes.len() != algorithm.len()) {
            let message = format!("Value for {} header is invalid.", algorithm.header());
            return Err(custom("BadDigest", hyper::StatusCode::BAD_REQUEST, message));
        }
        self.sum = Some((algorithm, text.to_owned()));
        Ok(())
    }

    /// The algorithm of the checksum.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.sum.as_ref().map(|(algorithm, _)| *algorithm)
    }

    /// Checks that the body has these hashes.
    ///
    /// # Errors
    /// `BadDigest`.
    pub(crate) fn check(&self, digest: &Digest) -> S3Result<()> {
        if self.md5.as_ref().is_some_and(|md5| *md5 != digest.md5) {
            let message = "The Content-MD5 you specified did not match what we received.";
            return Err(refuse(S3ErrorCode::BadDigest, message));
        }
        let Some((algorithm, text)) = &self.sum else { return Ok(()) };
        let found = digest.sum.as_ref().filter(|sum| sum.algorithm == *algorithm);
        if found.is_some_and(|sum| sum.value == *text) {
            return Ok(());
        }
        Err(bad_sum(*algorithm))
    }
}

/// The error for several checksums in one request.
pub(crate) fn several_sums() -> S3Error {
    let message =
        "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.";
    refuse(S3ErrorCode::InvalidRequest, message)
}

/// The error for a checksum that differs from the computed one.
pub(crate) fn bad_sum(algorithm: Algorithm) -> S3Error {
    let message =
        format!("The {} you specified did not match the calculated checksum.", algorithm.name());
    custom("BadDigest", hyper::StatusCode::BAD_REQUEST, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_and_hex_round_trip() {
        for (bytes, text) in
            [(&b"f"[..], "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes), text);
            assert_eq!(unbase64(text).as_deref(), Some(bytes));
        }
        for wrong in ["", "Zg=", "Z===", "Zg*=", "ä=="] {
            assert_eq!(unbase64(wrong), None, "{wrong}");
        }
        assert_eq!(unhex(&hex(&[0, 255, 16])), Some(vec![0, 255, 16]));
        assert_eq!((unhex("0"), unhex("zz"), unhex("é")), (None, None, None));
    }

    #[test]
    fn checksums_are_those_of_the_check_string() {
        // "123456789" is the check input of CRC catalogues.
        for (algorithm, value) in [
            (Algorithm::Crc32, "cbf43926"),
            (Algorithm::Crc32c, "e3069283"),
            (Algorithm::Crc64Nvme, "ae8b14860a799888"),
            (Algorithm::Sha1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
        ] {
            let mut hasher = Hasher::new(Some(algorithm));
            hasher.update(b"1234");
            hasher.update(b"56789");
            let digest = hasher.finish();
            assert_eq!(hex(&digest.md5), "25f9e794323b453885f5181f1b624d0b");
            assert_eq!(digest.sum.unwrap().value, base64(&unhex(value).unwrap()));
        }
    }

    #[test]
    fn the_sum_of_a_whole_follows_from_its_parts() {
        for algorithm in Algorithm::ALL {
            let sum = |bytes: &[u8]| {
                let mut hasher = Hasher::new(Some(algorithm));
                hasher.update(bytes);
                hasher.finish().sum.unwrap()
            };
            let part = |bytes: &[u8]| (unbase64(&sum(bytes).value).unwrap(), bytes.len() as u64);
            let parts = [part(b"12"), part(b"345678"), part(b"9")];
            let whole = combined(algorithm, &parts);
            assert_eq!(whole.is_some(), algorithm.combines());
            assert!(whole.is_none_or(|whole| whole == sum(b"123456789")));
            assert!(composite(algorithm, &parts).value.ends_with("=-3"));
        }
    }

    #[test]
    fn what_a_client_expects_is_compared() {
        let mut hasher = Hasher::new(Some(Algorithm::Crc32));
        hasher.update(b"123456789");
        let digest = hasher.finish();
        let right = "y/Q5Jg==".to_owned();
        let sums = |text| [(Algorithm::Crc32, text)];
        Expected::new(None, &sums(Some(&right))).unwrap().check(&digest).unwrap();
        let wrong = "y/Q5Jw==".to_owned();
        assert!(Expected::new(None, &sums(Some(&wrong))).unwrap().check(&digest).is_err());
        assert!(
            Expected::new(Some("AAAAAAAAAAAAAAAAAAAAAA=="), &[]).unwrap().check(&digest).is_err()
        );
        assert!(Expected::new(Some("AAAA"), &[]).is_err());
    }
}
