//! `millpond profile`: what a mount is asked for, by its access log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use millpond_env::RealClock;
use millpond_types::units::parse_duration;
use serde_json::json;

use crate::exit::{OK, Outcome};
use crate::interrupt::Interrupt;
use crate::output;

pub(crate) const EXAMPLES: &str = "Examples:
  millpond profile /mnt/pond
  millpond profile /mnt/pond --for 30s --by-pid
  cat /mnt/pond/.accesslog > log     # stop with Ctrl-C
  millpond profile log --uid 1000";

/// How often the log is asked for more.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes taken at a time.
const PIECE: usize = 1 << 20;
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What is looked at, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount point, or a file with recorded lines of its `.accesslog`.
    path: PathBuf,
    /// Time between two tables.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// End after this time with a table of the whole time. [default: at Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Only requests of this user.
    #[arg(long, value_name = "ID")]
    uid: Option<u32>,
    /// Only requests of this group.
    #[arg(long, value_name = "ID")]
    gid: Option<u32>,
    /// Only requests of this process.
    #[arg(long, value_name = "ID")]
    pid: Option<u32>,
    /// Count each process separately.
    #[arg(long)]
    by_pid: bool,
    /// Print one JSON object per table, each on its own line; the last has `"total": true`.
    #[arg(long)]
    json: bool,
}

/// A line of the log, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Request {
        uid: u32,
        gid: u32,
        pid: u32,
        operation: &'a str,
        failed: bool,
        us: u64,
        bytes: u64,
    },
    /// So many lines are missing.
    Dropped(u64),
    /// Something else, or half a line.
    Other,
}

/// Microseconds of `0.000123`.
fn micros(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let whole: u64 = seconds.parse().ok()?;
    let part: u64 = (fraction.len() == 6).then(|| fraction.parse().ok())??;
    whole.checked_mul(1_000_000)?.checked_add(part)
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        Self::request(line).or_else(|| Self::dropped(line)).unwrap_or(Self::Other)
    }

    /// Names are the only fields in quotes, and whoever makes a file chooses them: what comes before
    /// them is read from the front, what comes after them from the back.
    fn request(line: &'a str) -> Option<Self> {
        let mut fields = line.split(' ');
        let mut next = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix('=');
        next("time")?;
        let (uid, gid, pid) = (next("uid")?, next("gid")?, next("pid")?);
        let operation = next("op")?;
        let behind = line.rsplit('"').next()?;
        let behind = |name: &str| {
            behind.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let result = behind("result")?;
        Some(Self::Request {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            pid: pid.parse().ok()?,
            operation,
            failed: !matches!(result, "ok" | "none"),
            us: micros(behind("seconds")?)?,
            bytes: behind("bytes").and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
        })
    }

    fn dropped(line: &str) -> Option<Self> {
        let (_, count) = line.split_once(" event=dropped count=")?;
        Some(Self::Dropped(count.parse().ok()?))
    }
}

/// What requests of one kind come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    failed: u64,
    us: u64,
    us_max: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.failed += other.failed;
        self.us += other.us;
        self.us_max = self.us_max.max(other.us_max);
        self.bytes += other.bytes;
    }
}

/// Requests of some time, by operation, and by process if that is wanted.
#[derive(Clone, Debug, Default)]
struct Profile {
    sums: BTreeMap<(String, Option<u32>), Sum>,
    dropped: u64,
}

impl Profile {
    fn note(&mut self, line: Line<'_>, args: &Args) {
        let (uid, gid, pid, operation, failed, us, bytes) = match line {
            Line::Request { uid, gid, pid, operation, failed, us, bytes } => {
                (uid, gid, pid, operation, failed, us, bytes)
            }
            Line::Dropped(count) => {
                self.dropped += count;
                return;
            }
            Line::Other => return,
        };
        let is = |wanted: Option<u32>, id| wanted.is_none_or(|wanted| wanted == id);
        if !(is(args.uid, uid) && is(args.gid, gid) && is(args.pid, pid)) {
            return;
        }
        let one = Sum { count: 1, failed: u64::from(failed), us, us_max: us, bytes };
        self.sums.entry((operation.to_owned(), args.by_pid.then_some(pid))).or_default().add(&one);
    }

    fn add(&mut self, other: &Self) {
        for (key, sum) in &other.sums {
            self.sums.entry(key.clone()).or_default().add(sum);
        }
        self.dropped += other.dropped;
    }

    /// What took the most time first.
    fn sorted(&self) -> Vec<(&str, Option<u32>, Sum)> {
        let rows = self.sums.iter().map(|((operation, pid), sum)| (&**operation, *pid, *sum));
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|(_, _, sum)| std::cmp::Reverse(sum.us));
        rows
    }

    fn total(&self) -> Sum {
        self.sums.values().fold(Sum::default(), |mut total, sum| {
            total.add(sum);
            total
        })
    }

    /// `within` is the time that it was gathered in, if that is known.
    fn json(&self, within: Option<Duration>) -> serde_json::Value {
        let rows = self.sorted().into_iter().map(|(operation, pid, sum)| {
            let mut row = json!({
                "operation": operation, "count": sum.count, "failed": sum.failed,
                "seconds": seconds(sum.us), "seconds_max": seconds(sum.us_max), "bytes": sum.bytes,
            });
            if let Some(pid) = pid {
                row["pid"] = json!(pid);
            }
            row
        });
        let rows: Vec<_> = rows.collect();
        let within = within.map(|within| within.as_secs_f64());
        json!({ "interval_seconds": within, "dropped": self.dropped, "operations": rows })
    }

    fn table(&self, within: Option<Duration>) -> String {
        let by_pid = self.sums.keys().any(|(_, pid)| pid.is_some());
        let total = self.total();
        let mut head =
            vec!["OPERATION", "COUNT", "PER S", "AVG MS", "MAX MS", "TIME", "FAILED", "MIB"];
        if by_pid {
            head.insert(1, "PID");
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        let mut push = |name: &str, pid: Option<u32>, sum: &Sum| {
            let mut row = vec![
                name.to_owned(),
                sum.count.to_string(),
                within.map_or_else(|| "-".to_owned(), |within| rate(sum.count, within)),
                millis(sum.us.checked_div(sum.count).unwrap_or(0)),
                millis(sum.us_max),
                share(sum.us, total.us),
                sum.failed.to_string(),
                mib(sum.bytes),
            ];
            if by_pid {
                row.insert(1, pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()));
            }
            rows.push(row);
        };
        for (operation, pid, sum) in self.sorted() {
            push(operation, pid, &sum);
        }
        push("all", None, &total);
        let mut text = output::table(&rows);
        if self.dropped > 0 {
            let missing = "requests are missing: this program read the log too slowly";
            let _ = writeln!(text, "{} {missing}", self.dropped);
        }
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn rate(count: u64, within: Duration) -> String {
    format!("{:.0}", count as f64 / within.as_secs_f64().max(1e-3))
}

pub(super) fn millis(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}

fn share(part: u64, whole: u64) -> String {
    let per_mille = (part * 1000).checked_div(whole).unwrap_or(0);
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

pub(crate) fn run(args: &Args) -> Outcome {
    let found = std::fs::metadata(&args.path).with_context(|| {
        format!("{}: give a mount point or a recorded log", args.path.display())
    })?;
    if found.is_dir() { live(args) } else { recorded(args) }
}

fn open(path: &Path, flags: i32) -> anyhow::Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.with_context(|| path.display().to_string())
}

/// The rest of a line that is not whole yet, and what whole lines come to.
#[derive(Debug, Default)]
struct Gatherer {
    rest: Vec<u8>,
    profile: Profile,
}

impl Gatherer {
    fn take(&mut self, bytes: &[u8], args: &Args) {
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return };
        let behind = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, behind);
        for line in String::from_utf8_lossy(&lines).lines() {
            self.profile.note(Line::parse(line), args);
        }
    }
}

fn recorded(args: &Args) -> Outcome {
    let mut file = open(&args.path, 0)?;
    let (mut gatherer, mut piece) = (Gatherer::default(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece).with_context(|| args.path.display().to_string())? {
            0 => break,
            got => gatherer.take(&piece[..got], args),
        }
    }
    output::bytes(shown((&gatherer.profile, true), None, args).as_bytes())
}

fn shown((profile, all): (&Profile, bool), within: Option<Duration>, args: &Args) -> String {
    if !args.json {
        return profile.table(within);
    }
    let mut json = profile.json(within);
    json["total"] = json!(all);
    format!("{json}\n")
}

/// Reads the log of a mount until Ctrl-C, or until the time is over.
fn live(args: &Args) -> Outcome {
    let path = args.path.join(".accesslog");
    let log = open(&path, libc::O_NONBLOCK).with_context(|| {
        format!("{} is not a mount point of Millpond with a readable log", args.path.display())
    })?;
    let mut interrupt = Interrupt::install()?;
    let started = RealClock::tick();
    let until = args.time.map(|time| started.plus(time));
    let (mut all, mut gatherer) = (Profile::default(), Gatherer::default());
    let (mut piece, mut since) = (vec![0; PIECE], started);
    loop {
        let over = interrupt.pause(LOOK) || until.is_some_and(|at| RealClock::tick() >= at);
        drain(&log, &mut piece, |bytes| gatherer.take(bytes, args))
            .with_context(|| path.display().to_string())?;
        let now = RealClock::tick();
        let due = now.since(since) >= args.interval;
        if due || over {
            let part = std::mem::take(&mut gatherer.profile);
            all.add(&part);
            // A table of all of it is wanted at the end only.
            if due && !over {
                let mut text = shown((&part, false), Some(now.since(since)), args);
                if !args.json {
                    text.push('\n');
                    let clear = if io::stdout().is_terminal() { CLEAR } else { "" };
                    text.insert_str(0, clear);
                }
                if !output::offer(text.as_bytes())? {
                    return Ok(OK);
                }
                since = now;
            }
        }
        if over {
            let text = shown((&all, true), Some(now.since(started)), args);
            return output::bytes(text.as_bytes());
        }
    }
}

/// Takes what is there.
fn drain(mut log: &File, piece: &mut [u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
    loop {
        match log.read(piece) {
            Ok(0) => return Ok(()),
            Ok(got) => take(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(options: &[&str]) -> Args {
        Cli::parse_from([&["profile", "log"], options].concat()).args
    }

    const LOG: &str = "\
time=2026-11-22T10:47:19.003330Z event=resumed
time=2026-11-22T10:47:19.003330Z uid=0 gid=0 pid=44 op=lookup ino=1 name=\"a b\" result=ENOENT seconds=0.000100
time=2026-11-22T10:47:19.003330Z uid=0 gid=0 pid=44 op=read ino=7 offset=0 length=4096 result=ok bytes=4096 seconds=0.001000
time=2026-11-22T10:47:19.003330Z uid=5 gid=6 pid=45 op=read ino=7 offset=0 length=4096 result=ok bytes=1000 seconds=2.000000
time=2026-11-22T10:47:19.003330Z uid=5 gid=6 pid=45 op=unlink ino=1 name=\"x\\\" result=EIO seconds=9.000000 \" result=ok seconds=0.000001
time=2026-11-22T10:47:19.003330Z event=dropped count=12
00Z uid=0 gid=0 pid=44 op=read ino=7 half a line
time=2026-11-22T10:47:19.003330Z uid=0 gid=0 pid=44 op=forget ino=7 count=1 result=none seconds=0.000002
";

    fn profile(options: &[&str]) -> Profile {
        let (args, mut gatherer) = (args(options), Gatherer::default());
        // In pieces that are no lines.
        for piece in LOG.as_bytes().chunks(7) {
            gatherer.take(piece, &args);
        }
        gatherer.profile
    }

    #[test]
    fn requests_are_counted_by_operation() {
        let profile = profile(&[]);
        let names: Vec<&str> = profile.sorted().iter().map(|row| row.0).collect();
        assert_eq!(names, ["read", "lookup", "forget", "unlink"], "by the time they took");
        let read = profile.sums[&("read".to_owned(), None)];
        let wanted = Sum { count: 2, failed: 0, us: 2_001_000, us_max: 2_000_000, bytes: 5096 };
        assert_eq!(read, wanted);
        assert_eq!(profile.sums[&("lookup".to_owned(), None)].failed, 1);
        let unlink = profile.sums[&("unlink".to_owned(), None)];
        assert_eq!((unlink.failed, unlink.us), (0, 1), "a name does not pass for a result");
        assert_eq!(profile.sums[&("forget".to_owned(), None)].failed, 0);
        assert_eq!(profile.dropped, 12);
        assert_eq!(profile.total().count, 5);
    }

    #[test]
    fn some_requests_are_left_out() {
        let count = |options: &[&str]| profile(options).total().count;
        assert_eq!(count(&["--uid", "5"]), 2);
        assert_eq!(count(&["--gid", "0"]), 3);
        assert_eq!(count(&["--pid", "44", "--uid", "5"]), 0);
    }

    #[test]
    fn tables_are_for_people_and_json_for_programs() {
        let table = profile(&["--by-pid"]).table(Some(Duration::from_secs(2)));
        let rows: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1],
            ["read", "45", "1", "0", "2000.000", "2000.000", "99.9", "%", "0", "0.0"]
        );
        assert_eq!(rows[2][..3], ["read", "44", "1"]);
        assert!(table.ends_with("12 requests are missing: this program read the log too slowly\n"));
        let json = profile(&[]).json(None);
        assert_eq!(json["dropped"], 12);
        assert_eq!(json["operations"][0]["operation"], "read");
        assert_eq!(json["operations"][0]["seconds"], 2.001);
        assert_eq!(json["operations"][0]["count"], 2);
    }
}
