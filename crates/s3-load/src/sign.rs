//! Signature Version 4 for S3, as AWS documents it: "Authenticating Requests: Using the
//! Authorization Header" and "Using Query Parameters" in the API reference. The tests are the
//! examples of those pages.

use std::fmt::Write as _;

use millpond_types::units::Utc;
use sha2::{Digest, Sha256};

/// In place of the hash of unsigned content.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Bytes of a block of SHA-256, and of an HMAC key.
const BLOCK: usize = 64;

/// Credentials, and the region of signatures.
#[derive(Clone)]
pub struct Credentials {
    /// The access key id.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
    /// The region; `us-east-1` for endpoints without regions.
    pub region: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// The signed parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct ToSign<'a> {
    /// The method, for example `GET` or `PUT`.
    pub method: &'a str,
    /// The path, encoded as [`encode_path`] does.
    pub path: &'a str,
    /// Parameters, encoded as [`encode`] does, in the order of their names.
    pub query: &'a str,
    /// Headers sorted by name, with lower-case names; they include `host` and `x-amz-date`.
    pub headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the content in hex, or [`UNSIGNED`].
    pub payload: &'a str,
    /// The value of `x-amz-date`.
    pub time: &'a str,
}

/// Signs requests; caches the key of the day.
#[derive(Clone, Debug)]
pub struct Signer {
    credentials: Credentials,
    day: String,
    key: [u8; 32],
}

impl Signer {
    /// A signer for `credentials`.
    #[must_use]
    pub const fn new(credentials: Credentials) -> Self {
        Self { credentials, day: String::new(), key: [0; 32] }
    }

    /// The value of the `authorization` header of `request`.
    pub fn authorization(&mut self, request: &ToSign<'_>) -> String {
        let signature = self.signature(request);
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={signature}",
            self.credentials.access_key,
            self.scope(request.time),
            names(request.headers),
        )
    }

    /// The signature of `request` in hex; a presigned URL has the same.
    pub fn signature(&mut self, request: &ToSign<'_>) -> String {
        let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, request.query);
        for (name, value) in request.headers {
            let _ = writeln!(canonical, "{name}:{}", value.trim());
        }
        let _ = write!(canonical, "\n{}\n{}", names(request.headers), request.payload);
        let scope = self.scope(request.time);
        let to_sign = format!(
            "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
            request.time,
            sha256_hex(canonical.as_bytes())
        );
        hex(&hmac(self.key_of(day(request.time)), to_sign.as_bytes()))
    }

    fn scope(&self, time: &str) -> String {
        format!("{}/{}/s3/aws4_request", day(time), self.credentials.region)
    }

    fn key_of(&mut self, day: &str) -> &[u8] {
        if self.day != day {
            let secret = format!("AWS4{}", self.credentials.secret_key);
            let key = hmac(secret.as_bytes(), day.as_bytes());
            let key = hmac(&key, self.credentials.region.as_bytes());
            self.key = hmac(&hmac(&key, b"s3"), b"aws4_request");
            day.clone_into(&mut self.day);
        }
        &self.key
    }
}

/// The day of a time in the form `20130524T000000Z`.
fn day(time: &str) -> &str {
    time.get(..8).unwrap_or(time)
}

fn names(headers: &[(&str, &str)]) -> String {
    headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";")
}

/// HMAC with SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0u8; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message);
    let outer = Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c));
    outer.chain_update(inner.finalize()).finalize().into()
}

/// SHA-256 of `bytes` in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// `bytes` in lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A path in the form that S3 signs: each byte except letters, digits, `-._~` and `/` as `%XX`.
#[must_use]
pub fn encode_path(path: &str) -> String {
    encoded(path, b"/-._~")
}

/// A part of a query in the form that S3 signs: like a path, but `/` is encoded too.
#[must_use]
pub fn encode(text: &str) -> String {
    encoded(text, b"-._~")
}

fn encoded(text: &str, kept: &[u8]) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// The value of `x-amz-date` for a wall time in milliseconds since 1970.
#[must_use]
pub fn amz_date(unix_ms: u64) -> String {
    let Utc { year, month, day, hour, minute, second } = Utc::of_unix_seconds(unix_ms / 1000);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::{Credentials, Signer, ToSign, amz_date, encode, encode_path, sha256_hex};

    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
    const TIME: &str = "20130524T000000Z";
    const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn signer() -> Signer {
        Signer::new(Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            region: "us-east-1".to_owned(),
        })
    }

    fn get<'a>(path: &'a str, query: &'a str, headers: &'a [(&'a str, &'a str)]) -> ToSign<'a> {
        ToSign { method: "GET", path, query, headers, payload: NOTHING, time: TIME }
    }

    #[test]
    fn the_documented_get_of_a_range_has_the_documented_signature() {
        let headers =
            [HOST, ("range", "bytes=0-9"), ("x-amz-content-sha256", NOTHING), ("x-amz-date", TIME)];
        assert_eq!(
            signer().authorization(&get("/test.txt", "", &headers)),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn the_documented_put_has_the_documented_signature() {
        let payload = sha256_hex(b"Welcome to Amazon S3.");
        let headers = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            HOST,
            ("x-amz-content-sha256", payload.as_str()),
            ("x-amz-date", TIME),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        let path = encode_path("/test$file.text");
        assert_eq!(path, "/test%24file.text");
        let put = ToSign { method: "PUT", payload: &payload, ..get(&path, "", &headers) };
        assert_eq!(
            signer().signature(&put),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
    }

    #[test]
    fn the_documented_queries_have_the_documented_signatures() {
        let headers = [HOST, ("x-amz-content-sha256", NOTHING), ("x-amz-date", TIME)];
        let mut signer = signer();
        assert_eq!(
            signer.signature(&get("/", "lifecycle=", &headers)),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            signer.signature(&get("/", "max-keys=2&prefix=J", &headers)),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn the_documented_presigned_url_has_the_documented_signature() {
        let credential = encode("AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request");
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={TIME}\
             &X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        );
        let headers = [HOST];
        let request = ToSign { payload: super::UNSIGNED, ..get("/test.txt", &query, &headers) };
        assert_eq!(
            signer().signature(&request),
            "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(amz_date(0), "19700101T000000Z");
        assert_eq!(amz_date(1_369_353_600_000), TIME);
        assert_eq!(amz_date(951_827_696_789), "20000229T123456Z");
        assert_eq!(amz_date(4_107_542_399_000), "21000228T235959Z");
        assert_eq!(amz_date(4_107_542_400_000), "21000301T000000Z");
    }
}
