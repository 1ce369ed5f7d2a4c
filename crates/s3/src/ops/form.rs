//! `POST` of an HTML form: `s3s` parses it, checks its signature and its policy, and calls
//! `PutObject`.

use std::sync::OnceLock;

use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, LOCATION};
use hyper::{StatusCode, Uri};
use memchr::memmem;
use millpond_env::Rng;
use s3s::dto::{PostObjectInput, Tagging};
use s3s::xml::{Deserialize as _, Deserializer};
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode, S3Request, S3Result, StdError};
use serde_json::Value;

use super::list::encoded;
use crate::error::refuse;
use crate::hash::unbase64;
use crate::http::escaped;
use crate::scope::check_parameter;

/// Errors of `s3s` for a condition that does not hold, and the text of AWS.
const UNMET: [&str; 2] = [
    "<Code>InvalidPolicyDocument</Code><Message>Policy condition",
    "<Code>InvalidPolicyDocument</Code><Message>Bucket in form field",
];
const UNMET_TOLD: &str =
    "<Code>AccessDenied</Code><Message>Invalid according to Policy: Policy condition";

/// The field with the file, which must be the last.
const FILE: &str = "file";
/// The placeholder for the file name in a key.
const FILE_NAME: &str = "${filename}";
/// Fields of a form at most, and bytes of a field's headers.
const FIELDS_MAX: usize = 1_000;
const HEAD_MAX: usize = 4 << 10;

/// Fields of a form that `s3s` ignores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    acl: Option<String>,
    /// In the format of the header `x-amz-tagging`.
    tagging: Option<String>,
}

/// A form in the version for `s3s`. It is written again, so that `s3s` cannot parse it differently
/// from this module, which decides who may read the stored object.
#[derive(Debug)]
pub(crate) struct Form {
    /// The boundary between its parts.
    boundary: String,
    /// Fields, file, and end.
    pieces: [Bytes; 3],
    pub(crate) fields: Fields,
    pub(crate) reply: Reply,
}

/// The answer that a form asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    key: String,
    /// URL to redirect the browser to.
    redirect: Option<String>,
    status: Option<i32>,
}

/// The `ETag` of the object that a form stored, and headers of the answer: `s3s` reports neither,
/// and may fail after storing.
#[derive(Debug, Default)]
pub(crate) struct Posted(OnceLock<(String, HeaderMap)>);

impl Posted {
    /// Notes that the object is stored.
    pub(crate) fn set(&self, etag: &str, headers: &HeaderMap) {
        let _ = self.0.set((etag.to_owned(), headers.clone()));
    }
}

/// A part of a form.
struct Part<'a> {
    /// The name in lower case.
    name: String,
    file_name: String,
    value: &'a [u8],
}

/// Parses a form with this `Content-Type`, at a gateway in the region `own`.
///
/// # Errors
/// `MalformedPOSTRequest`, `MalformedXML`; `InvalidArgument` for a policy without a signature, and
/// for a repeated field; `InvalidPolicyDocument` for an invalid end time of a policy,
/// `AuthorizationQueryParametersError` for an invalid credential.
pub(crate) fn read(form: &Bytes, content_type: &str, own: &str) -> S3Result<Form> {
    let delimiter = format!("\r\n--{}", boundary(content_type).ok_or_else(malformed)?);
    let (mut parts, mut fields) = (Vec::<Part<'_>>::new(), Fields::default());
    let begin = &delimiter.as_bytes()[2..];
    let mut rest = form.strip_prefix(b"\r\n").unwrap_or(&form[..]);
    rest = rest.strip_prefix(begin).ok_or_else(malformed)?;
    let file = loop {
        let (part, next) = part(rest, delimiter.as_bytes())?;
        rest = next;
        if part.name == FILE {
            break part;
        }
        if parts.iter().any(|other| other.name == part.name) {
            let message = format!("The form has the field '{}' more than once", part.name);
            return Err(refuse(S3ErrorCode::InvalidArgument, message));
        }
        match part.name.as_str() {
            "acl" => fields.acl = Some(String::from_utf8_lossy(part.value).into_owned()),
            "tagging" => fields.tagging = Some(tags(part.value)?),
            _ => {}
        }
        parts.push(part);
        if parts.len() > FIELDS_MAX {
            return Err(malformed());
        }
    };
    let has = |names: &[&str]| parts.iter().any(|part| names.contains(&part.name.as_str()));
    if has(&["policy"]) && !has(&["signature", "x-amz-signature"]) {
        let message = "Bucket POST must contain a field named 'Signature'.  If it is specified, please check the order of the fields.";
        return Err(refuse(S3ErrorCode::InvalidArgument, message));
    }
    if let Some(policy) = parts.iter().find(|part| part.name == "policy") {
        check_expiration(policy.value)?;
    }
    let credential = parts.iter().find(|part| part.name == "x-amz-credential");
    if let Some(credential) = credential.filter(|_| has(&["x-amz-signature"])) {
        check_parameter(&String::from_utf8_lossy(credential.value), own)?;
    }
    let reply = Reply::of(&parts, &file.file_name);
    let (boundary, pieces) = written(&parts, form.slice_ref(file.value), &file.file_name)?;
    Ok(Form { boundary, pieces, fields, reply })
}

/// Checks the end time of a policy: AWS accepts only ISO 8601 with the zone `Z`, `s3s` more. `s3s`
/// checks the rest of the policy.
fn check_expiration(policy: &[u8]) -> S3Result<()> {
    let document = std::str::from_utf8(policy).ok().and_then(unbase64);
    let document = document.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let told =
        document.as_ref().and_then(|document| document.get("expiration")).and_then(Value::as_str);
    if let Some(told) = told
        && !(told.ends_with('Z') && told.as_bytes().get(10) == Some(&b'T'))
    {
        let message = format!(
            "Invalid Policy: Invalid 'expiration' value: '{told}': use a time such as \
             2030-01-31T12:00:00.000Z"
        );
        return Err(refuse(S3ErrorCode::InvalidPolicyDocument, message));
    }
    Ok(())
}

/// The boundary between parts according to a `Content-Type`.
fn boundary(content_type: &str) -> Option<&str> {
    let parameter = content_type.split(';').skip(1).find_map(|field| {
        let (name, value) = field.trim().split_once('=')?;
        name.trim_end().eq_ignore_ascii_case("boundary").then(|| value.trim())
    })?;
    let quoted = parameter.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    Some(quoted.unwrap_or(parameter)).filter(|text| !text.is_empty())
}

/// The part after a delimiter, and the input after the next delimiter.
fn part<'a>(rest: &'a [u8], delimiter: &[u8]) -> S3Result<(Part<'a>, &'a [u8])> {
    let rest = rest.strip_prefix(b"\r\n").ok_or_else(malformed)?;
    let head = &rest[..rest.len().min(HEAD_MAX)];
    let head = &head[..memmem::find(head, b"\r\n\r\n").ok_or_else(malformed)?];
    let body = &rest[head.len() + 4..];
    // The line break of the head may also be the end of an empty value.
    let end = memmem::find(&rest[head.len() + 2..], delimiter).ok_or_else(malformed)?;
    let value = &body[..end.saturating_sub(2)];
    let head = std::str::from_utf8(head).map_err(|_| malformed())?;
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let is_named = |name: &str| name.trim().eq_ignore_ascii_case("content-disposition");
    let (_, told) = lines.find(|(name, _)| is_named(name)).ok_or_else(malformed)?;
    let name = parameter(told, "name").ok_or_else(malformed)?.to_ascii_lowercase();
    if !told.trim_start().starts_with("form-data")
        || !name.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(malformed());
    }
    let file_name = parameter(told, "filename").unwrap_or_default();
    // Without the client's folders.
    let file_name = file_name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    Ok((Part { name, file_name, value }, &rest[head.len() + 2 + end + delimiter.len()..]))
}

/// A quoted parameter of a `Content-Disposition`.
fn parameter<'a>(told: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = told;
    loop {
        let (_, parameters) = rest.split_once(';')?;
        let (found, value) = parameters.split_once("=\"")?;
        let (value, behind) = value.split_once('"')?;
        if found.trim().eq_ignore_ascii_case(name) {
            return Some(value).filter(|value| !value.is_empty());
        }
        rest = behind;
    }
}

/// Writes the form again, with the file's name inserted into the key.
fn written(parts: &[Part<'_>], file: Bytes, file_name: &str) -> S3Result<(String, [Bytes; 3])> {
    let mut random = [0; 16];
    Rng::fill_from_os(&mut random).map_err(|_| S3ErrorCode::InternalError)?;
    let boundary = format!("millpond-{:032x}", u128::from_be_bytes(random));
    let mut head = Vec::new();
    let begin = |head: &mut Vec<u8>, name: &str| {
        let disposition = format!("Content-Disposition: form-data; name=\"{name}\"");
        head.extend_from_slice(format!("--{boundary}\r\n{disposition}\r\n\r\n").as_bytes());
    };
    for part in parts {
        begin(&mut head, &part.name);
        let value = std::str::from_utf8(part.value).map_err(|_| malformed())?;
        if part.name == "key" {
            head.extend_from_slice(value.replace(FILE_NAME, file_name).as_bytes());
        } else {
            head.extend_from_slice(value.as_bytes());
        }
        head.extend_from_slice(b"\r\n");
    }
    begin(&mut head, FILE);
    let tail = format!("\r\n--{boundary}--\r\n");
    Ok((boundary, [head.into(), file, tail.into()]))
}

impl Form {
    /// Its `Content-Type`.
    pub(crate) fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={}", self.boundary)
    }

    /// The total length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// The body; the file is not copied.
    pub(crate) fn body(self) -> Body {
        let pieces = self.pieces.into_iter().map(|piece| Ok::<_, StdError>(Frame::data(piece)));
        Body::http_body(StreamBody::new(futures_util::stream::iter(pieces)))
    }
}

/// Converts the XML of a field to the format of the header `x-amz-tagging`.
fn tags(document: &[u8]) -> S3Result<String> {
    let mut xml = Deserializer::new(document);
    let read =
        Tagging::deserialize(&mut xml).and_then(|tagging| xml.expect_eof().map(|()| tagging));
    let tagging = read.map_err(|_| S3ErrorCode::MalformedXML)?;
    let text =
        |field: &Option<String>| encoded(field.as_deref().unwrap_or_default().as_bytes(), true);
    let pairs =
        tagging.tag_set.iter().map(|tag| format!("{}={}", text(&tag.key), text(&tag.value)));
    Ok(pairs.collect::<Vec<_>>().join("&"))
}

fn malformed() -> S3Error {
    S3ErrorCode::MalformedPOSTRequest.into()
}

/// Adds data of a form that `s3s` does not pass on: the length of an empty file, and ignored
/// fields.
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

impl Reply {
    fn of(parts: &[Part<'_>], file_name: &str) -> Self {
        let value = |name: &str| {
            let part = parts.iter().find(|part| part.name == name)?;
            Some(String::from_utf8_lossy(part.value).into_owned())
        };
        Self {
            key: value("key").unwrap_or_default().replace(FILE_NAME, file_name),
            redirect: value("success_action_redirect").or_else(|| value("redirect")),
            status: value("success_action_status").and_then(|status| status.parse().ok()),
        }
    }

    /// The URL to redirect the browser to, if any: an invalid one is ignored, as with AWS.
    fn redirect(&self, bucket: &str, etag: &str) -> Option<HeaderValue> {
        let url = self.redirect.as_deref()?;
        // Other than ASCII characters are encoded, as browsers do.
        let sign = |letter: char| {
            if letter.is_ascii() {
                letter.into()
            } else {
                encoded(letter.to_string().as_bytes(), true)
            }
        };
        let url: String = url.chars().map(sign).collect();
        let parsed: Uri = url.parse().ok()?;
        parsed.scheme().and(parsed.authority())?;
        let (url, fragment) = url.split_at(url.find('#').unwrap_or(url.len()));
        let join = match url.split_once('?') {
            None => "?",
            Some((_, query)) if query.is_empty() || query.ends_with('&') => "",
            Some(_) => "&",
        };
        let value = |text: &str| encoded(text.as_bytes(), true).replace('/', "%2F");
        let (bucket, key, etag) = (value(bucket), value(&self.key), value(&format!("\"{etag}\"")));
        format!("{url}{join}bucket={bucket}&key={key}&etag={etag}{fragment}").parse().ok()
    }

    /// The answer to a form: location and `ETag` of the object, or the error with the text of AWS.
    /// `url` is that of the bucket.
    pub(crate) fn answered(
        &self,
        answer: HttpResponse,
        posted: &Posted,
        (bucket, url): (&str, &str),
    ) -> HttpResponse {
        let Some((etag, headers)) = posted.0.get() else { return reworded(answer) };
        let location = format!("{url}{}", encoded(self.key.as_bytes(), true));
        let (mut told, redirect) = (HttpResponse::new(Body::empty()), self.redirect(bucket, etag));
        *told.status_mut() = match self.status {
            _ if redirect.is_some() => StatusCode::SEE_OTHER,
            Some(200) => StatusCode::OK,
            Some(201) => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        };
        *told.headers_mut() = headers.clone();
        if told.status() == StatusCode::CREATED {
            told.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
            let [location, bucket, key] = [&location, bucket, &self.key].map(escaped);
            let fields =
                format!("<Location>{location}</Location><Bucket>{bucket}</Bucket><Key>{key}</Key>");
            let etag = format!("<ETag>&quot;{etag}&quot;</ETag>");
            let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
            *told.body_mut() =
                Body::from(format!("{head}<PostResponse>{fields}{etag}</PostResponse>"));
        }
        let headers = told.headers_mut();
        headers.extend(format!("\"{etag}\"").parse().ok().map(|value| (ETAG, value)));
        headers.extend(redirect.or_else(|| location.parse().ok()).map(|value| (LOCATION, value)));
        told
    }
}

/// Rewords the rejection of a form like AWS: a violated policy means access denied.
fn reworded(mut response: HttpResponse) -> HttpResponse {
    let Some(bytes) = response.body().bytes() else { return response };
    let text = String::from_utf8_lossy(&bytes);
    if let Some(unmet) = UNMET.into_iter().find(|condition| text.contains(condition)) {
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
    use crate::hash::base64;

    const TYPE: &str = "multipart/form-data; boundary=\"b\"";

    fn read_form(form: &Bytes, content_type: &str) -> S3Result<Form> {
        read(form, content_type, "pond")
    }

    fn part(name: &str, value: &str) -> String {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn form(fields: &[(&str, &str)]) -> Bytes {
        let text: String = fields.iter().map(|(name, value)| part(name, value)).collect();
        format!("{text}--b--\r\n").into()
    }

    /// The form for `s3s`, with `b` as its boundary.
    fn text(form: &Form) -> String {
        let all = form.pieces.concat();
        assert_eq!(all.len(), form.len());
        String::from_utf8(all).unwrap().replace(&form.boundary, "b")
    }

    #[test]
    fn fields_that_are_passed_over_are_read() {
        let document = "<Tagging>\r\n<TagSet><Tag><Key>a b</Key><Value>1&amp;2</Value></Tag></TagSet></Tagging>";
        let fields =
            [("key", "k"), ("acl", "public-read"), ("tagging", document), ("file", "bytes")];
        let found = read_form(&form(&fields), TYPE).unwrap();
        assert_eq!(text(&found).as_bytes(), form(&fields));
        let (acl, tagging) = (Some("public-read".to_owned()), Some("a%20b=1%262".to_owned()));
        assert_eq!(found.fields, Fields { acl, tagging });
        // Fields after the file are ignored.
        let found = read_form(&form(&[("file", "x"), ("tagging", "<Tagging/>")]), TYPE).unwrap();
        assert_eq!(found.fields, Fields::default());
        assert_eq!(text(&found).as_bytes(), form(&[("file", "x")]));
        assert!(read_form(&form(&[("tagging", "<Tagging>"), ("file", "")]), TYPE).is_err());
    }

    #[test]
    fn what_lies_in_a_value_is_no_field() {
        let inner = "form-data; name=\"acl\"\r\n\r\npublic-read\r\n--c\r\n--b";
        let fields = [("acl", "private"), ("submit", inner), ("empty", ""), ("file", inner)];
        // A value ends at a boundary, even one that is not on a line of its own.
        let fields = fields.map(|(name, value)| (name, value.trim_end_matches("\r\n--b")));
        let found = read_form(&form(&fields), TYPE).unwrap();
        assert_eq!(found.fields.acl.as_deref(), Some("private"));
        assert_eq!(text(&found).as_bytes(), form(&fields));
        for twice in [[("acl", "private"), ("acl", "public-read")], [("k", "1"), ("K", "2")]] {
            assert!(read_form(&form(&[&twice[..], &[("file", "")]].concat()), TYPE).is_err());
        }
    }

    #[test]
    fn the_name_of_the_file_goes_into_the_key() {
        let with = |key: &str, file: &str| {
            let file = format!("file\"; filename=\"{file}");
            text(&read_form(&form(&[("Key", key), (&file, "${filename}")]), TYPE).unwrap())
        };
        let text = with("a/${filename}", "C:\\x\\cat.png");
        assert!(text.contains("\r\n\r\na/cat.png\r\n"), "{text}");
        assert!(text.ends_with("${filename}\r\n--b--\r\n"), "the file stays as it is");
        assert!(with("${filename}", "").contains("\r\n\r\n\r\n"));
    }

    /// The answer to a stored form: status, location of the object or the redirection, and
    /// document.
    fn answered(fields: &[(&str, &str)]) -> (u16, String, String) {
        let all = [&[("key", "a b/\u{fc}&")][..], fields, &[("file", "x")]].concat();
        let reply = read_form(&form(&all), TYPE).unwrap().reply;
        let posted = Posted::default();
        posted.set("e", &HeaderMap::new());
        let told = reply.answered(HttpResponse::new(Body::empty()), &posted, ("b", "http://h/b/"));
        assert_eq!(told.headers()[ETAG], "\"e\"");
        let location = told.headers()[LOCATION].to_str().unwrap().to_owned();
        let body = told.body().bytes().unwrap_or_default();
        (told.status().as_u16(), location, String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn answers_tell_where_the_object_is() {
        let place = "http://h/b/a%20b/%C3%BC%26".to_owned();
        for (wanted, status) in [("200", 200), ("204", 204), ("302", 204)] {
            let told = answered(&[("success_action_status", wanted)]);
            assert_eq!(told, (status, place.clone(), String::new()), "{wanted}");
        }
        let (status, location, document) = answered(&[("success_action_status", "201")]);
        assert_eq!((status, &location), (201, &place));
        let inner =
            "<Bucket>b</Bucket><Key>a b/\u{fc}&amp;</Key><ETag>&quot;e&quot;</ETag></PostResponse>";
        let wanted = format!("<PostResponse><Location>{place}</Location>{inner}");
        assert!(document.ends_with(&wanted), "{document}");
    }

    #[test]
    fn browsers_are_sent_where_there_is_a_url() {
        let query = "bucket=b&key=a%20b%2F%C3%BC%26&etag=%22e%22";
        for (url, before, behind) in [
            ("http://x/done", "http://x/done?", ""),
            ("http://x", "http://x?", ""),
            ("https://x/?a=1", "https://x/?a=1&", ""),
            ("https://x/?", "https://x/?", ""),
            ("https://x/\u{fc}?a=1&#there", "https://x/%C3%BC?a=1&", "#there"),
            ("app://done", "app://done?", ""),
        ] {
            let told =
                answered(&[("success_action_redirect", url), ("success_action_status", "201")]);
            assert_eq!(told, (303, format!("{before}{query}{behind}"), String::new()), "{url}");
        }
        assert_eq!(answered(&[("redirect", "http://x")]).0, 303);
        for wrong in
            ["", "nowhere", "/done", "http://a b/", "http://", "mailto:a@b", "http://x/\r\nY: z"]
        {
            let told =
                answered(&[("success_action_redirect", wrong), ("success_action_status", "200")]);
            assert_eq!(told.0, 200, "{wrong}");
        }
    }

    #[test]
    fn credentials_of_forms_have_a_scope() {
        let of = |credential: &str| {
            let fields = [("x-amz-credential", credential), ("x-amz-signature", "s"), ("file", "")];
            read_form(&form(&fields), TYPE)
                .map(drop)
                .map_err(|error| error.code().as_str().to_owned())
        };
        assert_eq!(of("a/20260131/r/s3/aws4_request"), Ok(()));
        for wrong in ["a/20260131/s3/aws4_request", "a/20260131/r/ec2/aws4_request", "a"] {
            assert_eq!(of(wrong), Err("AuthorizationQueryParametersError".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn policies_end_at_a_time_of_iso_8601() {
        let of = |time: &str| {
            let policy = base64(format!("{{\"expiration\": \"{time}\"}}").as_bytes());
            let fields = [("policy", policy.as_str()), ("signature", "x"), ("file", "")];
            read_form(&form(&fields), TYPE).map(drop).map_err(|error| error.code().clone())
        };
        for good in ["2030-01-31T12:00:00Z", "2030-01-31T12:00:00.000Z"] {
            assert_eq!(of(good), Ok(()), "{good}");
        }
        for wrong in ["2030-01-31 12:00:00.123456+00:00", "2030-01-31T12:00:00+00:00", "Z", "later"]
        {
            assert_eq!(of(wrong), Err(S3ErrorCode::InvalidPolicyDocument), "{wrong}");
        }
    }

    #[test]
    fn forms_that_cannot_be() {
        let good = part("key", "k") + &part("file", "x");
        let of = |text: &str| read_form(&text.to_owned().into(), TYPE).is_ok();
        assert!(of(&format!("{good}--b--")) && of(&format!("\r\n{good}--b\r\n")));
        for wrong in ["", "--b", "--b--", "--b\r\n", "--c\r\n", &good[3..], &good[..40], &good] {
            assert!(!of(wrong), "{wrong}");
        }
        for name in ["", "a b", "a\nb", "\u{e4}", "a\r\nfile"] {
            assert!(!of(&format!("{}{good}--b--", part(name, "x"))), "{name}");
        }
        assert!(!of(&format!("--b\r\nX: y\r\n\r\n\r\n{good}--b--")), "a part without a name");
        let many: String = (0..=FIELDS_MAX).map(|n| part(&n.to_string(), "")).collect();
        assert!(!of(&format!("{many}{good}--b--")));
        for wrong in ["multipart/form-data", "multipart/form-data; boundary=", "x; boundary=\"\""] {
            assert!(read_form(&form(&[("file", "x")]), wrong).is_err(), "{wrong}");
        }
    }
}
