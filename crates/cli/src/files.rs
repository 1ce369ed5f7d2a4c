//! `millpond info`, `summary` and `quota`: what lies behind a path of a mount.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use millpond_client::Chains;
use millpond_fuse_wire::{MountPoint, mounts};
use millpond_types::meta::{
    Attr, DIR_PAGE_MAX, FileBase, FileKind, Ino, MetaError, MetaOp, MetaReply, QuotaLimits,
    ReadDir, SharedRecord,
};
use millpond_types::wire::{ChunkStat, PlacedChunk};
use millpond_types::{ByteSize, DataId, FileChunk};
use serde_json::json;

use super::metas::Metas;
use super::output;
use crate::exit::Outcome;
use millpond_node::config::Size;

/// Chunks that are listed where nobody says how many; more are counted.
const CHUNKS_SHOWN: u64 = 8;
/// Time for one question.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is looked at.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Path on a mount.
    path: PathBuf,
    /// Credential, if the cluster requires one.
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The file that is looked at.
#[derive(Debug, clap::Args)]
pub(super) struct InfoArgs {
    #[command(flatten)]
    place: Args,
    /// Number of chunks to list; the others are only counted.
    #[arg(long, value_name = "N", default_value_t = CHUNKS_SHOWN)]
    chunks: u64,
}

/// A quota is shown or set.
#[derive(Debug, clap::Args)]
pub(super) struct QuotaArgs {
    #[command(flatten)]
    place: Args,
    /// Limit for the bytes of all files below; 0 for no limit. The folder must be empty when it
    /// gets its first quota.
    #[arg(long)]
    bytes: Option<Size>,
    /// Limit for the number of inodes below; 0 for no limit.
    #[arg(long)]
    inodes: Option<u64>,
}

/// The cluster behind a path, and the path's inode.
pub(super) struct Behind {
    pub(super) metas: Metas,
    pub(super) ino: Ino,
}

impl Behind {
    fn of(args: &Args) -> anyhow::Result<Self> {
        Self::path(&args.path, &args.token)
    }

    /// The cluster behind this path, which is there.
    pub(super) fn path(path: &Path, token: &str) -> anyhow::Result<Self> {
        let found = std::fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
        let addresses = mount_of(path)?.source.to_string_lossy().parse()?;
        Ok(Self { metas: Metas::of(addresses, token)?, ino: Ino(found.ino()) })
    }

    fn attr(&self) -> anyhow::Result<Attr> {
        match self.metas.ask(MetaOp::GetAttr { ino: self.ino })? {
            MetaReply::Attr(attr) => Ok(attr),
            _ => bail!("unexpected answer from a meta: is it of another version?"),
        }
    }
}

impl Behind {
    /// What lies behind the chunks of a file, if it was cloned or is a clone.
    fn shared(&self, attr: &Attr) -> anyhow::Result<Option<SharedRecord>> {
        if !attr.is_shared {
            return Ok(None);
        }
        match self.metas.ask(MetaOp::Shared { chunks: attr.chunk_data() })? {
            MetaReply::Shared(record) => Ok(Some(record)),
            _ => bail!("unexpected answer from a meta: is it of another version?"),
        }
    }

    /// Looks for those of these chunks that are not there among those that lie behind them.
    fn look_behind(&self, chunks: &mut [Chunk], attr: &Attr, base: FileBase) -> anyhow::Result<()> {
        let counts = |index: u32| base.size > u64::from(index) << attr.layout.chunk_log2;
        let is_open = |chunk: &&mut Chunk| chunk.stat.is_none() && counts(chunk.at.chunk.index);
        let mut open: Vec<&mut Chunk> = chunks.iter_mut().filter(is_open).collect();
        let behind = |chunk: &&mut Chunk| {
            let PlacedChunk { chain, chunk } = chunk.at;
            PlacedChunk { chain, chunk: FileChunk { data: DataId(base.chunks), ..chunk } }
        };
        let places: Vec<PlacedChunk> = open.iter().map(behind).collect();
        let stats = self.metas.client.stat_chunks(&places, Some(PATIENCE))?;
        for ((chunk, at), stat) in open.iter_mut().zip(places).zip(stats) {
            if stat.is_some() {
                **chunk = Chunk { at, stat };
            }
        }
        Ok(())
    }
}

/// The mount that a path is on, whether it is there or not.
pub(super) fn mount_of(path: &Path) -> anyhow::Result<MountPoint> {
    let shown = || path.display().to_string();
    let whole = place(path).with_context(shown)?;
    let all = mounts().context("reading the list of mounts")?;
    let inside = all.into_iter().filter(|mount| whole.starts_with(&mount.target));
    let found = inside.max_by_key(|mount| mount.target.as_os_str().len());
    found.with_context(|| {
        format!(
            "{}: not on a mount of a Millpond cluster: `millpond mounts` lists the mounts",
            shown()
        )
    })
}

/// The path without links but for its last part.
pub(super) fn place(path: &Path) -> std::io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if !parent.as_os_str().is_empty() => {
            Ok(parent.canonicalize()?.join(name))
        }
        (Some(_), Some(name)) => Ok(Path::new(".").canonicalize()?.join(name)),
        _ => path.canonicalize(),
    }
}

/// One chunk of a file.
struct Chunk {
    at: PlacedChunk,
    stat: Option<ChunkStat>,
}

/// Chunks that a file may have.
const fn chunks_of(attr: &Attr) -> u64 {
    match attr.kind {
        FileKind::Regular if !attr.is_stored() => attr.layout.chunks(attr.size),
        _ => 0,
    }
}

/// `millpond info PATH`.
pub(super) fn info(info: &InfoArgs) -> Outcome {
    let args = &info.place;
    let behind = Behind::of(args)?;
    let attr = behind.attr()?;
    let count = chunks_of(&attr);
    let shown = u32::try_from(count.min(info.chunks)).unwrap_or(0);
    let place = |index| PlacedChunk {
        chain: attr.layout.chain(index),
        chunk: FileChunk { data: DataId(attr.chunk_data()), index },
    };
    let places: Vec<PlacedChunk> = (0..shown).map(place).collect();
    let stats = behind.metas.client.stat_chunks(&places, Some(PATIENCE))?;
    let mut chunks: Vec<Chunk> =
        places.into_iter().zip(stats).map(|(at, stat)| Chunk { at, stat }).collect();
    let shared = behind.shared(&attr)?;
    for base in shared.iter().flat_map(|record| &record.bases) {
        behind.look_behind(&mut chunks, &attr, *base)?;
    }
    let chains = behind.metas.client.chains(Some(PATIENCE))?;
    let text = if args.json {
        json_of((&attr, shared.as_ref()), (&chunks, count), &chains)?
    } else {
        text_of(&args.path, (&attr, shared.as_ref()), (&chunks, count), &chains)
    };
    output::bytes(text.as_bytes())
}

fn nodes(chains: &Chains, at: PlacedChunk) -> Vec<String> {
    let chain = chains.chains.iter().find(|chain| chain.id == at.chain);
    let address = |node| {
        let known = chains.nodes.get(node).and_then(|addresses| addresses.first());
        known.cloned().unwrap_or_else(|| "away".to_owned())
    };
    chain.map(|chain| chain.nodes.iter().map(address).collect()).unwrap_or_default()
}

fn text_of(
    path: &Path,
    (attr, shared): (&Attr, Option<&SharedRecord>),
    (chunks, count): (&[Chunk], u64),
    chains: &Chains,
) -> String {
    let mut out = String::new();
    let layout = &attr.layout;
    let _ = writeln!(out, "{}: {:?}, inode {}", path.display(), attr.kind, attr.ino);
    let _ = writeln!(out, "  {} bytes, {} names, mode {:o}", attr.size, attr.nlink, attr.mode);
    if attr.is_stored() {
        let _ = writeln!(out, "  inline: the bytes are stored with the metas");
    } else if attr.kind == FileKind::Regular {
        let size = ByteSize(layout.chunk_bytes());
        let data = DataId(attr.chunk_data());
        let _ = writeln!(out, "  data {data}, chunks of {size} over {} chains", layout.stripe);
        if let Some(SharedRecord { users, bases, .. }) = shared {
            let over = bases.len();
            let _ = writeln!(
                out,
                "  cloned: {users} files read its chunks; it reads those of {over} others"
            );
        }
        let _ = writeln!(out, "  chunk  chain      bytes  nodes, head first");
    }
    for chunk in chunks {
        let bytes = chunk.stat.map_or_else(|| "hole".to_owned(), |stat| stat.len.to_string());
        let nodes = nodes(chains, chunk.at).join(" ");
        let (index, chain) = (chunk.at.chunk.index, chunk.at.chain.0);
        let _ = writeln!(out, "  {index:>5}  {chain:>5}  {bytes:>9}  {nodes}");
    }
    if count > chunks.len() as u64 {
        let more = count - chunks.len() as u64;
        let _ = writeln!(out, "  and {more} more: --chunks {count} lists all");
    }
    out
}

fn json_of(
    (attr, shared): (&Attr, Option<&SharedRecord>),
    (chunks, count): (&[Chunk], u64),
    chains: &Chains,
) -> anyhow::Result<String> {
    let layout = &attr.layout;
    let chunk = |chunk: &Chunk| {
        json!({
            "index": chunk.at.chunk.index,
            "chain": chunk.at.chain.0,
            "data": chunk.at.chunk.data.to_string(),
            "bytes": chunk.stat.map(|stat| stat.len),
            "nodes": nodes(chains, chunk.at),
        })
    };
    let document = json!({
        "inode": attr.ino.0,
        "kind": format!("{:?}", attr.kind).to_lowercase(),
        "bytes": attr.size,
        "names": attr.nlink,
        "inline": attr.is_stored(),
        "data": DataId(attr.chunk_data()).to_string(),
        "chunk_bytes": layout.chunk_bytes(),
        "stripe": layout.stripe,
        "users": shared.map(|record| record.users),
        "bases": shared.map(|record| record.bases.len()),
        "chunks_all": count,
        "chunks": chunks.iter().map(chunk).collect::<Vec<_>>(),
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
}

/// What lies below a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
    chunks: u64,
}

impl Sum {
    fn add(&mut self, attr: &Attr) {
        match attr.kind {
            FileKind::Regular => {
                self.files += 1;
                self.bytes += attr.size;
                self.chunks += chunks_of(attr);
            }
            FileKind::Directory => self.directories += 1,
            _ => self.others += 1,
        }
    }
}

/// `millpond summary PATH`: straight from the metas, a page of entries at a time.
pub(super) fn summary(args: &Args) -> Outcome {
    let behind = Behind::of(args)?;
    let first = behind.attr()?;
    let (mut sum, mut refused) = (Sum::default(), 0_u64);
    sum.add(&first);
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {pos} inodes, {per_sec}")?);
    let mut left = if first.is_dir() { vec![first.ino] } else { Vec::new() };
    while let Some(dir) = left.pop() {
        let mut after = 0;
        loop {
            let limit = u32::try_from(DIR_PAGE_MAX).unwrap_or(1);
            let page = MetaOp::ReadDir(ReadDir { dir, after, limit, attrs: true });
            let (entries, end) = match behind.metas.ask_as_me(page) {
                Ok(MetaReply::Page { entries, end }) => (entries, end),
                Ok(_) => bail!("unexpected answer from a meta: is it of another version?"),
                Err(error) if error.downcast_ref() == Some(&MetaError::Access) => {
                    refused += 1;
                    break;
                }
                Err(error) => return Err(error),
            };
            for entry in &entries {
                after = entry.cookie;
                if let Some(attr) = &entry.attr {
                    sum.add(attr);
                    left.extend(attr.is_dir().then_some(attr.ino));
                }
            }
            progress.inc(entries.len() as u64);
            if end {
                break;
            }
        }
    }
    progress.finish_and_clear();
    if refused > 0 {
        eprintln!(
            "millpond: no permission to read {refused} folders: their content is not counted"
        );
    }
    let Sum { files, directories, others, bytes, chunks } = sum;
    let text = if args.json {
        let document = json!({
            "files": files, "directories": directories, "others": others, "bytes": bytes,
            "chunks": chunks,
        });
        format!("{}\n", serde_json::to_string_pretty(&document)?)
    } else {
        let size = ByteSize(bytes);
        format!(
            "{}\n  files        {files}\n  directories  {directories}\n  others       {others}\n  \
             bytes        {bytes} ({size})\n  chunks       {chunks}\n",
            args.path.display()
        )
    };
    output::bytes(text.as_bytes())
}

/// `millpond quota PATH`: shows it, and sets what is given.
pub(super) fn quota(args: &QuotaArgs) -> Outcome {
    let behind = Behind::of(&args.place)?;
    let shown = || args.place.path.display().to_string();
    let ask = |op| match behind.metas.ask(op) {
        Ok(MetaReply::Quota(quota)) => Ok(quota),
        Ok(_) => bail!("unexpected answer from a meta: is it of another version?"),
        Err(error) if error.downcast_ref() == Some(&MetaError::NoData) => {
            bail!(
                "{}: no quota applies to it: set one on an empty folder with --bytes or --inodes",
                shown()
            )
        }
        Err(error) => Err(error).with_context(shown),
    };
    if args.bytes.is_some() || args.inodes.is_some() {
        let known = behind.metas.ask(MetaOp::GetQuota { ino: behind.ino });
        let before = match known {
            Ok(MetaReply::Quota(quota)) if quota.root == behind.ino => quota.limits,
            _ => QuotaLimits::default(),
        };
        let limits = QuotaLimits {
            bytes: args.bytes.map_or(before.bytes, Size::bytes),
            inodes: args.inodes.unwrap_or(before.inodes),
        };
        behind.metas.ask_as_me(MetaOp::SetQuota { dir: behind.ino, limits }).with_context(shown)?;
    }
    let quota = ask(MetaOp::GetQuota { ino: behind.ino })?;
    let text = if args.place.json {
        let document = json!({
            "inode": quota.root.0,
            "bytes": quota.bytes, "bytes_limit": quota.limits.bytes,
            "inodes": quota.inodes, "inodes_limit": quota.limits.inodes,
        });
        format!("{}\n", serde_json::to_string_pretty(&document)?)
    } else {
        let limit = |limit: u64| if limit == 0 { "any".to_owned() } else { limit.to_string() };
        format!(
            "{}: counts toward the quota of inode {}\n  bytes   {} of {}\n  inodes  {} of {}\n",
            shown(),
            quota.root,
            quota.bytes,
            limit(quota.limits.bytes),
            quota.inodes,
            limit(quota.limits.inodes),
        )
    };
    output::bytes(text.as_bytes())
}
