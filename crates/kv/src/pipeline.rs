//! Pipelines as text: `Millpond`, `Cache|Millpond`, `Posix`, `Cache|Posix`.

use std::path::PathBuf;

use millpond_client::ClientError;
use millpond_types::{ByteSize, LayoutDigest};

use crate::cache::Cache;
use crate::namespace::Namespace;
use crate::posix::Posix;
use crate::store::BlockStore;

/// Options for the stages of a pipeline; only those of the named stages are used.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// Bytes of the `Cache` stage.
    pub cache_bytes: ByteSize,
    /// The `Millpond` stage.
    pub namespace: Option<Namespace>,
    /// Folder of the `Posix` stage.
    pub folder: Option<PathBuf>,
    /// Limit of the folder's bytes, over all processes and layouts that use it.
    pub folder_bytes: ByteSize,
    /// Layout of the blocks in the `Posix` stage.
    pub layout: LayoutDigest,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            cache_bytes: ByteSize::gib(1),
            namespace: None,
            folder: None,
            folder_bytes: ByteSize::gib(64),
            layout: LayoutDigest::default(),
        }
    }
}

/// Builds the pipeline that `text` names.
///
/// # Errors
/// `InvalidArgument` naming the stage or option; `Unreachable` when the folder cannot be used.
pub fn pipeline(text: &str, options: PipelineOptions) -> Result<Box<dyn BlockStore>, ClientError> {
    let bad = |field, fix: String| Err(ClientError::Argument { field, fix });
    let (cached, backend) = match text.split_once('|') {
        Some((stage, backend)) if stage.trim() == "Cache" => (true, backend.trim()),
        None => (false, text.trim()),
        Some(_) => return bad("pipeline", known_pipelines(text)),
    };
    let backend: Box<dyn BlockStore> = match backend {
        "Millpond" => match options.namespace {
            Some(namespace) => Box::new(namespace),
            None => return bad("namespace", "the Millpond stage needs a namespace".to_owned()),
        },
        "Posix" => match &options.folder {
            Some(folder) => Box::new(Posix::open(folder, options.layout, options.folder_bytes)?),
            None => return bad("folder", "the Posix stage needs a folder".to_owned()),
        },
        _ => return bad("pipeline", known_pipelines(text)),
    };
    if cached { Ok(Box::new(Cache::new(backend, options.cache_bytes))) } else { Ok(backend) }
}

fn known_pipelines(text: &str) -> String {
    format!("'{text}' is not one of Millpond, Cache|Millpond, Posix and Cache|Posix")
}
