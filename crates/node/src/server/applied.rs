//! Defaults that a start chooses for settings left out.

use std::path::Path;

use millpond_types::ByteSize;

use super::storage::{DataPath, size_by_default, socket_path};
use super::{core_count, memory_sizes};
use crate::config::{Config, Size};

/// Fills in the settings that a start would choose: memory, cores, socket, the gateway's address,
/// and the size of a new data file if there is one folder without a size of its own. Makes nothing.
///
/// # Errors
/// If the system does not report its memory.
pub fn with_defaults(config: &Config) -> std::io::Result<Config> {
    let mut chosen = config.clone();
    let server = &mut chosen.server;
    let memory = memory_sizes(config)?;
    server.memory = Some(Size(ByteSize(memory.total)));
    server.index_memory = Some(Size(ByteSize(memory.index)));
    server.cores = u32::try_from(core_count(config)).ok();
    let socket = socket_path(config);
    server.socket = Some(socket.map_or_else(String::new, |path| path.display().to_string()));
    server.size = server.size.or_else(|| new_file(config));
    if chosen.s3.listen.is_none() {
        let address = config.s3_address().ok().flatten();
        chosen.s3.listen = Some(address.map_or_else(String::new, |(at, _)| at.to_string()));
    }
    Ok(chosen)
}

fn new_file(config: &Config) -> Option<Size> {
    let [text] = config.server.data.as_slice() else { return None };
    let data = DataPath::parse(text);
    if !config.cluster.storage || data.size.is_some() || data.is_device() {
        return None;
    }
    let whole = std::path::absolute(&data.path).ok()?;
    let made = whole.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let free = millpond_env::free_bytes(made).ok()?;
    Some(Size(ByteSize(size_by_default(free, 1))))
}

#[cfg(test)]
mod tests {
    use super::with_defaults;
    use crate::config::{Config, Size, from_text, to_text};

    #[test]
    fn nothing_that_a_start_would_choose_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data = vec![folder.path().join("not/there/yet").display().to_string()];
        let chosen = with_defaults(&config).unwrap();
        let server = &chosen.server;
        assert!(server.memory.is_some() && server.cores.is_some() && server.size.is_some());
        assert!(server.socket.as_ref().unwrap().ends_with("/not/there/yet/millpond.sock"));
        assert_eq!(chosen.s3.listen.as_deref(), Some("127.0.0.1:9000"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is made");
        // The text is a valid file; its sizes have two decimals.
        let mut read = from_text(&to_text(&chosen), "shown").unwrap();
        (read.server.size, read.server.memory) = (server.size, server.memory);
        read.server.index_memory = server.index_memory;
        assert_eq!(read, chosen);

        let asked = Size("1GiB".parse().unwrap());
        (config.server.memory, config.server.size) = (Some(asked), Some(asked));
        let chosen = with_defaults(&config).unwrap().server;
        assert_eq!((chosen.memory, chosen.size), (Some(asked), Some(asked)));
        let index_memory = Some(Size("96MiB".parse().unwrap()));
        assert_eq!(chosen.index_memory, index_memory, "three quarters of an eighth");
        config.server.data.push("/elsewhere".to_owned());
        config.server.size = None;
        assert_eq!(with_defaults(&config).unwrap().server.size, None, "of each its own");
    }
}
