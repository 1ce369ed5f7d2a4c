//! Where an etcd to start is found.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// `MILLPOND_ETCD`, one in the path, or what the store's tests built beside this program.
pub(super) fn program(millpond: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("MILLPOND_ETCD") {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        bail!("MILLPOND_ETCD={}: no such file", path.display());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&paths).map(|folder| folder.join("etcd"));
    // target/release/millpond, or target/debug/deps/…
    let built = millpond.ancestors().map(|folder| folder.join("etcd/etcd"));
    let found = in_path.chain(built).find(|path| path.is_file());
    let Some(path) = found else {
        bail!(
            "no etcd to start: install etcd 3.5 (Debian: etcd-server), set MILLPOND_ETCD to one, \
             or build it with crates/store/tests/etcd/build.sh"
        );
    };
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::program;

    #[test]
    fn what_the_stores_tests_built_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let built = folder.path().join("etcd/etcd");
        std::fs::create_dir_all(built.parent().unwrap()).unwrap();
        std::fs::write(&built, "").unwrap();
        let millpond = folder.path().join("release/millpond");
        // One in the path or the environment of whoever runs the tests comes first.
        let found = program(&millpond).unwrap();
        let set = std::env::var_os("MILLPOND_ETCD").is_some();
        assert!(found == built || set || !found.starts_with(folder.path()), "{}", found.display());
    }
}
