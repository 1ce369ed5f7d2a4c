//! Quotas of transient rules, which are quotas of the directories of their prefixes. Metas enforce
//! them in the transaction of each write, including writes of mounts.

use millpond_client::{Backing, ClientError, Mode, Rule, Volume};
use millpond_types::meta::object::names_of_key;
use millpond_types::meta::{MetaError, QuotaLimits};

/// Permission bits of directories that are made for a quota.
const MODE: u16 = 0o755;

fn wrong(fix: impl Into<String>) -> ClientError {
    ClientError::Argument { field: "quota", fix: fix.into() }
}

/// The directories from the bucket down to a prefix; the prefix ends with `/` or is empty.
fn dirs(bucket: &str, prefix: &[u8]) -> Result<Vec<String>, ClientError> {
    let mut all = vec![format!("/{bucket}")];
    if prefix.is_empty() {
        return Ok(all);
    }
    let Some(key) = prefix.strip_suffix(b"/").filter(|key| !key.is_empty()) else {
        return Err(wrong(
            "a quota applies to a directory: use a prefix that ends with '/', or \"\" for the \
             whole bucket",
        ));
    };
    let names = names_of_key(key).map_err(|error| wrong(error.to_string()))?;
    for name in names {
        let above = all.last().cloned().unwrap_or_default();
        all.push(format!("{above}/{name}"));
    }
    Ok(all)
}

/// Sets the quota of a rule. `before` is the backing of the bucket, including the old rule of this
/// prefix.
///
/// # Errors
/// `InvalidArgument` for a rule that is not transient, for a prefix that is not a directory, and
/// for the first quota of a directory that is not empty; and as for every call. Then only empty
/// directories were made.
pub(super) fn set(
    volume: &Volume,
    (bucket, before): (&str, &Backing),
    rule: &Rule,
) -> Result<(), ClientError> {
    let had = before
        .rules
        .iter()
        .find(|other| other.prefix == rule.prefix)
        .map_or(0, |other| other.quota_bytes);
    if rule.quota_bytes == 0 {
        return if had == 0 { Ok(()) } else { take(volume, bucket, &rule.prefix) };
    }
    if rule.mode != Mode::Transient {
        return Err(wrong(
            "only a transient rule can have a quota: `--cache` of the bucket limits the objects of \
             a backend",
        ));
    }
    let dirs = dirs(bucket, &rule.prefix)?;
    for dir in dirs.iter().skip(1) {
        match volume.mkdir(dir, MODE) {
            Ok(()) | Err(ClientError::File { source: MetaError::Exists, .. }) => {}
            Err(error) => return Err(error),
        }
        if !volume.stat(dir)?.is_dir() {
            let key = dir.trim_start_matches('/');
            return Err(wrong(format!(
                "'{key}' is an object: a quota needs a directory of this name"
            )));
        }
    }
    limit(volume, dirs.last().map_or("/", String::as_str), rule.quota_bytes).map_err(|error| {
        match error {
            ClientError::File { source: MetaError::NotEmpty, .. } => wrong(
                "the directory already has content, and a quota must count from the first object: \
                 remove the content first, or use another prefix",
            ),
            error => error,
        }
    })
}

/// Removes the quota of a rule.
///
/// # Errors
/// As for every call.
pub(super) fn take(volume: &Volume, bucket: &str, prefix: &[u8]) -> Result<(), ClientError> {
    let dirs = dirs(bucket, prefix)?;
    match limit(volume, dirs.last().map_or("/", String::as_str), 0) {
        // The directory no longer exists.
        Err(ClientError::File { source: MetaError::NotFound, .. }) => Ok(()),
        done => done,
    }
}

/// Bounds the bytes of a directory; 0 for no bound. A bound of its inodes stays.
fn limit(volume: &Volume, dir: &str, bytes: u64) -> Result<(), ClientError> {
    let own = volume.stat(dir)?.ino;
    let before = volume.quota(dir)?.filter(|quota| quota.root == own);
    let inodes = before.map_or(0, |quota| quota.limits.inodes);
    volume.set_quota(dir, QuotaLimits { bytes, inodes })
}

#[cfg(test)]
mod tests {
    use super::dirs;

    #[test]
    fn a_prefix_with_a_quota_is_a_directory() {
        assert_eq!(dirs("b", b"").unwrap(), ["/b"]);
        assert_eq!(dirs("b", b"a/c/").unwrap(), ["/b", "/b/a", "/b/a/c"]);
        assert_eq!(dirs("b", b"a//").unwrap(), ["/b", "/b/a", "/b/a/.%empty"]);
        for wrong in ["a", "/", "a/b"] {
            assert!(dirs("b", wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
