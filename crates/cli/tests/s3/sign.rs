//! Signatures of version 4, as AWS documents them ("Authenticating Requests: Using the Authorization Header").

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use millpond_types::units::Utc;
use sha2::{Digest as _, Sha256};

pub(crate) const REGION: &str = "us-east-1";

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn sha256(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let key = if key.len() > 64 { sha256(key) } else { key.to_vec() };
    let pad = |with: u8| -> Vec<u8> {
        (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ with).collect()
    };
    let inner = sha256(&[pad(0x36), message.to_vec()].concat());
    sha256(&[pad(0x5c), inner].concat())
}

/// Percent-encodes all but what RFC 3986 leaves alone.
pub(crate) fn encoded(text: &str, keep_slash: bool) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// Seconds since 1970 as `20250131T235959Z`.
fn date(secs: u64) -> String {
    let Utc { year, month, day, hour, minute, second } = Utc::of_unix_seconds(secs);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Now, or so many seconds off.
pub(crate) fn now(skew: i64) -> String {
    let secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    date(secs.checked_add_signed(skew).unwrap())
}

/// What is signed.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    /// As in the request's first line, encoded.
    pub(crate) path: &'a str,
    /// Not encoded.
    pub(crate) query: &'a [(String, String)],
    /// In small letters.
    pub(crate) headers: &'a [(String, String)],
    pub(crate) payload: &'a str,
    pub(crate) date: &'a str,
}

/// The query as it is signed and sent.
pub(crate) fn query_text(query: &[(String, String)]) -> String {
    let mut pairs: Vec<_> =
        query.iter().map(|(k, v)| (encoded(k, false), encoded(v, false))).collect();
    pairs.sort();
    pairs.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join("&")
}

pub(crate) fn scope(date: &str) -> String {
    format!("{}/{REGION}/s3/aws4_request", &date[..8])
}

fn key(secret: &str, date: &str) -> Vec<u8> {
    let first = hmac(format!("AWS4{secret}").as_bytes(), &date.as_bytes()[..8]);
    [REGION, "s3", "aws4_request"].iter().fold(first, |key, word| hmac(&key, word.as_bytes()))
}

/// The names of the signed headers.
pub(crate) fn names(headers: &[(String, String)]) -> String {
    let mut names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.join(";")
}

pub(crate) fn signature(signed: &Signed<'_>, secret: &str) -> String {
    let mut headers: Vec<_> = signed.headers.iter().collect();
    headers.sort();
    let lines = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim()));
    let lines = lines.collect::<Vec<_>>().concat();
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{}\n{}",
        signed.method,
        signed.path,
        query_text(signed.query),
        names(signed.headers),
        signed.payload
    );
    let hash = hex(&sha256(canonical.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{}\n{}\n{hash}", signed.date, scope(signed.date));
    hex(&hmac(&key(secret, signed.date), text.as_bytes()))
}

/// The signature of the policy of a form.
pub(crate) fn policy(secret: &str, date: &str, policy: &str) -> String {
    hex(&hmac(&key(secret, date), policy.as_bytes()))
}

/// The signature of a chunk of a streamed body.
pub(crate) fn chunk(secret: &str, date: &str, (before, bytes): (&str, &[u8])) -> String {
    let text = format!(
        "AWS4-HMAC-SHA256-PAYLOAD\n{date}\n{}\n{before}\n{}\n{}",
        scope(date),
        hex(&sha256(b"")),
        hex(&sha256(bytes))
    );
    hex(&hmac(&key(secret, date), text.as_bytes()))
}
