//! Two mounts stand for two hosts: they share nothing but the cluster. What one does, the other sees.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::conformance::Mounted;
use crate::mount::left_out;
use crate::process::{Cluster, until};

/// Two mounts of a cluster.
fn two(cluster: &Cluster, options: &str) -> [Mounted; 2] {
    [1, 2].map(|n| Mounted::new(cluster, &format!("{}-{n}", options.replace('=', "-")), options))
}

fn soon(what: &str, mut check: impl FnMut() -> bool) {
    until(what, || check().then_some(()));
}

#[test]
fn each_sees_what_the_other_one_does() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    for options in ["mode=strict", "mode=close-to-open"] {
        let [one, two] = two(&cluster, options);
        let (here, there) = (one.folder.join("file"), two.folder.join("file"));
        std::fs::write(&here, b"first").unwrap();
        assert_eq!(std::fs::read(&there).unwrap(), b"first", "{options}: a new file");
        let open = std::fs::File::open(&there).unwrap();
        let seen = |len: usize| {
            let mut bytes = vec![0; len];
            let got = open.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(got);
            bytes
        };
        assert_eq!(seen(9), b"first");
        // Cut to nothing and written anew, while it is open elsewhere.
        std::fs::write(&here, b"second!").unwrap();
        if options == "mode=strict" {
            // No more than was there before, so that nothing but the mode makes the mount ask.
            assert_eq!(seen(5), b"secon", "{options}: at once");
        }
        soon("the open descriptor to see it", || seen(9) == b"second!");
        assert_eq!(std::fs::read(&there).unwrap(), b"second!", "{options}: by an open");
        let mut log = OpenOptions::new().append(true).open(&here).unwrap();
        log.write_all(b"third").unwrap();
        soon("a stat to see the length", || std::fs::metadata(&there).unwrap().len() == 12);
        std::fs::write(one.folder.join("new"), b"fourth").unwrap();
        std::fs::rename(one.folder.join("new"), &here).unwrap();
        assert_eq!(std::fs::read(&there).unwrap(), b"fourth", "{options}: another file's name");
        assert_eq!(seen(20), b"second!third", "{options}: what is open stays");
        // It has no name any more, and can be opened again all the same.
        let again = std::fs::read(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
        assert_eq!(again, b"second!third", "{options}: what is open is opened again");
        std::fs::remove_file(&here).unwrap();
        if options == "mode=strict" {
            assert!(!there.exists(), "{options}: it is gone at once");
        }
        soon("the name to be gone", || !there.exists());
    }
}

/// Lines that two mounts append in turns.
const LINES: usize = 12;

/// Who appends on one host writes behind what was appended on the other one, whatever its kernel thinks of the length.
#[test]
fn what_is_appended_on_two_hosts_is_all_there() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    for options in ["mode=strict", "mode=close-to-open", "mode=relaxed"] {
        let [one, two] = two(&cluster, options);
        // Of some bytes, which lie in the store, and of many.
        for len in [10, 40_000] {
            let name = format!("{options}-{len}");
            let open = |folder: &Path| {
                let mut options = OpenOptions::new();
                options.append(true).create(true).open(folder.join(&name)).unwrap()
            };
            let mut logs = [open(&one.folder), open(&two.folder)];
            let line = |n: usize| vec![b'a' + u8::try_from(n).unwrap(); len];
            for n in 0..LINES {
                logs[n % 2].write_all(&line(n)).unwrap();
                logs[n % 2].sync_all().unwrap();
                // A relaxed mount may be a second behind.
                let pause = if options == "mode=relaxed" { 1200 } else { 200 };
                std::thread::sleep(Duration::from_millis(pause));
            }
            let wanted: Vec<u8> = (0..LINES).flat_map(line).collect();
            for folder in [&one.folder, &two.folder] {
                let found = std::fs::read(folder.join(&name)).unwrap();
                assert!(found == wanted, "{name}: {} bytes", found.len());
            }
        }
    }
}

/// Time from a change through one mount until another one sees it.
fn time_to_see(change: impl FnOnce(), seen: impl Fn() -> bool) -> Duration {
    change();
    let start = Instant::now();
    while !seen() {
        assert!(start.elapsed() < Duration::from_secs(10), "it is never seen");
    }
    start.elapsed()
}

/// Files that are changed in every way.
const ROUNDS: usize = 20;

/// What another mount has looked at, and so keeps, is called back when it changes.
#[test]
fn changes_are_seen_elsewhere_within_50_ms() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    for options in ["mode=strict", "mode=close-to-open"] {
        let [one, two] = two(&cluster, options);
        sees_changes_soon(options, &one.folder, &two.folder);
    }
}

/// What is changed below one mount is seen below another one, each time in less than 50 ms at the
/// median.
pub(crate) fn sees_changes_soon(options: &str, one: &Path, two: &Path) {
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let (here, there) = (one.join(format!("f{round}")), two.join(format!("f{round}")));
        let len = || std::fs::metadata(&there).map_or(0, |data| data.len());
        let mut saw = |what, time| times.entry(what).or_default().push(time);
        assert!(!there.exists(), "{options}: looked for before it is there");
        let write = |bytes: &[u8]| std::fs::write(&here, bytes).unwrap();
        saw("new file", time_to_see(|| write(b"one"), || len() == 3));
        let open = std::fs::File::open(&there).unwrap();
        let read = || {
            let mut bytes = [0; 3];
            open.read_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(read(), *b"one");
        let rewrite = || {
            let file = OpenOptions::new().write(true).open(&here).unwrap();
            file.write_all_at(b"two", 0).unwrap();
        };
        saw("rewrite, by an open descriptor", time_to_see(rewrite, || read() == *b"two"));
        let append = || {
            let mut file = OpenOptions::new().append(true).open(&here).unwrap();
            file.write_all(b"more").unwrap();
        };
        saw("append", time_to_see(append, || len() == 7));
        let (new, text) = (one.join("new"), b"another file");
        let replace = || {
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, &here).unwrap();
        };
        let opened = || std::fs::read(&there).is_ok_and(|bytes| bytes == text);
        saw("rename over it", time_to_see(replace, opened));
        let unlink = || std::fs::remove_file(&here).unwrap();
        saw("unlink", time_to_see(unlink, || !there.exists()));
    }
    for (what, times) in &mut times {
        times.sort();
        let (median, most) = (times[ROUNDS / 2], times[ROUNDS - 1]);
        println!("{options}, {what}: median {median:?}, at most {most:?}");
        assert!(median < Duration::from_millis(50), "{options}, {what}: {median:?}");
    }
}
