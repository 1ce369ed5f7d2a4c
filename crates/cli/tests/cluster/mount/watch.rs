//! What operators see of a mount: its numbers, its access log, and the commands that read them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use millpond_env::ProcessSignal;

use super::HANG;
use super::host::{Host, left_out, signal};
use crate::process::{Cluster, until};

/// The value of each series of a mount, without the mount's label; sums of times in microseconds.
fn numbers(page: &str, target: &Path) -> BTreeMap<String, u64> {
    let mount = format!("mount=\"{}\"", target.display());
    let lines = page.lines().filter(|line| line.contains(&mount));
    let parsed = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value = if series.contains("_seconds_sum") {
            let (whole, part) = value.split_once('.').unwrap_or((value, ""));
            format!("{whole}{part:0<6}")
        } else {
            value.to_owned()
        };
        let series = series.replace(&format!("{mount},"), "").replace(&format!("{{{mount}}}"), "");
        (series.replace("millpond_mount_", ""), value.parse().unwrap())
    });
    parsed.collect()
}

pub(super) fn stats(target: &Path) -> BTreeMap<String, u64> {
    numbers(&fs::read_to_string(target.join(".stats")).unwrap(), target)
}

/// How much each series grew.
pub(super) struct Grown(pub(super) BTreeMap<String, u64>, pub(super) BTreeMap<String, u64>);

impl Grown {
    pub(super) fn by(&self, series: &str) -> u64 {
        let of = |numbers: &BTreeMap<String, u64>| numbers.get(series).copied().unwrap_or(0);
        of(&self.1) - of(&self.0)
    }

    fn count(&self, operation: &str) -> u64 {
        self.by(&format!("operation_seconds_count{{operation=\"{operation}\"}}"))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn errno<T>(done: io::Result<T>) -> i32 {
    done.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

#[test]
fn a_mount_counts_exactly_what_is_done() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    // The kernel passes every read and write on.
    let (target, other) = (host.mount("counted", "mode=strict"), host.mount("other", ""));
    let path = target.join("file");
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.write_all_at(&vec![7; 200_000], 0).unwrap();

    let (before, started) = (stats(&target), Instant::now());
    let mut buffer = [0; 4096];
    for at in 0..25 {
        file.read_exact_at(&mut buffer, at * 5000).unwrap();
    }
    let took = started.elapsed().as_micros();
    for at in 0..10 {
        file.write_all_at(&[8; 1000], at).unwrap();
    }
    for n in 0..3 {
        assert!(!target.join(format!("missing{n}")).exists());
    }
    let grown = Grown(before, stats(&target));
    assert_eq!((grown.count("read"), grown.by("read_bytes_total")), (25, 25 * 4096));
    assert_eq!((grown.count("write"), grown.by("written_bytes_total")), (10, 10_000));
    assert_eq!(grown.by("operations_failed_total{operation=\"lookup\"}"), 3);
    assert_eq!(grown.by("errors_total{errno=\"ENOENT\"}"), 3);
    assert_eq!(grown.by("operations_failed_total{operation=\"read\"}"), 0);
    let reading = grown.by("operation_seconds_sum{operation=\"read\"}");
    assert!(reading > 25 && u128::from(reading) <= took, "25 reads took {reading} of {took} µs");
    let all = grown.by("operation_seconds_bucket{operation=\"read\",le=\"+Inf\"}");
    assert_eq!(all, 25);
    assert!(grown.by("chunk_seconds_count{call=\"read\"}") >= 25);
    assert_eq!(grown.by("chunk_seconds_count{call=\"write\"}"), 10);
    assert!(grown.by("meta_seconds_count{call=\"look\"}") >= 3);
    let now = &grown.1;
    assert_eq!((now["open_handles"], now["open_inodes"], now["in_flight"]), (1, 1, 0));
    assert!(now["journal_bytes"] > 0 && now["taken_over_total"] == 0);
    // The numbers of another mount are its own.
    assert_eq!(stats(&other).get("read_bytes_total"), Some(&0));

    // What is on the page is in the docs.
    let page = host.must(&["mounts", "metrics"]);
    let families: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let shown: BTreeSet<&str> = families.iter().copied().collect();
    assert_eq!(shown.len(), families.len(), "each is there once for all mounts");
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let docs = fs::read_to_string(docs).unwrap();
    let (_, of_mounts) = docs.split_once("## On a mount").unwrap();
    let written: BTreeSet<&str> =
        of_mounts.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(shown, written);
    for mount in [&target, &other] {
        assert_eq!(numbers(&page, mount)["serving"], 1);
    }
    let row =
        host.must(&["stats", target.to_str().unwrap(), "--for", "100ms", "--interval", "100ms"]);
    let columns: Vec<usize> = row.lines().map(str::len).collect();
    assert!(columns.len() == 2 && columns[0] == columns[1], "{row}");
    assert!(row.lines().last().unwrap().ends_with(" 1"), "one file is open: {row}");
}

#[test]
fn virtual_files_are_found_and_not_listed() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let plain = host.mount("plain", "nowatch");
    assert!(!plain.join(".stats").exists());
    let target = host.mount("watched", "");
    assert_eq!(names(&target), Vec::<String>::new());
    let (page, log) = (target.join(".stats"), target.join(".accesslog"));
    for (path, mode) in [(&page, 0o100_444), (&log, 0o100_400)] {
        let found = fs::metadata(path).unwrap();
        assert_eq!((found.mode(), found.uid(), found.len()), (mode, 0, 0));
        assert!(found.ino() > 1 << 62);
        assert_eq!(errno(fs::remove_file(path)), libc::EPERM);
        assert_eq!(errno(fs::rename(path, target.join("x"))), libc::EPERM);
        assert_eq!(errno(fs::hard_link(path, target.join("x"))), libc::EPERM);
        assert_eq!(errno(fs::create_dir(path)), libc::EEXIST);
        assert_eq!(errno(File::create(path)), libc::EPERM);
        assert_eq!(errno(File::options().append(true).open(path)), libc::EPERM);
    }
    fs::create_dir(target.join("folder")).unwrap();
    fs::write(target.join("folder/.stats"), "an ordinary name").unwrap();
    assert_eq!(errno(fs::rename(target.join("folder/.stats"), &page)), libc::EPERM);
    assert_eq!(fs::read(target.join("folder/.stats")).unwrap(), b"an ordinary name");

    // What was there at the open stays, whatever happens meanwhile and however it is read.
    let (snapshot, mut text) = (File::open(&page).unwrap(), String::new());
    let mut head = [0; 100];
    snapshot.read_exact_at(&mut head, 0).unwrap();
    let made = |text: &str| numbers(text, &target)["operation_seconds_count{operation=\"mkdir\"}"];
    fs::create_dir(target.join("later")).unwrap();
    (&snapshot).read_to_string(&mut text).unwrap();
    assert!(text.as_bytes().starts_with(&head));
    assert_eq!(made(&text), 1);
    assert_eq!(made(&fs::read_to_string(&page).unwrap()), 2);

    // A file of a user is hidden, listed, and told of.
    assert!(!host.log().contains("is hidden"));
    fs::write(plain.join(".stats"), "of a user").unwrap();
    assert!(names(&target).contains(&".stats".to_owned()));
    assert!(fs::read_to_string(&page).unwrap().contains("millpond_mount_serving"));
    let _again = host.mount("again", "");
    assert!(host.log().contains("again/.stats is hidden"), "{}", host.log());
    assert_eq!(fs::read(plain.join(".stats")).unwrap(), b"of a user");
}

/// Everything that is in the log now.
fn drained(mut log: &File) -> String {
    let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match log.read(&mut piece) {
            Ok(got) => text.extend_from_slice(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    String::from_utf8(text).unwrap()
}

fn open_log(target: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK).open(target.join(".accesslog")).unwrap()
}

/// The line with all of these parts; there must be one.
fn the_line<'t>(text: &'t str, parts: &[&str]) -> &'t str {
    let is_it = |line: &&str| parts.iter().all(|part| line.contains(part));
    let found: Vec<&str> = text.lines().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{parts:?} in\n{text}");
    found[0]
}

#[test]
fn the_access_log_has_a_line_for_every_request() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("logged", "mode=strict,threads=2");
    let path = target.join("a \"b\n");
    fs::write(target.join("before"), "not logged").unwrap();
    let log = open_log(&target);
    assert_eq!(drained(&log), "");
    let before = stats(&target);
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let ino = file.metadata().unwrap().ino();
    file.write_all_at(b"hello", 3).unwrap();
    let cat = Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let pid = cat.id();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"\0\0\0hello");
    fs::rename(&path, target.join("c")).unwrap();
    fs::remove_file(target.join("c")).unwrap();
    drop(file);
    // The kernel does not wait for a release.
    let grown = || Grown(before.clone(), stats(&target));
    until("both are released", || (grown().count("release") == 2).then_some(()));
    let text = drained(&log);
    let name = r#"name="a \"b\x0a""#;
    let created = the_line(&text, &["op=create ino=1 ", name, &format!("result=ok entry={ino} ")]);
    assert!(created.starts_with("time=20") && created.contains("Z uid=0 gid=0 pid="), "{created}");
    let of_file = |operation: &str| format!("op={operation} ino={ino} ");
    the_line(&text, &[&of_file("write"), "offset=3 length=5 result=ok bytes=5 seconds=0."]);
    let read = [&*of_file("read"), "offset=0 ", "result=ok bytes=8 ", &format!(" pid={pid} ")];
    the_line(&text, &read);
    the_line(&text, &["op=rename", name, r#"new_parent=1 new_name="c""#, "result=ok"]);
    the_line(&text, &["op=unlink ino=1 name=\"c\"", "result=ok"]);
    assert!(!text.contains("before") && !text.contains(".stats"), "{text}");
    // The log and the numbers agree.
    let grown = grown();
    let wanted: Vec<&String> =
        grown.1.keys().filter(|series| series.starts_with("operation_seconds_count")).collect();
    assert!(wanted.len() > 8, "{wanted:?}");
    for series in wanted {
        let operation = series.split('"').nth(1).unwrap();
        let lines = text.matches(&format!(" op={operation} ")).count() as u64;
        let counted = grown.by(series);
        assert!(lines == counted, "{operation}: {lines} lines, {counted} counted\n{text}");
    }

    let recorded = host.folder.join("recorded");
    fs::write(&recorded, &text).unwrap();
    let shown =
        host.must(&["profile", recorded.to_str().unwrap(), "--pid", &pid.to_string(), "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let rows = shown["operations"].as_array().unwrap();
    let read = rows.iter().find(|row| row["operation"] == "read").unwrap();
    assert!(read["bytes"] == 8 && rows.iter().all(|row| row["operation"] != "write"), "{shown}");
}

/// Lines of a log that is read to its end by another thread.
fn follow(target: &Path) -> Receiver<Result<String, String>> {
    let (sender, lines) = channel();
    let log = File::open(target.join(".accesslog")).unwrap();
    thread::spawn(move || {
        for line in io::BufRead::lines(io::BufReader::new(log)) {
            if sender.send(line.map_err(|error| error.to_string())).is_err() {
                break;
            }
        }
    });
    lines
}

/// Waits for a line.
fn await_line(lines: &Receiver<Result<String, String>>, part: &str) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).unwrap_or_else(|error| panic!("{part}: {error}"));
        if line.unwrap().contains(part) {
            return;
        }
    }
}

#[test]
fn readers_of_the_log_wait_without_holding_anybody_up() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("idle", "mode=strict,threads=2");
    // More of them than the mount has threads.
    let followers: Vec<_> = (0..8).map(|_| follow(&target)).collect();
    until("they are there", || (stats(&target)["log_readers"] == 8).then_some(()));
    fs::create_dir(target.join("while they wait")).unwrap();
    for lines in &followers {
        await_line(lines, "name=\"while they wait\"");
    }
    // Of another way, which leaves no line.
    let metrics = || numbers(&host.must(&["mounts", "metrics"]), &target);
    // Whoever waits can be ended while nothing happens on the mount.
    let log = target.join(".accesslog");
    for end in [ProcessSignal::Terminate, ProcessSignal::Kill] {
        let mut child = Command::new("cat").arg(&log).stdout(Stdio::null()).spawn().unwrap();
        until("it reads", || (stats(&target)["log_readers"] == 9).then_some(()));
        // The log is the first file that it opens; from here on nothing happens on the mount.
        let (call, waits) = (format!("/proc/{}/syscall", child.id()), libc::SYS_read);
        until("it waits for lines", || {
            let call = fs::read_to_string(&call).unwrap();
            call.starts_with(&format!("{waits} 0x3 ")).then_some(())
        });
        assert_eq!(metrics()["in_flight"], 0, "no thread is at work for it");
        signal(child.id(), end);
        until("it ends", || child.try_wait().unwrap());
        until("its room is given back", || (stats(&target)["log_readers"] == 8).then_some(()));
    }
    // It ended by the kernel's word, and not by a line of that.
    for lines in &followers {
        assert!(lines.try_iter().all(|line| !line.unwrap().contains("op=interrupt")));
    }
    let more: Vec<File> = (0..8).map(|_| open_log(&target)).collect();
    assert_eq!(errno(File::open(&log)), libc::EBUSY);
    drop(more);

    // A reader that does not read loses lines, and nobody waits for it.
    let slow = open_log(&target);
    assert_eq!(drained(&slow), "");
    let before = metrics();
    let missing = target.join(OsStr::from_bytes(&[0xff; 255]));
    for _ in 0..1500 {
        assert!(!missing.exists());
    }
    let after = metrics();
    let text = drained(&slow);
    // A short line may find room where a long one did not.
    let gaps = text.lines().filter_map(|line| line.split_once("event=dropped count="));
    let lost: u64 = gaps.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
    let kept = text.matches(" op=").count() as u64;
    let all = |numbers: &BTreeMap<String, u64>| -> u64 {
        let of = numbers.iter().filter(|(name, _)| name.starts_with("operation_seconds_count"));
        of.map(|(_, count)| *count).sum()
    };
    let done = all(&after) - all(&before);
    assert!(done >= 1500 && kept + lost == done, "{done} done, {kept} kept, {lost} lost");
    assert!((900..1100).contains(&(text.len() >> 10)), "{} bytes", text.len());
    let dropped = after["log_dropped_total"] - before["log_dropped_total"];
    assert_eq!(dropped, lost, "the others keep up");
    drop(followers);
    fs::write(target.join("more"), "for those who follow").unwrap();
}

#[test]
fn what_operators_look_at_outlives_the_daemon() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("killed", "");
    let lines = follow(&target);
    fs::create_dir(target.join("first")).unwrap();
    await_line(&lines, "name=\"first\"");
    let page = target.join(".stats");
    let (half, fresh) = (File::open(&page).unwrap(), File::open(&page).unwrap());
    half.read_exact_at(&mut [0; 100], 0).unwrap();

    host.kill_daemon();
    fs::create_dir(target.join("second")).unwrap();
    await_line(&lines, "event=resumed");
    assert_eq!(errno(half.read_exact_at(&mut [0; 100], 100)), libc::ESTALE, "the rest is gone");
    let mut text = String::new();
    (&fresh).read_to_string(&mut text).unwrap();
    assert_eq!(numbers(&text, &target)["taken_over_total"], 1);

    // In order: nobody who waits for lines keeps the daemon from being replaced.
    host.must(&["mounts", "upgrade"]);
    fs::create_dir(target.join("third")).unwrap();
    await_line(&lines, "event=resumed");
    fs::create_dir(target.join("fourth")).unwrap();
    await_line(&lines, "name=\"fourth\"");
    assert_eq!(stats(&target)["taken_over_total"], 2);

    // A request that is under way when the daemon dies is sent again, and known.
    let all = |name| {
        cluster.nodes.iter().for_each(|node| node.signal(name));
        cluster.manager.signal(name);
    };
    all("STOP");
    let folder = target.join("fifth");
    let maker = thread::spawn(move || fs::create_dir(folder));
    until("it is in work", || {
        let now = numbers(&host.must(&["mounts", "metrics"]), &target);
        (now["in_flight"] >= 1).then_some(())
    });
    host.kill_daemon();
    let page = host.must(&["mounts", "metrics"]);
    all("CONT");
    assert_eq!(numbers(&page, &target).get("serving"), Some(&0), "{page}");
    maker.join().unwrap().unwrap();
    drop(lines);
    fs::create_dir(target.join("for who follows")).unwrap();
    let now = stats(&target);
    assert!(now["resent_total"] >= 1 && now["serving"] == 1, "{now:?}");
}

#[test]
fn a_profile_of_a_mount_ends_with_all_of_it() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("profiled", "mode=strict");
    let file = File::options().read(true).write(true).create_new(true).open(target.join("file"));
    let file = file.unwrap();
    let mut command = host.command();
    command.args(["profile", "--json", "--interval", "100ms"]).arg(&target);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    until("it reads the log", || (stats(&target)["log_readers"] == 1).then_some(()));
    for at in 0..50 {
        file.write_all_at(&[1; 100], at).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
    signal(child.id(), ProcessSignal::Terminate);
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let tables: Vec<serde_json::Value> = done
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let (last, parts) = tables.split_last().unwrap();
    let writes = |table: &serde_json::Value| {
        let rows = table["operations"].as_array().unwrap();
        let row = rows.iter().find(|row| row["operation"] == "write");
        row.map_or(0, |row| row["count"].as_u64().unwrap())
    };
    assert!(last["total"] == true && writes(last) == 50, "{last}");
    assert!(parts.len() >= 3 && parts.iter().all(|part| part["total"] == false));
    assert!(parts.iter().map(writes).sum::<u64>() <= 50);
    let done = host.run(&["profile", host.folder.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("is not a mount point of Millpond"), "{said}");
}
