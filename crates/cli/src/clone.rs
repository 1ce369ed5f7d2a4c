//! `millpond clone`: files that share their bytes with others until either is changed (RFC 0014).

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use millpond_client::{VolumeOptions, clone_file};
use millpond_types::ByteSize;
use millpond_types::meta::{Caller, Ino, MetaError, MetaOp, MetaReply, Name};

use super::files::{Behind, mount_of, place};
use super::interrupt::Interrupt;
use super::metas::Metas;
use super::output;
use crate::exit::{FAILED, OK, Outcome};

pub(super) const EXAMPLES: &str =
    "A clone exists at once, however long the file is, and takes no space until either file is
written. A file that was cloned and written four times in turn is copied instead; the command
reports this.

Examples:
  millpond clone /mnt/pond/run7/weights.safetensors /mnt/pond/run8/weights.safetensors
  millpond clone -r /mnt/pond/datasets/v1 /mnt/pond/datasets/v2";

/// How long a new name is waited for that the mount may believe not to be there.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(2);
/// How long a meta may take until it knows chains for the copy of a file.
const CHAINS_WITHIN: Duration = Duration::from_secs(30);
const CHAINS_LOOK: Duration = Duration::from_millis(50);
/// Bytes that are copied at once.
const COPY_BYTES: usize = 4 << 20;
/// The owner can fill a folder while it is made.
const FILLABLE: u32 = 0o700;

/// What is cloned.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File on a mount; with -r a folder.
    source: PathBuf,
    /// Name of the copy, on a mount of the same cluster; it must not exist yet.
    target: PathBuf,
    /// Clone a folder with its content; each file is cloned as it is when its turn comes.
    #[arg(short, long)]
    recursive: bool,
    /// Credential, if the cluster requires one.
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
}

/// What was done.
#[derive(Debug, Default)]
struct Sum {
    files: u64,
    bytes: u64,
    folders: u64,
    links: u64,
    /// Files whose bytes were copied.
    copied: u64,
    /// What is neither file, folder nor link.
    others: u64,
}

struct Work {
    metas: Metas,
    caller: Caller,
    interrupt: Interrupt,
    progress: ProgressBar,
    sum: Sum,
}

/// `millpond clone SRC DST`.
pub(super) fn run(args: &Args) -> Outcome {
    let Args { source, target, recursive, token } = args;
    let shown = source.display();
    let whole = source.canonicalize().with_context(|| shown.to_string())?;
    let behind = Behind::path(&whole, token)?;
    let parent = parent_of(&behind, &whole, args)?;
    let found = fs::metadata(&whole).with_context(|| shown.to_string())?;
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {pos} files, {per_sec}, {msg}")?);
    let VolumeOptions { caller, .. } = VolumeOptions::new("millpond clone");
    let interrupt = Interrupt::install()?;
    let mut work = Work { metas: behind.metas, caller, interrupt, progress, sum: Sum::default() };
    if found.is_file() {
        let ino = work.file(&whole, target, parent)?;
        wait_for(&mut work.interrupt, target, ino);
    } else if !found.is_dir() {
        bail!("{shown}: neither a file nor a folder");
    } else if *recursive {
        work.tree(&whole, target)?;
    } else {
        bail!("{shown}: a folder: add -r to clone it with its content");
    }
    work.progress.finish_and_clear();
    work.tell(args)
}

/// The folder that the copy comes to, if it is of the same cluster and may be written.
fn parent_of(source: &Behind, whole: &Path, args: &Args) -> anyhow::Result<Ino> {
    let target = &args.target;
    let shown = || target.display().to_string();
    let place = place(target).with_context(shown)?;
    let dir = place.parent().with_context(|| format!("{}: not a name for a copy", shown()))?;
    ensure!(
        !(args.recursive && place.starts_with(whole)),
        "{}: the copy would be inside the cloned folder",
        shown()
    );
    let (from, to) = (mount_of(whole)?, mount_of(dir).with_context(shown)?);
    ensure!(!to.read_only, "{}: its mount is read-only", shown());
    if from.source != to.source {
        let other = Behind::path(dir, &args.token)?;
        let nodes = |metas: &Metas| -> anyhow::Result<Vec<_>> {
            Ok(metas.client.chains(None)?.nodes.into_keys().collect())
        };
        let (ours, theirs) = (nodes(&source.metas)?, nodes(&other.metas)?);
        ensure!(
            theirs.iter().any(|node| ours.contains(node)),
            "{}: on another cluster than {}: copy the file instead",
            shown(),
            args.source.display()
        );
    }
    Ok(Ino(fs::metadata(dir).with_context(shown)?.ino()))
}

/// What a meta says of a copy, for whoever asked for it.
fn explained(error: anyhow::Error, source: &Path, target: &Path) -> anyhow::Error {
    let (source, target) = (source.display(), target.display());
    match error.downcast_ref::<MetaError>() {
        Some(MetaError::Exists) => anyhow!("{target}: already exists"),
        Some(MetaError::Quota) => anyhow!(
            "{target}: over the quota of its folder, in which a clone counts in full: \
             `millpond quota` shows the quota"
        ),
        Some(MetaError::Stale | MetaError::NotFound) => {
            anyhow!("{source}: the file or the folder of {target} was removed during the command")
        }
        _ => error.context(format!("{source}: cloning to {target}")),
    }
}

/// Waits until the mount shows a new name; when it takes longer, it is there all the same, and that is said.
fn wait_for(interrupt: &mut Interrupt, target: &Path, ino: Ino) {
    let mut left = SHOWN_WITHIN;
    let is_there = || fs::symlink_metadata(target).is_ok_and(|found| found.ino() == ino.0);
    if !is_there()
        && let Some(folder) = target.parent()
    {
        look_through(folder);
    }
    while !is_there() && !left.is_zero() && !interrupt.pause(LOOK) {
        left = left.saturating_sub(LOOK);
    }
    if left.is_zero() && !is_there() {
        let target = target.display();
        eprintln!("millpond: {target} is created, but its mount does not show it yet");
    }
}

/// Lists a folder in which names were made behind its mount's back: one in the one-writer mode hears of them by that alone.
pub(super) fn look_through(folder: &Path) {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // What may not be listed is not known to be empty either.
    let _ = fs::read_dir(folder).map(|entries| entries.for_each(drop));
}

impl Work {
    /// Clones one file.
    fn file(&mut self, source: &Path, target: &Path, parent: Ino) -> anyhow::Result<Ino> {
        let shown = || source.display().to_string();
        let file = OpenOptions::new().read(true).open(source).with_context(shown)?;
        // What was written through this mount is in it.
        file.sync_all().with_context(shown)?;
        let found = file.metadata().with_context(shown)?;
        let name = target.file_name().unwrap_or_default().as_bytes();
        let name = Name::new(name).map_err(|error| anyhow!("{}: {error}", target.display()))?;
        let ask = |op: MetaOp| -> anyhow::Result<MetaReply> {
            self.metas.ask_for(self.caller.clone(), op)
        };
        let ino = match clone_file(&self.metas.client, ask, Ino(found.ino()), (parent, &name)) {
            Ok(made) => {
                self.sum.bytes += made.size;
                made.ino
            }
            Err(error) if error.downcast_ref() == Some(&MetaError::TooManyLinks) => {
                self.copy(file, target, found.mode() & 0o777)?
            }
            Err(error) => return Err(explained(error, source, target)),
        };
        self.sum.files += 1;
        self.progress.inc(1);
        Ok(ino)
    }

    /// Copies a file that lies over too many others; a half of one does not stay.
    fn copy(&mut self, mut source: File, target: &Path, mode: u32) -> anyhow::Result<Ino> {
        let shown = || target.display().to_string();
        let options = OpenOptions::new().write(true).create_new(true).mode(mode).to_owned();
        let mut left = CHAINS_WITHIN;
        let mut copy = loop {
            match options.open(target) {
                // A meta that has just started knows no chains for a moment.
                Err(error) if error.kind() == ErrorKind::WouldBlock && !left.is_zero() => {
                    ensure!(!self.interrupt.pause(CHAINS_LOOK), "interrupted");
                    left = left.saturating_sub(CHAINS_LOOK);
                }
                opened => break opened.with_context(shown)?,
            }
        };
        let (mut bytes, mut size) = (vec![0; COPY_BYTES], 0);
        let mut all = || -> anyhow::Result<()> {
            loop {
                let len = source.read(&mut bytes)?;
                if len == 0 {
                    copy.set_permissions(Permissions::from_mode(mode))?;
                    return Ok(copy.sync_all()?);
                }
                ensure!(!self.interrupt.came(), "interrupted");
                copy.write_all(&bytes[..len])?;
                size += len as u64;
            }
        };
        if let Err(error) = all() {
            let _ = fs::remove_file(target);
            return Err(error.context(format!("{}: copying", shown())));
        }
        self.sum.bytes += size;
        self.sum.copied += 1;
        Ok(Ino(copy.metadata().with_context(shown)?.ino()))
    }

    /// Clones a folder and everything in it, on the same mount.
    fn tree(&mut self, source: &Path, target: &Path) -> anyhow::Result<()> {
        let device = fs::metadata(source)?.dev();
        let mut left = vec![(source.to_owned(), target.to_owned())];
        let mut modes = Vec::new();
        while let Some((from, to)) = left.pop() {
            let (seen, wanted) = (|| from.display().to_string(), || to.display().to_string());
            let mode = fs::metadata(&from).with_context(seen)?.mode() & 0o7777;
            match DirBuilder::new().mode(mode | FILLABLE).create(&to) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    bail!("{}: already exists", wanted())
                }
                done => done.with_context(wanted)?,
            }
            self.sum.folders += 1;
            modes.push((to.clone(), mode));
            let parent = Ino(fs::metadata(&to).with_context(wanted)?.ino());
            for entry in fs::read_dir(&from).with_context(seen)? {
                ensure!(
                    !self.interrupt.came(),
                    "interrupted: {} has {} complete files",
                    target.display(),
                    self.sum.files
                );
                let entry = entry.with_context(seen)?;
                let (path, to) = (entry.path(), to.join(entry.file_name()));
                let kind = entry.metadata().with_context(|| path.display().to_string())?;
                if kind.dev() != device {
                    bail!("{}: another mount: clone it separately", path.display());
                } else if kind.is_dir() {
                    left.push((path, to));
                } else if kind.is_file() {
                    self.file(&path, &to, parent)?;
                } else if kind.is_symlink() {
                    let link = || path.display().to_string();
                    symlink(fs::read_link(&path).with_context(link)?, &to).with_context(link)?;
                    self.sum.links += 1;
                } else {
                    self.sum.others += 1;
                    eprintln!("millpond: {}: skipped: not a file, folder or link", path.display());
                }
                self.progress.set_message(ByteSize(self.sum.bytes).to_string());
            }
        }
        // From the inside out: a folder may forbid to look into it.
        for (path, mode) in modes.iter().rev() {
            look_through(path);
            let set = fs::set_permissions(path, Permissions::from_mode(*mode));
            set.with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn tell(&self, args: &Args) -> Outcome {
        let Sum { files, bytes, folders, links, copied, others } = self.sum;
        if args.recursive && folders > 0 {
            let size = ByteSize(bytes);
            let text = format!("{files} files of {size}, {folders} folders, {links} links\n");
            output::bytes(text.as_bytes())?;
        }
        if copied > 0 {
            eprintln!(
                "millpond: {copied} files copied: cloned and written too often to clone again"
            );
        }
        Ok(if others == 0 { OK } else { FAILED })
    }
}
