//! The scope of a version 4 signature: `KEY/YYYYMMDD/REGION/s3/aws4_request`. `s3s` has one error
//! for most defects, and reports another service as not implemented. This module checks the scope
//! first, with the errors of AWS.

use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::{StatusCode, Uri};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::error::{custom, refuse};
use crate::gate::{ALGORITHM, SIGNATURE, pairs};

/// The service, and the end of a scope.
const SERVICE: &str = "s3";
const END: &str = "aws4_request";
/// The query parameters of a presigned URL other than its signature.
const PARAMETERS: [&str; 5] =
    ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders"];

/// Whether a region name is valid. Clients send other names from before regions had names, and then
/// sign for the region in the error.
fn is_region(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The defect of a credential and its scope, in the words of AWS. Any valid region is accepted; the
/// error for an invalid one names `own`.
fn wrong(credential: &str, own: &str) -> Option<String> {
    let parts: Vec<&str> = credential.split('/').collect();
    let Ok([key, date, region, service, end]) = <[&str; 5]>::try_from(parts) else {
        let form = "\"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\"";
        return Some(format!("the Credential is mal-formed; expecting {form}."));
    };
    for (part, what) in [(key, "Access Key (AKID)"), (region, "region")] {
        if part.is_empty() {
            return Some(format!("a non-empty {what} must be provided in the credential."));
        }
    }
    if !is_region(region) {
        return Some(format!("the region '{region}' is wrong; expecting '{own}'"));
    }
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        let form = "This date in the credential must be in the format \"yyyyMMdd\".";
        return Some(format!("incorrect date format \"{date}\". {form}"));
    }
    if service != SERVICE {
        let form = format!("This endpoint belongs to \"{SERVICE}\".");
        return Some(format!("incorrect service \"{service}\". {form}"));
    }
    let form = format!("This endpoint uses \"{END}\".");
    (end != END).then(|| format!("incorrect terminal \"{end}\". {form}"))
}

/// The error of AWS for the query of a presigned URL, and for the fields of a form.
fn of_query(message: String) -> S3Error {
    custom("AuthorizationQueryParametersError", StatusCode::BAD_REQUEST, message)
}

/// Checks the credential in a query or in a form.
///
/// # Errors
/// `AuthorizationQueryParametersError`.
pub(crate) fn check_parameter(credential: &str, own: &str) -> S3Result<()> {
    wrong(credential, own).map_or(Ok(()), |why| {
        Err(of_query(format!("Error parsing the X-Amz-Credential parameter; {why}")))
    })
}

fn check_query(uri: &Uri, own: &str) -> S3Result<()> {
    let value = |name: &str| pairs(uri).find(|(other, _)| other == name).map(|(_, value)| value);
    if value(SIGNATURE).is_none() {
        return Ok(());
    }
    let [algorithm, credential, ..] = PARAMETERS.map(value);
    if PARAMETERS.into_iter().any(|name| value(name).is_none()) {
        let message = "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.";
        return Err(of_query(message.to_owned()));
    }
    if algorithm.as_deref() != Some(ALGORITHM) {
        return Err(of_query(format!("X-Amz-Algorithm only supports \"{ALGORITHM}\"")));
    }
    check_parameter(credential.as_deref().unwrap_or_default(), own)
}

/// Checks the scope of a request's signature. Headers without one, or of other kinds, are left to
/// [`crate::gate::check_signed`]. `own` is the gateway's region.
///
/// # Errors
/// `AuthorizationHeaderMalformed`, `AuthorizationQueryParametersError`.
pub(crate) fn check(uri: &Uri, headers: &HeaderMap, own: &str) -> S3Result<()> {
    let Some(header) = headers.get(AUTHORIZATION) else { return check_query(uri, own) };
    let header = header.to_str().unwrap_or_default();
    let is_known = header.split_ascii_whitespace().next() == Some(ALGORITHM);
    let Some((_, rest)) = header.split_once("Credential=").filter(|_| is_known) else {
        return Ok(());
    };
    let credential = rest.split(',').next().unwrap_or_default().trim();
    wrong(credential, own).map_or(Ok(()), |why| {
        let message = format!("The authorization header is malformed; {why}");
        Err(refuse(S3ErrorCode::AuthorizationHeaderMalformed, message))
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const GOOD: &str = "AK/20260131/us-east-1/s3/aws4_request";
    const WRONG: [&str; 13] = [
        "",
        "AK",
        "AK/20260131/s3/aws4_request",
        "AK/20260131//s3/aws4_request",
        "/20260131/us-east-1/s3/aws4_request",
        "AK/us-east-1/s3/aws4_request",
        "AK/x/20260131/us-east-1/s3/aws4_request",
        "AK/20260131/us-east-1/s3/aws4_request/",
        "AK/2026013/us-east-1/s3/aws4_request",
        "AK/2026o131/us-east-1/s3/aws4_request",
        "AK/20260131/US/s3/aws4_request",
        "AK/20260131/us-east-1/ec2/aws4_request",
        "AK/20260131/us-east-1/s3/aws5_request",
    ];

    fn code(done: S3Result<()>) -> Option<String> {
        done.err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn scopes_in_headers() {
        let of = |credential: &str| {
            let text =
                format!("{ALGORITHM} Credential={credential}, SignedHeaders=host, Signature=s");
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&text).unwrap());
            code(check(&Uri::from_static("/b/k"), &headers, "pond"))
        };
        assert_eq!(of(GOOD), None);
        for wrong in WRONG {
            assert_eq!(of(wrong).as_deref(), Some("AuthorizationHeaderMalformed"), "{wrong}");
        }
    }

    #[test]
    fn scopes_in_queries() {
        let of = |algorithm: &str, credential: &str, rest: &str| {
            let credential = credential.replace('/', "%2F");
            let uri =
                format!("/b/k?X-Amz-Algorithm={algorithm}&X-Amz-Credential={credential}{rest}");
            code(check(&uri.parse().unwrap(), &HeaderMap::new(), "pond"))
        };
        let signed = "&X-Amz-Date=d&X-Amz-Expires=1&X-Amz-SignedHeaders=host&X-Amz-Signature=s";
        assert_eq!(of(ALGORITHM, GOOD, signed), None);
        assert_eq!(of("x", "y", ""), None, "no signature at all");
        let refused = Some("AuthorizationQueryParametersError");
        for wrong in WRONG {
            assert_eq!(of(ALGORITHM, wrong, signed).as_deref(), refused, "{wrong}");
        }
        assert_eq!(of(ALGORITHM, GOOD, "&X-Amz-Signature=s").as_deref(), refused);
        assert_eq!(of("AWS4-ECDSA-P256-SHA256", GOOD, signed).as_deref(), refused);
    }
}
