//! Rejects requests before `s3s` sees them. `s3s` treats a sub-resource that it does not know, at
//! least not with this method, as the whole bucket or object: `DELETE /bucket?logging` would remove
//! the bucket. It also ignores headers that change the stored data, in operations without a field
//! for them.

use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName};
use hyper::{Method, StatusCode, Uri};
use s3s::{S3ErrorCode, S3Result};

use crate::error::{absent, custom, refuse};
use crate::ops::tagging::plain;

/// The longest form including its file: `s3s` buffers all of it.
pub(crate) const FORM_MAX: u64 = 32 << 20;
/// The token of temporary credentials.
const TOKEN: &str = "x-amz-security-token";
/// The maximum validity of a presigned URL, in seconds.
const VALID_MAX: i64 = 7 * 24 * 3600;

/// Sub-resources, with their methods that change something: on a bucket, and on an object.
const SUBRESOURCES: [(&str, &str, &str); 37] = [
    ("accelerate", "PUT", ""),
    ("acl", "PUT", "PUT"),
    ("analytics", "PUT DELETE", ""),
    ("attributes", "", ""),
    ("cors", "PUT DELETE", ""),
    ("delete", "POST", ""),
    ("encryption", "PUT DELETE", ""),
    ("intelligent-tiering", "PUT DELETE", ""),
    ("inventory", "PUT DELETE", ""),
    ("legal-hold", "", "PUT"),
    ("lifecycle", "PUT DELETE", ""),
    ("list-type", "", ""),
    ("location", "", ""),
    ("logging", "PUT", ""),
    ("metadataTable", "POST DELETE", ""),
    ("metrics", "PUT DELETE", ""),
    ("notification", "PUT", ""),
    ("object-lock", "PUT", ""),
    ("ownershipControls", "PUT DELETE", ""),
    ("partNumber", "", "PUT"),
    ("policy", "PUT DELETE", ""),
    ("policyStatus", "", ""),
    ("publicAccessBlock", "PUT DELETE", ""),
    ("replication", "PUT DELETE", ""),
    ("requestPayment", "PUT", ""),
    ("restore", "", "POST"),
    ("retention", "", "PUT"),
    ("select", "", "POST"),
    ("select-type", "", "POST"),
    ("session", "", ""),
    ("tagging", "PUT DELETE", "PUT DELETE"),
    ("torrent", "", ""),
    ("uploadId", "", "PUT POST DELETE"),
    ("uploads", "", "POST"),
    ("versioning", "PUT", ""),
    ("versions", "", ""),
    ("website", "PUT DELETE", ""),
];

/// Sub-resources that neither `s3s` nor this gateway implements, with any method.
const UNKNOWN: [&str; 7] = [
    "abac",
    "append",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "renameObject",
    "annotation",
];

/// The supported signature algorithm.
pub(crate) const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Query parameters with the signature of presigned URLs: of version 2, and of version 4.
pub(crate) const OLDER_SIGNATURE: &str = "Signature";
pub(crate) const SIGNATURE: &str = "X-Amz-Signature";
/// Sub-resources unknown to signatures of version 2; listings it never covered.
const UNSIGNED_ONCE: [&str; 10] = [
    "attributes",
    "encryption",
    "intelligent-tiering",
    "legal-hold",
    "metadataTable",
    "ownershipControls",
    "policyStatus",
    "publicAccessBlock",
    "retention",
    "session",
];

/// Prefixes of headers that are rejected in any request, with the feature that they request.
const HEADERS: [(&str, &str); 6] = [
    ("x-amz-server-side-encryption", "Encryption by the server (x-amz-server-side-encryption)"),
    (
        "x-amz-copy-source-server-side-encryption",
        "Encryption by the server (x-amz-copy-source-server-side-encryption)",
    ),
    ("x-amz-object-lock-", "Object lock (x-amz-object-lock-*)"),
    ("x-amz-website-redirect-location", "x-amz-website-redirect-location"),
    ("x-amz-rename-source", "x-amz-rename-source"),
    ("x-amz-if-match-initiated-time", "x-amz-if-match-initiated-time"),
];

/// Prefix of checksum headers, and the rest of the known ones.
const CHECKSUM: &str = "x-amz-checksum-";
const CHECKSUMS: [&str; 8] =
    ["algorithm", "crc32", "crc32c", "crc64nvme", "mode", "sha1", "sha256", "type"];

/// The names and values of a query.
pub(crate) fn pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> {
    let query = uri.query().unwrap_or_default();
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (plain(name).unwrap_or_default(), plain(value).unwrap_or_default())
    })
}

/// Whether a request addresses a sub-resource of a bucket or object.
pub(crate) fn has_subresource(uri: &Uri) -> bool {
    pairs(uri).any(|(name, _)| SUBRESOURCES.iter().any(|(resource, ..)| *resource == name))
}

/// Checks that no sub-resource is repeated, because version 2 signatures do not cover a repeated
/// one, and that a version 2 signature covers each.
fn check_once(names: &[String]) -> S3Result<()> {
    let is_older = names.iter().any(|name| name == OLDER_SIGNATURE);
    for (name, ..) in SUBRESOURCES {
        let times = names.iter().filter(|other| *other == name).count();
        if times > 1 {
            return Err(refuse(S3ErrorCode::InvalidArgument, format!("Repeated: {name}")));
        }
        if times == 1 && is_older && UNSIGNED_ONCE.contains(&name) {
            let message = format!("Signature version 2 does not cover {name}: use version 4");
            return Err(refuse(S3ErrorCode::AccessDenied, message));
        }
    }
    Ok(())
}

fn check_subresources(method: &Method, uri: &Uri, is_object: bool) -> S3Result<()> {
    let names: Vec<String> = pairs(uri).map(|(name, _)| name).collect();
    if let Some(name) = names.iter().find(|name| UNKNOWN.contains(&name.as_str())) {
        return Err(absent(&format!("The sub-resource '{name}'")));
    }
    check_once(&names)?;
    let of_current =
        ["tagging", "acl"].iter().any(|resource| names.iter().any(|name| name == resource));
    let is_old = |(name, value): (String, String)| {
        name == "versionId" && !matches!(value.as_str(), "" | "null")
    };
    if is_object && of_current && pairs(uri).any(is_old) {
        return Err(absent("A version of an object (versionId)"));
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let known = |name: &String| SUBRESOURCES.iter().find(|(resource, ..)| resource == name);
    for (name, of_bucket, of_object) in names.iter().filter_map(known) {
        let methods = if is_object { of_object } else { of_bucket };
        if !methods.split(' ').any(|allowed| allowed == method.as_str()) {
            let message =
                format!("The specified method is not allowed against this resource: {name}");
            return Err(refuse(S3ErrorCode::MethodNotAllowed, message));
        }
    }
    let has = |name: &str| names.iter().any(|other| other == name);
    if *method == Method::PUT && has("partNumber") != has("uploadId") {
        let (one, other) =
            if has("partNumber") { ("partNumber", "uploadId") } else { ("uploadId", "partNumber") };
        let message = format!("This operation does not accept {one} without {other}");
        return Err(refuse(S3ErrorCode::InvalidArgument, message));
    }
    Ok(())
}

fn check_headers(headers: &HeaderMap) -> S3Result<()> {
    let names = || headers.keys().map(HeaderName::as_str);
    for (start, what) in HEADERS {
        if names().any(|name| name.starts_with(start)) {
            return Err(absent(what));
        }
    }
    let unknown =
        |name: &&str| name.strip_prefix(CHECKSUM).is_some_and(|kind| !CHECKSUMS.contains(&kind));
    if let Some(name) = names().find(unknown) {
        return Err(absent(&format!("A checksum of this kind ({name})")));
    }
    if headers.get("content-md5").is_some_and(|value| value.as_bytes().trim_ascii().is_empty()) {
        return Err(S3ErrorCode::InvalidDigest.into());
    }
    Ok(())
}

/// Checks that all headers that change a request are signed, as AWS demands, also with a signature
/// in the query: the user of a URL may do with it only what its maker signed.
///
/// # Errors
/// `AccessDenied`; `InvalidArgument` for two signatures, `InvalidRequest` for an unsupported kind.
pub(crate) fn check_signed(uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let authorization = headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap_or_default());
    let told = pairs(uri).filter(|(name, _)| is(name, "X-Amz-SignedHeaders"));
    let mut in_query: Vec<String> = told.map(|(_, value)| value).collect();
    let is_presigned = !in_query.is_empty() || pairs(uri).any(|(name, _)| is(&name, SIGNATURE));
    if authorization.is_none() {
        check_nobodys(uri)?;
    }
    let signed = match (authorization, is_presigned) {
        (None, false) => return Ok(()),
        (Some(header), false) if header.split_ascii_whitespace().next() == Some(ALGORITHM) => {
            let parts = ["Credential=", "SignedHeaders=", "Signature="];
            if !parts.into_iter().all(|part| header.contains(part)) {
                let message = "The authorization header is malformed; the authorization header requires three components: Credential, SignedHeaders, and Signature.";
                return Err(refuse(S3ErrorCode::AuthorizationHeaderMalformed, message));
            }
            let signed = header.split("SignedHeaders=").nth(1).unwrap_or_default();
            signed.split(',').next().unwrap_or_default().to_owned()
        }
        (Some(_), false) => {
            let message = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
            return Err(refuse(S3ErrorCode::InvalidRequest, message));
        }
        (None, true) if in_query.len() < 2 => in_query.pop().unwrap_or_default(),
        (_, true) => {
            let message = "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified";
            return Err(refuse(S3ErrorCode::InvalidArgument, message));
        }
    };
    let is_signed = |name: &str| signed.split(';').any(|other| other.trim() == name);
    let counts = |name: &str| name == HOST || name.starts_with("x-amz-");
    // A hash of the body is checked separately.
    let is_free = |name: &str| name == "x-amz-content-sha256";
    let left_out = |name: &&str| counts(name) && !is_free(name) && !is_signed(name);
    match headers.keys().map(HeaderName::as_str).find(left_out) {
        None => Ok(()),
        Some(_) => Err(refuse(
            S3ErrorCode::AccessDenied,
            "There were headers present in the request which were not signed",
        )),
    }
}

/// Rejects response overrides in an unsigned request: they would give another tenant's page a
/// different type.
fn check_nobodys(uri: &Uri) -> S3Result<()> {
    let mut names = pairs(uri).map(|(name, _)| name.to_ascii_lowercase());
    let is_signed = pairs(uri).any(|(name, _)| name == OLDER_SIGNATURE || name == SIGNATURE);
    if !is_signed && names.any(|name| name.starts_with("response-")) {
        let message =
            "Request specific response headers cannot be used for anonymous GET requests.";
        return Err(refuse(S3ErrorCode::InvalidRequest, message));
    }
    Ok(())
}

/// Checks the validity of a presigned URL, with the messages of AWS.
fn check_valid(uri: &Uri) -> S3Result<()> {
    let Some((_, value)) = pairs(uri).find(|(name, _)| name == "X-Amz-Expires") else {
        return Ok(());
    };
    let message = match value.parse::<i64>() {
        Err(_) => "X-Amz-Expires should be a number",
        Ok(0) => {
            return Err(refuse(S3ErrorCode::AccessDenied, "Request has expired"));
        }
        Ok(seconds) if seconds < 0 => "X-Amz-Expires must be non-negative",
        Ok(seconds) if seconds > VALID_MAX => {
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds"
        }
        Ok(_) => return Ok(()),
    };
    let code = "AuthorizationQueryParametersError";
    Err(custom(code, StatusCode::BAD_REQUEST, message.to_owned()))
}

/// The length of a form with a file, if the request is one.
///
/// # Errors
/// `MissingContentLength`, `EntityTooLarge`; `InvalidArgument` for a request that `s3s` may take
/// for a form although this function does not.
pub(crate) fn form(method: &Method, headers: &HeaderMap) -> S3Result<Option<u64>> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    let is_plain = kinds.next().is_none_or(|kind| kind.to_str().is_ok()) && kinds.next().is_none();
    if *method == Method::POST && !is_plain {
        let message = "A request can have only one Content-Type, in ASCII";
        return Err(refuse(S3ErrorCode::InvalidArgument, message));
    }
    let is_form = text(CONTENT_TYPE).is_some_and(|kind| {
        kind.trim_start().to_ascii_lowercase().starts_with("multipart/form-data")
    });
    if *method != Method::POST || !is_form {
        return Ok(None);
    }
    let len = text(CONTENT_LENGTH).and_then(|len| len.parse().ok());
    match len.ok_or(S3ErrorCode::MissingContentLength)? {
        len if len > FORM_MAX => {
            let message = format!(
                "A form can have at most {FORM_MAX} bytes: use PutObject for larger objects"
            );
            Err(refuse(S3ErrorCode::EntityTooLarge, message))
        }
        len => Ok(Some(len)),
    }
}

/// Checks whether `s3s` may see a request.
///
/// # Errors
/// `NotImplemented` and `MethodNotAllowed` for unsupported requests; `InvalidURI`,
/// `InvalidArgument`, `InvalidDigest` and `AuthorizationQueryParametersError` for invalid ones.
pub(crate) fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    is_object: bool,
) -> S3Result<()> {
    if plain(uri.path()).is_none() {
        return Err(S3ErrorCode::InvalidURI.into());
    }
    let methods = [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE];
    if !methods.contains(method) {
        return Err(S3ErrorCode::MethodNotAllowed.into());
    }
    check_subresources(method, uri, is_object)?;
    check_valid(uri)?;
    check_token(uri, headers)?;
    // `s3s` accepts it for objects, where it has no meaning.
    let is_list = pairs(uri).any(|(name, _)| name == "acl");
    if is_object && !is_list && headers.contains_key("x-amz-grant-write") {
        return Err(absent("A grant to write an object (x-amz-grant-write)"));
    }
    check_headers(headers)
}

/// Rejects session tokens: this gateway issues none.
fn check_token(uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    let is_token = |name: &str| name.eq_ignore_ascii_case(TOKEN);
    if headers.contains_key(TOKEN) || pairs(uri).any(|(name, _)| is_token(&name)) {
        let message = "The provided token is malformed or otherwise invalid: this gateway has no \
                       temporary credentials";
        return Err(refuse(S3ErrorCode::InvalidToken, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn code(method: &Method, uri: &'static str, is_object: bool) -> Option<String> {
        let headers = HeaderMap::new();
        let done = check(method, &Uri::from_static(uri), &headers, is_object);
        done.err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn a_subresource_is_never_taken_for_the_whole() {
        let refused = Some("MethodNotAllowed".to_owned());
        assert_eq!(code(&Method::PATCH, "/b/k", true), refused);
        for word in ["acl", "logging", "versioning", "location", "uploads", "object-lock"] {
            let uri: &'static str = Box::leak(format!("/b?{word}").into_boxed_str());
            assert_eq!(code(&Method::DELETE, uri, false), refused, "{word}");
        }
        for word in ["acl", "retention", "legal-hold", "attributes", "torrent", "versions"] {
            let uri: &'static str = Box::leak(format!("/b/k?{word}=").into_boxed_str());
            assert_eq!(code(&Method::DELETE, uri, true), refused, "{word}");
        }
        assert_eq!(code(&Method::PUT, "/b?uploads", false), refused);
        assert_eq!(code(&Method::PUT, "/b/k?%61ttributes", true), refused);
        let wrong = Some("InvalidArgument".to_owned());
        assert_eq!(code(&Method::PUT, "/b/k?partNumber=1", true), wrong);
        assert_eq!(code(&Method::PUT, "/b/k?uploadId=1", true), wrong);
        assert_eq!(code(&Method::GET, "/b/%AE%8A-", true), Some("InvalidURI".to_owned()));
        // Names that a signature of version 2 would not cover.
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            assert_eq!(code(&method, "/b/k?acl&acl&Signature=s", true), wrong, "{method}");
            assert_eq!(code(&method, "/b/k?tagging=&t&%74agging", true), wrong, "{method}");
            let denied = Some("AccessDenied".to_owned());
            assert_eq!(code(&method, "/b?publicAccessBlock&Signature=s", false), denied);
            assert_eq!(code(&method, "/b?publicAccessBlock", false), None);
        }
        assert_eq!(code(&Method::GET, "/b?list-type=2&Signature=s", false), None);
        let unknown = Some("NotImplemented".to_owned());
        assert_eq!(code(&Method::PUT, "/b/k?renameObject", true), unknown);
        assert_eq!(code(&Method::GET, "/b?metadataConfiguration", false), unknown);
    }

    #[test]
    fn headers_that_count_must_be_signed() {
        let of = |uri: &str, line: Option<String>, extra: &'static str| {
            let mut headers = HeaderMap::new();
            if let Some(line) = line {
                headers.insert(AUTHORIZATION, HeaderValue::from_str(&line).unwrap());
            }
            headers.insert(HOST, HeaderValue::from_static("a"));
            headers.insert(extra, HeaderValue::from_static("1"));
            let done = check_signed(&uri.parse().unwrap(), &headers);
            done.map_err(|error| error.code().as_str().to_owned())
        };
        let line = |signed: &str| {
            format!("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders={signed}, Signature=c")
        };
        let denied = Err("AccessDenied".to_owned());
        for (signed, extra, told) in [
            ("host;x-amz-date", "x-amz-date", Ok(())),
            ("host", "content-type", Ok(())),
            ("host", "x-amz-content-sha256", Ok(())),
            ("host", "x-amz-copy-source", denied.clone()),
            ("host;x-amz-acl-x", "x-amz-acl", denied.clone()),
            ("x-amz-date", "x-amz-date", denied.clone()),
        ] {
            assert_eq!(of("/b/k", Some(line(signed)), extra), told, "{signed} {extra}");
            let uri = format!("/b/k?X-Amz-Signature=c&X-Amz-SignedHeaders={signed}");
            let uri = uri.replace(';', "%3B");
            assert_eq!(of(&uri, None, extra), told, "{uri} {extra}");
            assert_eq!(of(&uri.replace("Amz", "AMZ"), None, extra), told, "{uri} {extra}");
            let both = of(&uri, Some(line("host;x-amz-copy-source")), extra);
            assert_eq!(both, Err("InvalidArgument".to_owned()), "two signatures");
        }
        let twice = "/b/k?X-Amz-SignedHeaders=host%3Bx-amz-acl&X-Amz-SignedHeaders=host";
        assert_eq!(of(twice, None, "x-amz-acl"), Err("InvalidArgument".to_owned()));
        assert_eq!(of("/b/k?X-Amz-Signature=c", None, "x-amz-acl"), denied);
        assert_eq!(of("/b/k", None, "x-amz-acl"), Ok(()), "nobody's request");
        for (uri, told) in [
            ("/b/k?response-content-type=text/html", Err("InvalidRequest".to_owned())),
            ("/b/k?Response-Expires=x&x=Signature", Err("InvalidRequest".to_owned())),
            (
                "/b/k?response-content-type=t&X-Amz-SignedHeaders=host",
                Err("InvalidRequest".to_owned()),
            ),
            (
                "/b/k?response-content-type=t&x-amz-signature=s&X-Amz-SignedHeaders=host",
                Err("InvalidRequest".to_owned()),
            ),
            ("/b/k?response-content-type=text/html&Signature=s", Ok(())),
            ("/b/k?response-content-type=t&X-Amz-Signature=s&X-Amz-SignedHeaders=host", Ok(())),
        ] {
            assert_eq!(of(uri, None, "content-type"), told, "{uri}");
        }
        let older = Some("AWS a:b".to_owned());
        assert_eq!(of("/b/k", older, "x-amz-acl"), Err("InvalidRequest".to_owned()));
    }

    #[test]
    fn what_is_known_goes_on() {
        for (method, uri, is_object) in [
            (Method::PUT, "/b/k?partNumber=1&uploadId=2", true),
            (Method::POST, "/b/k?uploads", true),
            (Method::DELETE, "/b/k?uploadId=1", true),
            (Method::DELETE, "/b?cors=", false),
            (Method::POST, "/b?delete", false),
            (Method::GET, "/b/k?acl", true),
            (Method::GET, "/b?list-type=2&prefix=acl", false),
            (Method::PUT, "/b/k?x-id=PutObject&X-Amz-Expires=604800", true),
            (Method::DELETE, "/b/k?versionId=null", true),
        ] {
            assert_eq!(code(&method, uri, is_object), None, "{method} {uri}");
        }
    }

    #[test]
    fn times_and_headers_that_cannot_be_are_refused() {
        for wrong in ["/b/k?X-Amz-Expires=-1", "/b/k?X-Amz-Expires=604801", "/b?X-Amz-Expires=x"] {
            let found = code(&Method::GET, wrong, true);
            assert_eq!(found.as_deref(), Some("AuthorizationQueryParametersError"), "{wrong}");
        }
        let with = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            check(&Method::PUT, &Uri::from_static("/b/k"), &headers, true).is_ok()
        };
        assert!(!with("x-amz-server-side-encryption-customer-key", "x"));
        assert!(!with("content-md5", " "));
        assert!(with("content-md5", "AAAA") && with("x-amz-meta-a", "x"));
    }

    #[test]
    fn a_form_is_short() {
        let of = |content_type: &'static str, len: u64| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(len));
            form(&Method::POST, &headers)
        };
        assert_eq!(of("multipart/form-data; boundary=x", 7).unwrap(), Some(7));
        assert_eq!(of("text/xml", 7).unwrap(), None);
        assert!(of("Multipart/Form-Data; boundary=x", FORM_MAX + 1).is_err());
        // Requests that `s3s` might take for a form.
        for (first, second) in [
            ("multipart/form-data; boundary=b; x=\"\u{e9}\"", None),
            ("\u{ff}", None),
            ("a/b", Some("c/d")),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(CONTENT_TYPE, HeaderValue::from_bytes(first.as_bytes()).unwrap());
            if let Some(second) = second {
                headers.append(CONTENT_TYPE, HeaderValue::from_static(second));
            }
            assert!(form(&Method::POST, &headers).is_err(), "{first}");
            assert_eq!(form(&Method::PUT, &headers).unwrap(), None, "{first}");
        }
    }
}
