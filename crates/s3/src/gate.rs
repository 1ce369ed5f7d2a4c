//! What of a request is refused before `s3s` sees it. `s3s` takes a sub-resource that it does not know, or not with this method, for
//! the whole bucket or object: `DELETE /bucket?logging` would remove the bucket. It also passes over headers that change what is
//! stored, in operations that have no field for them.

use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::{Method, StatusCode, Uri};
use s3s::{S3ErrorCode, S3Result};

use crate::error::{absent, custom, refuse};
use crate::ops::tagging::plain;

/// The longest form, with its file: `s3s` has all of it in memory.
pub(crate) const FORM_MAX: u64 = 32 << 20;
/// The longest that a presigned URL may be valid, in seconds.
const VALID_MAX: i64 = 7 * 24 * 3600;

/// Sub-resources, with the methods that change something through them: of a bucket, and of an object.
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

/// Sub-resources that neither `s3s` nor this gateway has, whatever the method.
const UNKNOWN: [&str; 7] = [
    "abac",
    "append",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "renameObject",
    "annotation",
];

/// What headers begin with that are refused in any request, and what they ask for.
const HEADERS: [(&str, &str); 5] = [
    ("x-amz-server-side-encryption", "Encryption by the server (x-amz-server-side-encryption)"),
    (
        "x-amz-copy-source-server-side-encryption",
        "Encryption by the server (x-amz-copy-source-server-side-encryption)",
    ),
    ("x-amz-object-lock-", "Object lock (x-amz-object-lock-*)"),
    ("x-amz-website-redirect-location", "x-amz-website-redirect-location"),
    ("x-amz-rename-source", "x-amz-rename-source"),
];

/// The names of a query, with their values.
fn pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> {
    let query = uri.query().unwrap_or_default();
    query.split('&').filter(|it| !it.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (plain(name).unwrap_or_default(), plain(value).unwrap_or_default())
    })
}

fn check_subresources(method: &Method, uri: &Uri, is_object: bool) -> S3Result<()> {
    let names: Vec<String> = pairs(uri).map(|(name, _)| name).collect();
    if let Some(name) = names.iter().find(|it| UNKNOWN.contains(&it.as_str())) {
        return Err(absent(&format!("The sub-resource '{name}'")));
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let known = |name: &String| SUBRESOURCES.iter().find(|(it, ..)| it == name);
    for (name, of_bucket, of_object) in names.iter().filter_map(known) {
        let methods = if is_object { of_object } else { of_bucket };
        if !methods.split(' ').any(|it| it == method.as_str()) {
            let message =
                format!("The specified method is not allowed against this resource: {name}");
            return Err(refuse(S3ErrorCode::MethodNotAllowed, message));
        }
    }
    let has = |name: &str| names.iter().any(|it| it == name);
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
        if names().any(|it| it.starts_with(start)) {
            return Err(absent(what));
        }
    }
    if headers.get("content-md5").is_some_and(|it| it.as_bytes().trim_ascii().is_empty()) {
        return Err(S3ErrorCode::InvalidDigest.into());
    }
    Ok(())
}

/// How long a presigned URL is valid, in AWS's words.
fn check_valid(uri: &Uri) -> S3Result<()> {
    let Some((_, value)) = pairs(uri).find(|(name, _)| name == "X-Amz-Expires") else {
        return Ok(());
    };
    let message = match value.parse::<i64>() {
        Err(_) => "X-Amz-Expires should be a number",
        Ok(it) if it < 0 => "X-Amz-Expires must be non-negative",
        Ok(it) if it > VALID_MAX => {
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds"
        }
        Ok(_) => return Ok(()),
    };
    let code = "AuthorizationQueryParametersError";
    Err(custom(code, StatusCode::BAD_REQUEST, message.to_owned()))
}

/// The length of a form with a file in it, if the request is one.
///
/// # Errors
/// `MissingContentLength`, `EntityTooLarge`.
pub(crate) fn form(method: &Method, headers: &HeaderMap) -> S3Result<Option<u64>> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let is_form = text(CONTENT_TYPE)
        .is_some_and(|it| it.trim_start().to_ascii_lowercase().starts_with("multipart/form-data"));
    if *method != Method::POST || !is_form {
        return Ok(None);
    }
    let len = text(CONTENT_LENGTH).and_then(|it| it.parse().ok());
    match len.ok_or(S3ErrorCode::MissingContentLength)? {
        len if len > FORM_MAX => {
            let message = format!(
                "A form has at most {FORM_MAX} bytes here: use PutObject for larger objects"
            );
            Err(refuse(S3ErrorCode::EntityTooLarge, message))
        }
        len => Ok(Some(len)),
    }
}

/// Whether `s3s` may see a request.
///
/// # Errors
/// `NotImplemented` and `MethodNotAllowed` for what is not done; `InvalidURI`, `InvalidArgument`, `InvalidDigest` and
/// `AuthorizationQueryParametersError` for what is wrong.
pub(crate) fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    is_object: bool,
) -> S3Result<()> {
    if plain(uri.path()).is_none() {
        return Err(S3ErrorCode::InvalidURI.into());
    }
    check_subresources(method, uri, is_object)?;
    check_valid(uri)?;
    check_headers(headers)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn code(method: &Method, uri: &'static str, is_object: bool) -> Option<String> {
        let headers = HeaderMap::new();
        let done = check(method, &Uri::from_static(uri), &headers, is_object);
        done.err().map(|it| it.code().as_str().to_owned())
    }

    #[test]
    fn a_subresource_is_never_taken_for_the_whole() {
        let refused = Some("MethodNotAllowed".to_owned());
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
        let unknown = Some("NotImplemented".to_owned());
        assert_eq!(code(&Method::PUT, "/b/k?renameObject", true), unknown);
        assert_eq!(code(&Method::GET, "/b?metadataConfiguration", false), unknown);
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
    }
}
