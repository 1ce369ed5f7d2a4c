//! `millpond trash`: what was removed from folders that keep it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use millpond_env::RealClock;
use millpond_types::ByteSize;
use millpond_types::meta::{
    DIR_PAGE_MAX, FileKind, Ino, MetaError, MetaOp, MetaReply, Name, ReadDir, Timestamp,
    TrashChange, TrashEntry, TrashPage,
};
use serde_json::json;

use super::clone::look_through;
use super::files::Behind;
use super::metas::Metas;
use super::output;
use crate::exit::{OK, Outcome};
use millpond_node::config::Span;

pub(super) const EXAMPLES: &str =
    "A folder with a keep time keeps its removed files and folders for that time; `restore` brings
them back by their paths. A new folder inherits the keep time of its parent. Kept files count toward
quotas.

Examples:
  millpond trash set /mnt/pond/team --keep 7d
  millpond trash list /mnt/pond/team
  millpond trash restore /mnt/pond/team/report.txt
  millpond trash empty /mnt/pond/team --older-than 1d";

/// What to do with it.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Keep the removed files of a folder and of all folders below it, present and future.
    Set(SetArgs),
    /// List the removed files that a folder keeps.
    List(ListArgs),
    /// Restore removed files and folders under their names; a folder comes with its content.
    Restore(RestoreArgs),
    /// Delete kept files for good.
    Empty(EmptyArgs),
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Credential, if the cluster requires one.
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
}

/// How long a folder keeps what is removed.
#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// Folder on a mount.
    path: PathBuf,
    /// How long to keep removed files, for example 12h or 7d; 0s keeps none.
    #[arg(long)]
    keep: Span,
    #[command(flatten)]
    common: Common,
}

/// What is listed.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Folder on a mount.
    path: PathBuf,
    /// Include all folders below.
    #[arg(short, long)]
    recursive: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

/// What is restored.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArgs {
    /// Paths before the removal; of several removed files with one path, the one removed last.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Restore under another name in the same folder.
    #[arg(long = "as", value_name = "NAME")]
    new_name: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// What is let go.
#[derive(Debug, clap::Args)]
pub(super) struct EmptyArgs {
    /// Folder on a mount.
    path: PathBuf,
    /// Only files that were removed at least this long ago, for example 12h or 1d.
    #[arg(long, value_name = "TIME")]
    older_than: Option<Span>,
    /// Include all folders below.
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    common: Common,
}

/// `millpond trash`.
pub(super) fn run(command: &Command) -> Outcome {
    match command {
        Command::Set(args) => set(args),
        Command::List(args) => list(args),
        Command::Restore(args) => restore(args),
        Command::Empty(args) => empty(args),
    }
}

/// A page of the trash of a folder.
fn page(metas: &Metas, dir: Ino, after: Ino) -> anyhow::Result<TrashPage> {
    let limit = u32::try_from(DIR_PAGE_MAX)?;
    match metas.ask_as_me(MetaOp::TrashList { dir, after, limit })? {
        MetaReply::Trash(page) => Ok(page),
        _ => bail!("unexpected answer from a meta: is it of another version?"),
    }
}

/// All that was removed from a folder and is kept, the last first.
fn trash(metas: &Metas, dir: Ino) -> anyhow::Result<Vec<TrashEntry>> {
    let (mut all, mut after) = (Vec::new(), Ino(0));
    loop {
        let page = page(metas, dir, after)?;
        after = page.entries.last().map_or(after, |entry| entry.ino);
        all.extend(page.entries);
        if page.end {
            break;
        }
    }
    all.sort_by_key(|entry| std::cmp::Reverse(entry.record.since));
    Ok(all)
}

/// The folders in a folder.
fn folders(metas: &Metas, dir: Ino) -> anyhow::Result<Vec<(Name, Ino)>> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let limit = u32::try_from(DIR_PAGE_MAX)?;
        let wanted = MetaOp::ReadDir(ReadDir { dir, after, limit, attrs: false });
        let MetaReply::Page { entries, end } = metas.ask_as_me(wanted)? else {
            bail!("unexpected answer from a meta: is it of another version?");
        };
        after = entries.last().map_or(after, |entry| entry.cookie);
        let is_dir = entries.into_iter().filter(|entry| entry.kind == FileKind::Directory);
        all.extend(is_dir.map(|entry| (entry.name, entry.ino)));
        if end {
            return Ok(all);
        }
    }
}

fn change(metas: &Metas, change: TrashChange) -> anyhow::Result<()> {
    metas.ask_as_me(MetaOp::Trash(change)).map(drop)
}

fn spinner(what: &str) -> anyhow::Result<ProgressBar> {
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template(&format!("{{spinner}} {{pos}} {what}"))?);
    Ok(progress)
}

fn set(args: &SetArgs) -> Outcome {
    let shown = || args.path.display().to_string();
    let Behind { metas, ino } = Behind::path(&args.path, &args.common.token)?;
    let keep_s = u32::try_from(args.keep.0.as_secs()).context("--keep: use at most 136 years")?;
    ensure!(keep_s > 0 || args.keep.0.is_zero(), "--keep: use at least 1s, or 0s to keep nothing");
    let progress = spinner("folders")?;
    let mut left = vec![ino];
    while let Some(dir) = left.pop() {
        // Before it is listed: what is made in it from then on begins with the same.
        match change(&metas, TrashChange::Keep { dir, keep_s }) {
            // Removed meanwhile.
            Err(error) if dir != ino && is(&error, MetaError::NotFound) => continue,
            done => done.with_context(shown)?,
        }
        left.extend(folders(&metas, dir)?.into_iter().map(|(_, below)| below));
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(OK)
}

fn is(error: &anyhow::Error, wanted: MetaError) -> bool {
    error.downcast_ref() == Some(&wanted)
}

/// Calls with every folder and its path: this one, and those in it if that is wanted.
fn walk(
    metas: &Metas,
    (path, ino): (&Path, Ino),
    recursive: bool,
    mut each: impl FnMut(&Path, Ino) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut left = vec![(path.to_owned(), ino)];
    while let Some((path, dir)) = left.pop() {
        each(&path, dir)?;
        if recursive {
            let below = folders(metas, dir)?.into_iter();
            left.extend(below.map(|(name, ino)| (path.join(lossy(&name)), ino)));
        }
    }
    Ok(())
}

fn lossy(name: &Name) -> String {
    String::from_utf8_lossy(name.as_bytes()).into_owned()
}

fn seconds_since(time: Timestamp) -> u64 {
    let since_ms = u64::try_from(time.secs).unwrap_or(0).saturating_mul(1000);
    RealClock::wall_ms().saturating_sub(since_ms) / 1000
}

/// As long as it is good to know.
fn rough(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn list(args: &ListArgs) -> Outcome {
    let Behind { metas, ino } = Behind::path(&args.path, &args.common.token)?;
    let mut found: Vec<(PathBuf, TrashEntry)> = Vec::new();
    walk(&metas, (&args.path, ino), args.recursive, |path, dir| {
        let kept = trash(&metas, dir).with_context(|| path.display().to_string())?;
        found.extend(kept.into_iter().map(|it| (path.join(lossy(&it.record.name)), it)));
        Ok(())
    })?;
    let text = if args.json {
        let entry = |(path, it): &(PathBuf, TrashEntry)| {
            json!({
                "path": path, "inode": it.ino.0, "bytes": it.size,
                "kind": format!("{:?}", it.kind).to_lowercase(),
                "removed_unix_s": it.record.since.secs, "kept_until_unix_s": it.record.until.secs,
            })
        };
        let all: Vec<serde_json::Value> = found.iter().map(entry).collect();
        format!("{}\n", serde_json::to_string_pretty(&all)?)
    } else {
        let keep_s = page(&metas, ino, Ino(u64::MAX))?.keep_s;
        let mut out = String::new();
        if keep_s == 0 {
            let _ = writeln!(out, "{}: keeps no removed files", args.path.display());
        } else {
            let time = rough(keep_s.into());
            let _ = writeln!(out, "{}: keeps removed files for {time}", args.path.display());
        }
        let mut rows: Vec<Vec<String>> = Vec::new();
        let head = ["PATH", "REMOVED", "KEPT FOR", "BYTES", "KIND"];
        rows.push(head.map(str::to_owned).to_vec());
        for (path, it) in &found {
            let (since, until) = (it.record.since, it.record.until);
            let all = u64::try_from(until.secs.saturating_sub(since.secs)).unwrap_or(0);
            let ago = seconds_since(since);
            rows.push(vec![
                path.display().to_string(),
                format!("{} ago", rough(ago)),
                rough(all.saturating_sub(ago)),
                ByteSize(it.size).to_string(),
                format!("{:?}", it.kind).to_lowercase(),
            ]);
        }
        if !found.is_empty() {
            out.push_str(&output::table(&rows));
        }
        out
    };
    output::bytes(text.as_bytes())
}

fn restore(args: &RestoreArgs) -> Outcome {
    ensure!(args.new_name.is_none() || args.paths.len() == 1, "--as: give exactly one path");
    for path in &args.paths {
        restore_one(path, args).with_context(|| path.display().to_string())?;
    }
    Ok(OK)
}

fn restore_one(path: &Path, args: &RestoreArgs) -> anyhow::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let wanted = path.file_name().context("the path must end in the name of the removed file")?;
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Behind { metas, ino: dir } = Behind::path(parent, &args.common.token)?;
    let kept = trash(&metas, dir)?;
    let Some(entry) = kept.into_iter().find(|it| it.record.name.as_bytes() == wanted.as_bytes())
    else {
        bail!(
            "no removed file of that name is kept: `millpond trash list {}` lists them",
            parent.display()
        );
    };
    let name = match &args.new_name {
        Some(text) => Name::new(text.as_bytes())?,
        None => entry.record.name.clone(),
    };
    let shown = parent.join(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let change = change(&metas, TrashChange::Restore { dir, ino: entry.ino, name });
    match change {
        Err(error) if is(&error, MetaError::Exists) => {
            bail!("the name exists already: choose another one with --as")
        }
        done => done?,
    }
    if entry.kind == FileKind::Directory {
        restore_content(&metas, entry.ino)?;
    }
    look_through(parent);
    look_through_all(shown);
    Ok(())
}

/// Lists a folder that was restored, and those in it.
fn look_through_all(folder: PathBuf) {
    let mut left = vec![folder];
    while let Some(folder) = left.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        let is_folder =
            |it: &std::fs::DirEntry| it.file_type().is_ok_and(|file_type| file_type.is_dir());
        left.extend(entries.flatten().filter(is_folder).map(|it| it.path()));
    }
}

/// Restores what was in a folder: of each name what was removed last.
fn restore_content(metas: &Metas, dir: Ino) -> anyhow::Result<()> {
    let progress = spinner("restored")?;
    let mut left = vec![dir];
    while let Some(dir) = left.pop() {
        let mut newest: BTreeMap<Name, TrashEntry> = BTreeMap::new();
        for entry in trash(metas, dir)? {
            newest.entry(entry.record.name.clone()).or_insert(entry);
        }
        for (name, entry) in newest {
            let ino = entry.ino;
            match change(metas, TrashChange::Restore { dir, ino, name }) {
                // Somebody was faster, or its time was over.
                Err(error) if is(&error, MetaError::Exists) || is(&error, MetaError::NotFound) => {}
                done => {
                    done?;
                    progress.inc(1);
                    left.extend((entry.kind == FileKind::Directory).then_some(ino));
                }
            }
        }
    }
    progress.finish_and_clear();
    Ok(())
}

fn empty(args: &EmptyArgs) -> Outcome {
    let Behind { metas, ino } = Behind::path(&args.path, &args.common.token)?;
    let older = args.older_than.map_or(Duration::ZERO, |span| span.0).as_secs();
    let progress = spinner("deleted")?;
    walk(&metas, (&args.path, ino), args.recursive, |path, dir| {
        drop_all(&metas, (dir, older), &progress).with_context(|| path.display().to_string())
    })?;
    progress.finish_and_clear();
    Ok(OK)
}

/// Lets go of what a folder keeps, with what is kept of folders that were removed from it: without them
/// nobody would find it.
fn drop_all(metas: &Metas, (dir, older): (Ino, u64), progress: &ProgressBar) -> anyhow::Result<()> {
    let mut left = vec![dir];
    // Folders after what was in them.
    let mut drops: Vec<(Ino, Ino)> = Vec::new();
    while let Some(dir) = left.pop() {
        let all = trash(metas, dir)?.into_iter();
        for entry in all.filter(|it| seconds_since(it.record.since) >= older) {
            left.extend((entry.kind == FileKind::Directory).then_some(entry.ino));
            drops.push((dir, entry.ino));
        }
    }
    for (dir, ino) in drops.into_iter().rev() {
        match change(metas, TrashChange::Drop { dir, ino }) {
            Err(error) if is(&error, MetaError::NotFound) => {}
            done => done?,
        }
        progress.inc(1);
    }
    Ok(())
}
