//! The layout digest: a hash of everything that must be equal for stored blocks to mean the same.

use std::fmt::Write as _;

use millpond_client::ClientError;
use millpond_types::LayoutDigest;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Digest of a layout description in JSON: SHA-256 of its canonical form (keys sorted, no spaces,
/// characters beyond ASCII escaped), as `millpond.layout_digest` computes it in Python. Numbers
/// should be integers: languages print fractions differently.
///
/// # Errors
/// `InvalidArgument` when the text is no JSON object.
pub fn layout_digest(json: &str) -> Result<LayoutDigest, ClientError> {
    let bad = |fix: String| ClientError::Argument { field: "layout", fix };
    let value: Value = serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
    if !value.is_object() {
        return Err(
            bad("write a JSON object, such as {\"model\": \"…\", \"dtype\": \"…\"}".into()),
        );
    }
    // serde_json keeps object keys sorted unless a feature changes that.
    let mut canonical = String::new();
    for c in value.to_string().chars() {
        if c.is_ascii() {
            canonical.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(canonical, "\\u{unit:04x}");
            }
        }
    }
    Ok(LayoutDigest(Sha256::digest(canonical.as_bytes()).into()))
}

#[cfg(test)]
mod tests {
    use super::layout_digest;

    #[test]
    fn equal_descriptions_have_equal_digests() {
        let one = layout_digest(r#"{"b": [1, 2], "a": {"x": "é😀"}}"#).unwrap();
        let two = layout_digest(r#"{"a":{"x":"é😀"},"b":[1,2]}"#).unwrap();
        assert_eq!(one, two);
        // From Python: hashlib.sha256(json.dumps(…, sort_keys=True, separators=(",", ":"))…).
        let first = one.0.iter().take(8).fold(0, |all, byte| (all << 8) | u64::from(*byte));
        assert_eq!(format!("{first:016x}"), GOLDEN);
        assert!(layout_digest("[1]").is_err());
        assert!(layout_digest("{").is_err());
    }

    const GOLDEN: &str = "01688c4bb61475d1";
}
