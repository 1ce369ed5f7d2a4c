//! `POST` of an HTML form: `s3s` takes it apart, checks its signature and its policy, and gives what is left to `PutObject`.

use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use s3s::dto::PostObjectInput;
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode, S3Result};

use super::headers::check_acl;
use crate::error::absent;

/// What `s3s` says of a condition that does not hold, and what AWS says.
const UNMET: [&str; 2] = [
    "<Code>InvalidPolicyDocument</Code><Message>Policy condition",
    "<Code>InvalidPolicyDocument</Code><Message>Bucket in form field",
];
const UNMET_TOLD: &str =
    "<Code>AccessDenied</Code><Message>Invalid according to Policy: Policy condition";

/// Where a field of a form begins, and its file, which is the last.
const NAME: &str = "form-data; name=\"";
const FILE: &str = "file";
/// Fields of a form at most, the headers of one, and what of its value is looked at.
const FIELDS_MAX: usize = 1_000;
const HEAD_MAX: usize = 4 << 10;
const VALUE_MAX: usize = 4 << 10;

/// Refuses fields that `s3s` passes over.
///
/// # Errors
/// `NotImplemented`, `InvalidArgument`, `MalformedPOSTRequest`.
pub(crate) fn check(form: &[u8]) -> S3Result<()> {
    let mut rest = form;
    for _ in 0..FIELDS_MAX {
        let Some(at) = find(rest, NAME.as_bytes()) else { return Ok(()) };
        rest = &rest[at + NAME.len()..];
        let head = &rest[..rest.len().min(HEAD_MAX)];
        let Some(end) = find(head, b"\"") else { return Err(malformed()) };
        let name = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        let Some(start) = find(head, b"\r\n\r\n") else { return Err(malformed()) };
        rest = &rest[start + 4..];
        let value = &rest[..rest.len().min(VALUE_MAX)];
        let value = &value[..find(value, b"\r\n").unwrap_or(value.len())];
        match name.as_str() {
            FILE => return Ok(()),
            "acl" => check_acl(Some(&String::from_utf8_lossy(value)))?,
            "tagging" => return Err(absent("The field 'tagging' of a form")),
            "key" if find(value, b"${filename}").is_some() => {
                return Err(absent("${filename} in the key of a form"));
            }
            _ => {}
        }
    }
    Err(malformed())
}

fn malformed() -> S3Error {
    S3ErrorCode::MalformedPOSTRequest.into()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|it| it == what)
}

/// Of an empty file `s3s` tells no length.
pub(crate) fn completed(input: &mut PostObjectInput) {
    input.content_length.get_or_insert(0);
}

/// The answer to a form, in AWS's words: who does not keep to a policy is denied.
pub(crate) fn reworded(mut response: HttpResponse) -> HttpResponse {
    let Some(bytes) = response.body().bytes() else { return response };
    let text = String::from_utf8_lossy(&bytes);
    if let Some(unmet) = UNMET.into_iter().find(|it| text.contains(it)) {
        let text = text.replace(unmet, UNMET_TOLD);
        *response.status_mut() = StatusCode::FORBIDDEN;
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        *response.body_mut() = Body::from(text);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_passed_over_are_refused() {
        let part = |name: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let is_fine = |fields: &[(&str, &str)]| {
            let text: String = fields.iter().map(|(name, value)| part(name, value)).collect();
            check(text.as_bytes()).is_ok()
        };
        assert!(is_fine(&[("key", "k"), ("acl", "private"), ("file", "bytes")]));
        assert!(!is_fine(&[("key", "k"), ("acl", "public-read"), ("file", "bytes")]));
        assert!(!is_fine(&[("Acl", "public-read"), ("file", "bytes")]));
        assert!(!is_fine(&[("tagging", "<Tagging/>")]));
        assert!(!is_fine(&[("key", "a/${filename}")]));
        // What lies in the file is no field.
        assert!(is_fine(&[("file", "x"), ("tagging", "<Tagging/>")]));
        assert!(check(b"").is_ok());
        assert!(check(b"form-data; name=\"key").is_err());
        assert!(check(b"form-data; name=\"key\"\r\n").is_err());
        let many = "form-data; name=\"a\"\r\n\r\n".repeat(FIELDS_MAX);
        assert!(check(many.as_bytes()).is_err());
    }
}
