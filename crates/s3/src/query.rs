//! Headers in the query of a presigned URL. SDKs put signed headers there (the JavaScript SDK all
//! of them): metadata, tags, an access control list, checksums, the source of a copy. The signature
//! covers the whole query, so they have the effect of headers, and are rejected like headers. `s3s`
//! reads headers only.
//!
//! A name in the query is not in `X-Amz-SignedHeaders`, so a header made from it does not change
//! the input of version 4 signatures. Version 2 covers all headers that begin with `x-amz-`, and
//! includes the new header.

use hyper::Uri;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use s3s::{S3ErrorCode, S3Result};

use crate::error::{absent, refuse};
use crate::gate::{OLDER_SIGNATURE, SIGNATURE};
use crate::ops::tagging::plain;

/// Parameters of the signature itself.
const OF_SIGNATURE: [&str; 7] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
];

/// The checksums of an empty body: some SDKs sign them into every URL for an upload, because they
/// do not know its content.
const OF_NOTHING: [(&str, &str); 5] = [
    ("x-amz-checksum-crc32", "AAAAAA=="),
    ("x-amz-checksum-crc32c", "AAAAAA=="),
    ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA="),
    ("x-amz-checksum-sha1", "2jmj7l5rSw0yVb/vlWAYkK/YBwk="),
    ("x-amz-checksum-sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
];
/// The hash of the body.
const HASH: &str = "x-amz-content-sha256";
/// The parameter that accompanies a dropped checksum.
const ALGORITHM: &str = "x-amz-sdk-checksum-algorithm";

/// Turns parameters in the query of a presigned URL into headers; returns whether there are any.
///
/// # Errors
/// `NotImplemented`, with its name, for a parameter in an unsigned query; `InvalidArgument` for one
/// that is repeated, cannot be a header, or contradicts a header.
pub(crate) fn hoist(uri: &Uri, headers: &mut HeaderMap) -> S3Result<bool> {
    let wrong = |message: String| refuse(S3ErrorCode::InvalidArgument, message);
    let mut found: Vec<(HeaderName, HeaderValue)> = Vec::new();
    let (mut signatures, mut signed) = (0, String::new());
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(name) = plain(name) else { continue };
        signatures += usize::from([SIGNATURE, OLDER_SIGNATURE].contains(&name.as_str()));
        let lower = name.to_ascii_lowercase();
        if lower == "x-amz-signedheaders" {
            signed = plain(value).unwrap_or_default();
        }
        if !lower.starts_with("x-amz-") || OF_SIGNATURE.contains(&lower.as_str()) {
            continue;
        }
        let header = HeaderName::from_bytes(lower.as_bytes());
        let value = plain(value).and_then(|text| HeaderValue::from_str(&text).ok());
        let (Ok(header), Some(value)) = (header, value) else {
            return Err(wrong(format!("The query parameter '{name}' cannot be a header")));
        };
        if found.iter().any(|(other, _)| *other == header) {
            return Err(wrong(format!("Repeated: {name}")));
        }
        found.push((header, value));
    }
    let Some((first, _)) = found.first() else { return Ok(false) };
    if signatures != 1 || headers.contains_key(AUTHORIZATION) {
        return Err(absent(&format!(
            "The query parameter '{first}' of a request that is not presigned"
        )));
    }
    leave_out_nothing(headers, &mut found);
    for (name, value) in found {
        // A header with the hash takes precedence, and the body is compared with it.
        if name == HASH && headers.contains_key(&name) {
            continue;
        }
        let is_signed = signed.split(';').any(|other| other.trim() == name.as_str());
        if is_signed || headers.get(&name).is_some_and(|there| *there != value) {
            return Err(wrong(format!("'{name}' is both in the query and a header")));
        }
        headers.insert(name, value);
    }
    Ok(true)
}

/// Drops a checksum of an empty body if the body is not empty: it was signed before the content was
/// known.
fn leave_out_nothing(headers: &HeaderMap, found: &mut Vec<(HeaderName, HeaderValue)>) {
    let len =
        headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let is_of_nothing = |(name, value): &(HeaderName, HeaderValue)| {
        OF_NOTHING.iter().any(|pair| pair.0 == name && pair.1 == value)
    };
    if len != Some(0) && found.iter().any(is_of_nothing) {
        found.retain(|header| !is_of_nothing(header) && header.0 != ALGORITHM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str =
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeaders=host&X-Amz-Signature=0";

    fn hoisted(query: &str, before: &[(&'static str, &str)]) -> Result<Vec<String>, String> {
        let uri: Uri = format!("/b/k?{query}").parse().unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in before {
            headers.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        let done = hoist(&uri, &mut headers);
        let mut all: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        all.sort();
        done.map(|_| all).map_err(|error| error.code().as_str().to_owned())
    }

    fn with(rest: &str) -> String {
        format!("{SIGNED}&{rest}")
    }

    #[test]
    fn what_is_signed_in_a_query_is_a_header() {
        assert_eq!(hoisted(SIGNED, &[]), Ok(vec![]));
        let all = with("x-amz-meta-a=1%2C+2&X-Amz-Acl=public-read&x-id=PutObject");
        let expected = ["x-amz-acl=public-read", "x-amz-meta-a=1, 2"].map(str::to_owned);
        assert_eq!(hoisted(&all, &[]), Ok(expected.to_vec()));
        let older = "AWSAccessKeyId=a&Expires=1&Signature=x&x-amz-tagging=a%3Db";
        assert_eq!(hoisted(older, &[]), Ok(vec!["x-amz-tagging=a=b".to_owned()]));
        let same = hoisted(&with("x-amz-acl=private"), &[("x-amz-acl", "private")]);
        assert_eq!(same, Ok(vec!["x-amz-acl=private".to_owned()]));
    }

    #[test]
    fn what_is_not_signed_or_said_twice_is_refused() {
        let refused = |code: &str| Err(code.to_owned());
        assert_eq!(hoisted("x-amz-acl=private", &[]), refused("NotImplemented"));
        let by_header = hoisted("x-amz-acl=private", &[("authorization", "AWS4-HMAC-SHA256 x")]);
        assert_eq!(by_header, refused("NotImplemented"));
        for twice in ["x-amz-acl=private&X-Amz-ACL=private", "x-amz-meta-%0A=1", "x-amz-meta-a=%FF"]
        {
            assert_eq!(hoisted(&with(twice), &[]), refused("InvalidArgument"), "{twice}");
        }
        let other = hoisted(&with("x-amz-acl=private"), &[("x-amz-acl", "public-read")]);
        assert_eq!(other, refused("InvalidArgument"));
        let signed = "X-Amz-SignedHeaders=host%3Bx-amz-acl&X-Amz-Signature=0&x-amz-acl=private";
        assert_eq!(hoisted(signed, &[]), refused("InvalidArgument"));
    }

    /// The JavaScript SDK signs the checksum of an empty body into every URL for an upload.
    #[test]
    fn a_checksum_of_nothing_does_not_count_where_there_are_bytes() {
        let sdk = with("x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32");
        assert_eq!(
            hoisted(&sdk, &[("content-length", "5")]),
            Ok(vec!["content-length=5".to_owned()])
        );
        assert_eq!(hoisted(&sdk, &[("content-length", "0")]).unwrap().len(), 3);
        let real = with("x-amz-checksum-crc32=NhCmhg%3D%3D&x-amz-sdk-checksum-algorithm=CRC32");
        assert_eq!(hoisted(&real, &[("content-length", "5")]).unwrap().len(), 3);
    }
}
