//! The `-o` options of the cache.

use std::path::PathBuf;

use millpond_types::ByteSize;

use crate::options::{Mode, OptionError};

/// With less, a mount would only fill and evict.
const SIZE_MIN: u64 = 1 << 20;
/// A larger value is a typing error.
const SIZE_MAX: u64 = 1 << 50;

/// A mount's local cache of whole files, from its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The folder; none in a mount without a cache.
    pub folder: Option<PathBuf>,
    /// The largest total size of its files in bytes; 0 if not set.
    pub size: u64,
    /// Whether the kernel reads files of the cache by itself, where it can.
    pub passthrough: bool,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { folder: None, size: 0, passthrough: true }
    }
}

fn wrong(option: String, fix: &str) -> OptionError {
    OptionError { option, fix: fix.to_owned() }
}

impl CacheOptions {
    /// Applies an option if it is one of these.
    pub(crate) fn apply(
        &mut self,
        name: &str,
        value: Option<&str>,
    ) -> Option<Result<(), OptionError>> {
        match (name, value) {
            ("passthrough", None) => self.passthrough = true,
            ("nopassthrough", None) => self.passthrough = false,
            ("cache", Some(folder)) => {
                let path = PathBuf::from(folder);
                if !path.is_absolute() {
                    let fix =
                        "give the absolute path of a folder, such as cache=/var/cache/millpond";
                    return Some(Err(wrong(format!("cache={folder}"), fix)));
                }
                self.folder = Some(path);
            }
            ("cache_size", Some(size)) => {
                let parsed = size.parse::<ByteSize>().ok().map(|size| size.0);
                let Some(bytes) = parsed.filter(|bytes| (SIZE_MIN..=SIZE_MAX).contains(bytes))
                else {
                    let fix =
                        "use a number of bytes with a unit, such as 200GiB, from 1MiB to 1PiB";
                    return Some(Err(wrong(format!("cache_size={size}"), fix)));
                };
                self.size = bytes;
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Checks that these options fit the mount's mode.
    pub(crate) fn check(&self, mode: Mode) -> Result<(), OptionError> {
        let Some(folder) = &self.folder else {
            if self.size > 0 {
                let option =
                    format!("cache_size={}", ByteSize(self.size).to_string().replace(' ', ""));
                return Err(wrong(option, "needs a folder: add cache=FOLDER"));
            }
            return Ok(());
        };
        let option = || format!("cache={}", folder.display());
        if mode != Mode::ReadOnly {
            let fix =
                "files that can change are not cached whole: add mode=read-only, or leave it out";
            return Err(wrong(option(), fix));
        }
        if self.size == 0 {
            return Err(wrong(
                option(),
                "needs a size limit: add cache_size=SIZE, such as cache_size=200GiB",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(all: &[(&str, Option<&str>)]) -> Result<CacheOptions, String> {
        let mut options = CacheOptions::default();
        for (name, value) in all {
            options.apply(name, *value).unwrap().map_err(|error| error.to_string())?;
        }
        Ok(options)
    }

    #[test]
    fn options_are_taken_and_wrong_ones_named() {
        let (cache, size) = (("cache", Some("/c")), ("cache_size", Some("2GiB")));
        let whole = taken(&[cache, size, ("nopassthrough", None)]).unwrap();
        assert_eq!(
            whole,
            CacheOptions { folder: Some("/c".into()), size: 2 << 30, passthrough: false }
        );
        assert_eq!(whole.check(Mode::ReadOnly), Ok(()));
        assert_eq!(CacheOptions::default().check(Mode::Strict), Ok(()));
        assert!(CacheOptions::default().apply("colour", None).is_none());
        for (options, mode, part) in [
            (&[cache, size][..], Mode::Strict, "-o cache=/c: files that can change"),
            (&[cache], Mode::ReadOnly, "-o cache=/c: needs a size limit: add cache_size="),
            (&[size], Mode::ReadOnly, "-o cache_size=2GiB: needs a folder"),
            (
                &[("cache", Some("c"))],
                Mode::ReadOnly,
                "-o cache=c: give the absolute path of a folder",
            ),
            (&[("cache_size", Some("much"))], Mode::ReadOnly, "-o cache_size=much: use a number"),
            (&[("cache_size", Some("1"))], Mode::ReadOnly, "-o cache_size=1: use a number"),
        ] {
            let checked = taken(options)
                .and_then(|taken| taken.check(mode).map_err(|error| error.to_string()));
            let said = checked.unwrap_err();
            assert!(said.starts_with(part), "{said}");
        }
    }
}
