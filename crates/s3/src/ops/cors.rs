//! Cross-origin rules of buckets.

use std::sync::Arc;

use s3s::dto::{
    CORSRule, DeleteBucketCorsInput, DeleteBucketCorsOutput, GetBucketCorsInput,
    GetBucketCorsOutput, PutBucketCorsInput, PutBucketCorsOutput,
};
use s3s::{S3ErrorCode, S3Request};

use super::{Answer, answer};
use crate::access::who_asks;
use crate::door::Door;
use crate::error::refuse;
use crate::record::CorsRule;

/// Rules of a bucket at most, as in AWS.
const RULES_MAX: usize = 100;
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

fn kept(rule: CORSRule) -> CorsRule {
    CorsRule {
        id: rule.id,
        origins: rule.allowed_origins,
        methods: rule.allowed_methods,
        headers: rule.allowed_headers.unwrap_or_default(),
        expose: rule.expose_headers.unwrap_or_default(),
        max_age: rule.max_age_seconds,
    }
}

fn told(rule: &CorsRule) -> CORSRule {
    let list = |items: &Vec<String>| (!items.is_empty()).then(|| items.clone());
    CORSRule {
        id: rule.id.clone(),
        allowed_origins: rule.origins.clone(),
        allowed_methods: rule.methods.clone(),
        allowed_headers: list(&rule.headers),
        expose_headers: list(&rule.expose),
        max_age_seconds: rule.max_age,
    }
}

/// `PutBucketCors`.
pub(crate) async fn put(
    door: &Arc<Door>,
    request: S3Request<PutBucketCorsInput>,
) -> Answer<PutBucketCorsOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let rules: Vec<CorsRule> = input.cors_configuration.cors_rules.into_iter().map(kept).collect();
    let is_wrong = |rule: &CorsRule| {
        let stars = |text: &String| text.matches('*').count() > 1;
        rule.origins.is_empty()
            || rule.methods.is_empty()
            || rule.origins.iter().chain(&rule.headers).any(stars)
    };
    if rules.is_empty() || rules.len() > RULES_MAX || rules.iter().any(is_wrong) {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let unknown = rules
        .iter()
        .flat_map(|rule| &rule.methods)
        .find(|method| !METHODS.contains(&method.as_str()));
    if let Some(method) = unknown {
        let message =
            format!("Found unsupported HTTP method in CORS config. Unsupported method is {method}");
        return Err(refuse(S3ErrorCode::InvalidRequest, message));
    }
    door.change_bucket((&input.bucket, &who), move |record| record.cors = rules).await?;
    answer(PutBucketCorsOutput::default())
}

/// `GetBucketCors`.
pub(crate) async fn get(
    door: &Arc<Door>,
    request: S3Request<GetBucketCorsInput>,
) -> Answer<GetBucketCorsOutput> {
    let found = door.bucket(&request.input.bucket).await?;
    let record = found.ok_or(S3ErrorCode::NoSuchBucket)?;
    if record.cors.is_empty() {
        return Err(S3ErrorCode::NoSuchCORSConfiguration.into());
    }
    answer(GetBucketCorsOutput { cors_rules: Some(record.cors.iter().map(told).collect()) })
}

/// `DeleteBucketCors`.
pub(crate) async fn delete(
    door: &Arc<Door>,
    request: S3Request<DeleteBucketCorsInput>,
) -> Answer<DeleteBucketCorsOutput> {
    let who = who_asks(&request)?;
    door.change_bucket((&request.input.bucket, &who), |record| record.cors.clear()).await?;
    answer(DeleteBucketCorsOutput::default())
}

/// Whether a text matches a pattern with at most one star.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => {
            text.len() >= head.len() + tail.len() && text.starts_with(head) && text.ends_with(tail)
        }
    }
}

/// The rule for a request from an origin, with the headers that it wants to send.
pub(crate) fn rule<'a>(
    rules: &'a [CorsRule],
    (origin, method): (&str, &str),
    headers: Option<&str>,
) -> Option<&'a CorsRule> {
    let allowed = |rule: &CorsRule, header: &str| {
        let header = header.trim().to_ascii_lowercase();
        rule.headers.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), &header))
    };
    rules.iter().find(|rule| {
        rule.origins.iter().any(|pattern| matches(pattern, origin))
            && rule.methods.iter().any(|other| other == method)
            && headers.is_none_or(|all| {
                all.split(',')
                    .filter(|header| !header.trim().is_empty())
                    .all(|header| allowed(rule, header))
            })
    })
}

/// The headers that a rule adds to an answer.
pub(crate) fn headers(rule: &CorsRule, origin: &str) -> Vec<(&'static str, String)> {
    let is_any = rule.origins.iter().any(|pattern| pattern == "*");
    let allowed = if is_any { "*" } else { origin };
    let mut headers = vec![
        ("access-control-allow-origin", allowed.to_owned()),
        ("access-control-allow-methods", rule.methods.join(", ")),
        (
            "vary",
            "Origin, Access-Control-Request-Headers, Access-Control-Request-Method".to_owned(),
        ),
    ];
    if !is_any {
        headers.push(("access-control-allow-credentials", "true".to_owned()));
    }
    if !rule.expose.is_empty() {
        headers.push(("access-control-expose-headers", rule.expose.join(", ")));
    }
    if let Some(seconds) = rule.max_age {
        headers.push(("access-control-max-age", seconds.to_string()));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_is_taken() {
        let rule_of = |origin: &str, method: &str, header: &str| CorsRule {
            origins: vec![origin.to_owned()],
            methods: vec![method.to_owned()],
            headers: vec![header.to_owned()],
            ..CorsRule::default()
        };
        let rules = [rule_of("https://*.example.com", "GET", "x-*"), rule_of("*", "PUT", "*")];
        let found = |origin, method, headers| {
            rule(&rules, (origin, method), headers).map(|rule| rule.methods[0].as_str())
        };
        assert_eq!(found("https://a.example.com", "GET", Some("X-One, x-two")), Some("GET"));
        assert_eq!(found("https://a.example.com", "GET", Some("y")), None);
        assert_eq!(found("https://example.org", "GET", None), None);
        assert_eq!(found("https://example.org", "PUT", Some("anything")), Some("PUT"));
        assert!(!matches("ab*bc", "abc"));
    }
}
