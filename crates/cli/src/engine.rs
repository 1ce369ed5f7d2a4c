//! `millpond engine`: a data folder while no server uses it.

use anyhow::{Context as _, bail};
use millpond_engine::Inspection;
use millpond_env::{
    BufferPool, EnvErrorKind, FileDisk, IoBackend, PoolOptions, Runtime, RuntimeOptions,
};
use serde_json::json;

use super::output;
use crate::exit::{FAILED, OK, Outcome};
use millpond_node::server::DataPath;

/// Memory for reading the disk.
const POOL_BYTES: usize = 256 << 20;

/// What to do with the disk.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Show the identity, capacity and content of a disk. Writes nothing.
    #[command(after_help = "Example:\n  millpond engine inspect ./millpond-data")]
    Inspect(Args),
    /// Inspect a disk and verify every value. Writes nothing; exits with 1 on an error.
    #[command(after_help = "Example:\n  millpond engine check ./millpond-data")]
    Check(Args),
}

/// Which disk.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Data folder or block device.
    path: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(super) fn run(command: &Command) -> Outcome {
    let (args, data) = match command {
        Command::Inspect(args) => (args, false),
        Command::Check(args) => (args, true),
    };
    let file = DataPath::parse(&args.path).file();
    let pool = BufferPool::new(PoolOptions::new(POOL_BYTES))?;
    let options = RuntimeOptions { io: IoBackend::Auto, ..RuntimeOptions::default() };
    let runtime = Runtime::new(options)?;
    let disk = match FileDisk::open(&file) {
        // What a server is advised, to take another folder, is no help here.
        Err(error) if error.kind() == EnvErrorKind::InUse => bail!(
            "{} is in use by a server: stop the server first; while it runs, use \
             'millpond admin disks' and 'millpond kv stat --server'",
            file.display()
        ),
        opened => opened?,
    };
    let found = runtime.block_on(async {
        if data {
            millpond_engine::check(&disk, &pool).await
        } else {
            millpond_engine::inspect(&disk, &pool).await
        }
    });
    let found = found.with_context(|| file.display().to_string())?;
    if args.json {
        output::line(&facts(&found).to_string())?;
    } else {
        output::bytes(found.to_string().as_bytes())?;
    }
    Ok(if found.errors.is_empty() { OK } else { FAILED })
}

fn facts(found: &Inspection) -> serde_json::Value {
    let sb = &found.superblock;
    json!({
        "disk": sb.disk_id.to_string(),
        "cluster": sb.cluster_id.to_string(),
        "capacity_bytes": sb.capacity,
        "segments": sb.segments(),
        "segment_bytes": sb.segment_bytes,
        "free_segments": found.free_segments,
        "chunks": found.chunks,
        "live_bytes": found.live_bytes,
        "slab_bytes": found.used_bytes,
        "log_batches": found.log_batches,
        "log_bytes": found.log_bytes,
        "errors": found.errors,
    })
}
