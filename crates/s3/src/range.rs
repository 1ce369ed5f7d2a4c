//! `Range` headers that `s3s` rejects. An invalid range, several ranges, and units other than bytes
//! are ignored, as AWS does and RFC 9110 (14.2) permits: the answer is the whole object. A range
//! that `s3s` reads differently from that RFC is rewritten to a form that it reads correctly.
//!
//! The header may be signed, and `s3s` checks signature and range in one call. So such a request is
//! first passed on unchanged, which authenticates the requester and has no effect, and then again
//! with its intended range and without its signature.

use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, RANGE};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use s3s::Body;

use crate::access::Admitted;
use crate::gate::{OLDER_SIGNATURE, SIGNATURE};
use crate::ops::tagging::plain;

/// The supported unit.
const UNIT: &str = "bytes";
/// The last position in an object that `s3s` accepts.
const LAST_MAX: u64 = i64::MAX.unsigned_abs();

/// The meaning of a header.
#[derive(Debug, PartialEq, Eq)]
enum Meant {
    /// As `s3s` reads it; also without a header.
    AsItIs,
    /// It is ignored.
    Nothing,
    /// The same as this header, which `s3s` reads correctly.
    Other(HeaderValue),
}

/// A request to be passed on a second time.
pub(crate) struct Again {
    head: Parts,
    admitted: Arc<Admitted>,
}

/// A number of any length; larger values than an object can have are capped.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX).min(LAST_MAX))
}

/// A range in the form for `s3s`; none if it is to be ignored.
fn one(text: &str) -> Option<String> {
    let (unit, range) = text.split_once('=')?;
    let (first, last) = range.trim().split_once('-')?;
    if !unit.trim().eq_ignore_ascii_case(UNIT) {
        return None;
    }
    match (first, last) {
        ("", last) => Some(format!("{UNIT}=-{}", number(last)?)),
        (first, "") => Some(format!("{UNIT}={}-", number(first)?)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| format!("{UNIT}={first}-{last}"))
        }
    }
}

/// The meaning of the `Range` header of a request.
fn meant(method: &Method, headers: &HeaderMap) -> Meant {
    let mut all = headers.get_all(RANGE).iter();
    let Some(first) = all.next().filter(|_| matches!(*method, Method::GET | Method::HEAD)) else {
        return Meant::AsItIs;
    };
    let text = first.to_str().ok().filter(|_| all.next().is_none());
    match text.and_then(one) {
        // `s3s` accepts more than valid ranges.
        None => Meant::Nothing,
        Some(range) if Some(range.as_str()) == text => Meant::AsItIs,
        Some(range) => range.parse().map_or(Meant::Nothing, Meant::Other),
    }
}

/// The path and query without the signature.
fn unsigned(uri: &Uri) -> Option<Uri> {
    let is_signature = |pair: &&str| {
        let name = plain(pair.split('=').next().unwrap_or_default()).unwrap_or_default();
        name == SIGNATURE || name == OLDER_SIGNATURE
    };
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !is_signature(pair));
    let query = pairs.collect::<Vec<_>>().join("&");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{query}", uri.path()).parse().ok()?);
    Uri::from_parts(parts).ok()
}

impl Again {
    /// Prepares the second call if `s3s` rejects the range; the first call notes the requester.
    pub(crate) fn of(head: &mut Parts) -> Option<Self> {
        let range = match meant(&head.method, &head.headers) {
            Meant::AsItIs => return None,
            Meant::Nothing => None,
            Meant::Other(range) => Some(range),
        };
        let uri = unsigned(&head.uri)?;
        let admitted = Arc::new(Admitted::default());
        head.extensions.insert(Arc::clone(&admitted));
        let mut head = head.clone();
        head.uri = uri;
        head.headers.remove(AUTHORIZATION);
        head.headers.remove(RANGE);
        if let Some(range) = range {
            head.headers.insert(RANGE, range);
        }
        Some(Self { head, admitted })
    }

    /// The request for the second call, if the first was admitted and then rejected.
    pub(crate) fn request(self, first: &Response<Body>) -> Option<Request<Body>> {
        // `s3s` reads `bytes=-` as the last zero bytes.
        let refusals = [StatusCode::BAD_REQUEST, StatusCode::RANGE_NOT_SATISFIABLE];
        let is_refused = refusals.contains(&first.status());
        let is_next = is_refused && self.admitted.who().is_some();
        is_next.then(|| Request::from_parts(self.head, Body::empty()))
    }
}

#[cfg(test)]
mod tests {
    use s3s::dto::Range;

    use super::*;

    fn told(ranges: &[&str]) -> Meant {
        let mut headers = HeaderMap::new();
        for range in ranges {
            headers.append(RANGE, HeaderValue::from_str(range).unwrap());
        }
        meant(&Method::GET, &headers)
    }

    #[test]
    fn what_is_no_range_is_ignored() {
        assert_eq!(told(&[]), Meant::AsItIs);
        for good in ["bytes=0-4", "bytes=4-", "bytes=-4", "bytes=-0"] {
            assert_eq!(told(&[good]), Meant::AsItIs, "{good}");
        }
        for wrong in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=4-3",
            "bytes=0-1,3-4",
            "bytes=0-4;",
            "bytes=+1-4",
            "bytes=0--4",
            "lines=0-4",
            "0-4",
        ] {
            assert_eq!(told(&[wrong]), Meant::Nothing, "{wrong}");
        }
        assert_eq!(told(&["bytes=0-1", "bytes=0-1"]), Meant::Nothing);
    }

    #[test]
    fn ranges_that_are_written_in_another_way_are_ranges() {
        let huge = "9".repeat(40);
        let most = i64::MAX;
        for (text, read) in [
            ("Bytes=0-4".to_owned(), "bytes=0-4".to_owned()),
            ("bytes= 0-4".to_owned(), "bytes=0-4".to_owned()),
            (format!("bytes=7-{huge}"), format!("bytes=7-{most}")),
            (format!("bytes={huge}-"), format!("bytes={most}-")),
            (format!("bytes=-{huge}"), format!("bytes=-{most}")),
        ] {
            assert!(Range::parse(&read).is_ok(), "{read}");
            assert_eq!(told(&[&text]), Meant::Other(read.parse().unwrap()), "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, HeaderValue::from_static("lines=1"));
        assert_eq!(meant(&Method::PUT, &headers), Meant::AsItIs);
    }

    #[test]
    fn a_request_is_called_again_without_its_signature() {
        let called = |uri: &str| unsigned(&uri.parse().unwrap()).unwrap().to_string();
        assert_eq!(called("/b/k"), "/b/k?");
        let signed =
            "/b/k%2F?partNumber=1&X-Amz-Date=d&X-Amz-Signature=s&%53ignature=t&x=X-Amz-Signature";
        assert_eq!(called(signed), "/b/k%2F?partNumber=1&X-Amz-Date=d&x=X-Amz-Signature");
        let head = || {
            let request = Request::get("/b/k").header(RANGE, "x").header(AUTHORIZATION, "y");
            request.body(()).unwrap().into_parts().0
        };
        let answer = |status: StatusCode| {
            let mut answer = Response::new(Body::empty());
            *answer.status_mut() = status;
            answer
        };
        let again = Again::of(&mut head()).unwrap();
        assert!(again.request(&answer(StatusCode::BAD_REQUEST)).is_none(), "nobody was let in");
        let mut first = head();
        let again = Again::of(&mut first).unwrap();
        let who = crate::access::Asker { tenant: None, bucket: Arc::default() };
        first.extensions.get::<Arc<Admitted>>().unwrap().set(who);
        let request = again.request(&answer(StatusCode::BAD_REQUEST)).unwrap();
        assert!(request.headers().is_empty());
        assert!(request.extensions().get::<Arc<Admitted>>().unwrap().who().is_some());
    }
}
