//! The nodes' secret of a cluster that has none yet.

use std::io;
use std::path::Path;

use millpond_env::Rng;
use millpond_env::files::{PlacedFile, exists};

use super::{StartError, cluster};
use crate::config::Config;

/// File in the first data folder of the first manager.
const FILE: &str = "node.secret";
/// Random bytes of a secret, written as twice as many digits.
const BYTES: usize = 24;

/// The configuration with a file of the nodes' secret. Makes the secret if clients need tokens and
/// no node can have a secret yet.
///
/// # Errors
/// [`StartError`] naming the folder.
pub(super) fn with_secret(config: &Config) -> Result<Config, StartError> {
    let mut config = config.clone();
    let cluster = &config.cluster;
    let is_wanted = config.security.token_file.is_some();
    if !is_wanted || cluster.node_secret_file.is_some() || !cluster.may_make_secret() {
        return Ok(config);
    }
    // A manager without a folder is refused later, with a named error.
    let Some(folder) = cluster::folders(&config)?.into_iter().next() else { return Ok(config) };
    let path = folder.join(FILE);
    make(&path).map_err(|source| StartError::Folder {
        path: path.display().to_string(),
        fix: "make its folder writable for this user, or give a file with the nodes' secret with \
              --node-secret",
        source,
    })?;
    config.cluster.node_secret_file = Some(path.display().to_string());
    Ok(config)
}

fn half(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn make(path: &Path) -> io::Result<()> {
    if exists(path)? {
        return Ok(());
    }
    let mut bytes = [0; BYTES];
    Rng::fill_from_os(&mut bytes)?;
    let digits = format!("{:032x}{:016x}", half(&bytes[..16]), half(&bytes[16..]));
    // Under another name first: a partial secret would be taken for a whole one.
    let part = path.with_extension("secret.part");
    millpond_env::files::remove(&part)?;
    let file = PlacedFile::create_new(&part)?;
    file.write_all_at(format!("{digits}\n").as_bytes(), 0)?;
    file.sync()?;
    millpond_env::files::rename(&part, path)?;
    tracing::info!(path = %path.display(),
        "made the nodes' secret: other nodes need a copy (--node-secret)");
    Ok(())
}
