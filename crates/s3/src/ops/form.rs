//! `POST` of an HTML form: `s3s` takes it apart, checks its signature and its policy, and gives what is left to `PutObject`.

use std::ops::Range;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, LOCATION};
use s3s::dto::{PostObjectInput, Tagging};
use s3s::xml::{Deserialize as _, Deserializer};
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode, S3Request, S3Result};

use super::list::encoded;
use crate::error::refuse;

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
/// What stands for the name of the file in a key.
const FILE_NAME: &str = "${filename}";
/// Fields of a form at most, the headers of one, and what of its value is looked at.
const FIELDS_MAX: usize = 1_000;
const HEAD_MAX: usize = 4 << 10;
const VALUE_MAX: usize = 16 << 10;

/// What `s3s` passes over in a form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    acl: Option<String>,
    /// As the header `x-amz-tagging` has it.
    tagging: Option<String>,
}

/// A form with the name of its file in its key, where that asks for it, and the fields that `s3s` passes over.
///
/// # Errors
/// `MalformedPOSTRequest`, `MalformedXML`; `InvalidArgument` for a policy without a signature.
pub(crate) fn read(form: Bytes) -> S3Result<(Bytes, Fields)> {
    let (mut fields, mut key, mut at) = (Fields::default(), None, 0);
    let (mut has_policy, mut is_signed) = (false, false);
    for _ in 0..FIELDS_MAX {
        let Some(next) = find(&form[at..], NAME.as_bytes()) else { return Ok((form, fields)) };
        at += next + NAME.len();
        let head = &form[at..form.len().min(at + HEAD_MAX)];
        let name = head.get(..find(head, b"\"").ok_or_else(malformed)?).unwrap_or_default();
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let end = find(head, b"\r\n\r\n").ok_or_else(malformed)?;
        if name == FILE && has_policy && !is_signed {
            let message = "Bucket POST must contain a field named 'Signature'.  If it is specified, please check the order of the fields.";
            return Err(refuse(S3ErrorCode::InvalidArgument, message));
        }
        if name == FILE {
            let file = file_name(&head[..end]);
            return Ok((key.map_or(form.clone(), |key| named(&form, key, &file)), fields));
        }
        at += end + 4;
        let value = &form[at..form.len().min(at + VALUE_MAX)];
        let value = &value[..find(value, b"\r\n").unwrap_or(value.len())];
        match name.as_str() {
            "acl" => fields.acl = Some(String::from_utf8_lossy(value).into_owned()),
            "policy" => has_policy = true,
            "signature" | "x-amz-signature" => is_signed = true,
            "tagging" => fields.tagging = Some(tags(value)?),
            "key" if find(value, FILE_NAME.as_bytes()).is_some() => {
                key = Some(at..at + value.len());
            }
            _ => {}
        }
    }
    Err(malformed())
}

/// The name of the file by its headers, without folders of the client.
fn file_name(head: &[u8]) -> String {
    const BEGIN: &[u8] = b"; filename=\"";
    let Some(at) = find(head, BEGIN) else { return String::new() };
    let rest = &head[at + BEGIN.len()..];
    let name = String::from_utf8_lossy(&rest[..find(rest, b"\"").unwrap_or(0)]).into_owned();
    name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned()
}

/// The form with a file's name in its key.
fn named(form: &Bytes, key: Range<usize>, file: &str) -> Bytes {
    let value = String::from_utf8_lossy(&form[key.clone()]).replace(FILE_NAME, file);
    [&form[..key.start], value.as_bytes(), &form[key.end..]].concat().into()
}

/// The document of a field as the header `x-amz-tagging` has it.
fn tags(document: &[u8]) -> S3Result<String> {
    let mut xml = Deserializer::new(document);
    let read = Tagging::deserialize(&mut xml).and_then(|it| xml.expect_eof().map(|()| it));
    let tagging = read.map_err(|_| S3ErrorCode::MalformedXML)?;
    let text = |it: &Option<String>| encoded(it.as_deref().unwrap_or_default().as_bytes(), true);
    let pairs =
        tagging.tag_set.iter().map(|tag| format!("{}={}", text(&tag.key), text(&tag.value)));
    Ok(pairs.collect::<Vec<_>>().join("&"))
}

fn malformed() -> S3Error {
    S3ErrorCode::MalformedPOSTRequest.into()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|it| it == what)
}

/// Adds what `s3s` does not tell of a form: the length of an empty file, and fields that it passes over.
pub(crate) fn completed(request: &mut S3Request<PostObjectInput>) {
    let fields = request.extensions.remove::<Fields>().unwrap_or_default();
    let input = &mut request.input;
    input.content_length.get_or_insert(0);
    if let Some(acl) = fields.acl {
        input.acl = Some(acl.into());
    }
    if fields.tagging.is_some() {
        input.tagging = fields.tagging;
    }
}

/// Where the browser is sent, an `ETag` has its quotes.
fn quote_etag(headers: &mut HeaderMap) {
    const ETAG: &str = "&etag=";
    let location = headers.get(LOCATION).and_then(|it| it.to_str().ok());
    let quoted = location.and_then(|it| it.rsplit_once(ETAG));
    let quoted = quoted.filter(|(_, etag)| !etag.starts_with("%22"));
    if let Some((rest, etag)) = quoted
        && let Ok(value) = format!("{rest}{ETAG}%22{etag}%22").parse()
    {
        headers.insert(LOCATION, value);
    }
}

/// The answer to a form, in AWS's words: who does not keep to a policy is denied.
pub(crate) fn reworded(mut response: HttpResponse) -> HttpResponse {
    quote_etag(response.headers_mut());
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

    fn part(name: &str, value: &str) -> String {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn form(fields: &[(&str, &str)]) -> Bytes {
        let text: String = fields.iter().map(|(name, value)| part(name, value)).collect();
        text.into()
    }

    #[test]
    fn fields_that_are_passed_over_are_read() {
        let document =
            "<Tagging><TagSet><Tag><Key>a b</Key><Value>1&amp;2</Value></Tag></TagSet></Tagging>";
        let fields =
            [("key", "k"), ("Acl", "public-read"), ("tagging", document), ("file", "bytes")];
        let (bytes, found) = read(form(&fields)).unwrap();
        assert_eq!(bytes, form(&fields));
        let (acl, tagging) = (Some("public-read".to_owned()), Some("a%20b=1%262".to_owned()));
        assert_eq!(found, Fields { acl, tagging });
        // What lies in the file is no field.
        let (_, found) = read(form(&[("file", "x"), ("tagging", "<Tagging/>")])).unwrap();
        assert_eq!(found, Fields::default());
        assert!(read(form(&[("tagging", "<Tagging>")])).is_err());
    }

    #[test]
    fn the_name_of_the_file_goes_into_the_key() {
        let with = |key: &str, file: &str| {
            let file = format!("file\"; filename=\"{file}");
            let (bytes, _) = read(form(&[("key", key), (&file, "${filename}")])).unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        let text = with("a/${filename}", "C:\\x\\cat.png");
        assert!(text.contains("\r\n\r\na/cat.png\r\n"), "{text}");
        assert!(text.ends_with("${filename}\r\n"), "the file stays as it is");
        assert!(with("${filename}", "").contains("\r\n\r\n\r\n"));
    }

    #[test]
    fn forms_that_cannot_be() {
        assert!(read(Bytes::new()).is_ok());
        for wrong in ["form-data; name=\"key", "form-data; name=\"key\"\r\n"] {
            assert!(read(Bytes::from_static(wrong.as_bytes())).is_err(), "{wrong}");
        }
        let many = "form-data; name=\"a\"\r\n\r\n".repeat(FIELDS_MAX);
        assert!(read(many.into()).is_err());
    }
}
