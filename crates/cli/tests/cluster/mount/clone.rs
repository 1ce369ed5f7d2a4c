//! `millpond clone`: what shares bytes, and goes its own way when it is written.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use millpond_env::Rng;

use super::host::{Host, left_out};
use super::{HANG, number};
use crate::metrics::metrics;
use crate::process::{Cluster, until};

const MIB: u64 = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn try_clone(host: &Host, words: &[&str]) -> Output {
    host.run(&[&["clone"], words].concat())
}

/// Clones a file or, with `-r` before it, a tree; what the command said beside its work.
fn clone(host: &Host, from: &Path, to: &Path) -> String {
    let done = try_clone(host, &[text(from), text(to)]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{} to {}: {said}", from.display(), to.display());
    said
}

fn refused(host: &Host, words: &[&str]) -> String {
    let done = try_clone(host, words);
    assert_eq!(done.status.code(), Some(1), "{words:?}");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// Nothing is wrong with the names and chunks of a cluster that nobody writes to.
fn assert_sound(host: &Host) {
    let done = host.run(&["fsck", &host.addresses, "--settle", "1", "--read-data"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
}

/// Bytes in use on all disks.
fn used(cluster: &Cluster) -> u64 {
    let of = |page: String| -> u64 {
        let lines = page.lines().filter(|line| line.starts_with("millpond_disk_used_bytes{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    cluster.nodes.iter().map(|node| of(metrics(&node.http))).sum()
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn assert_same(path: &Path, wanted: &[u8], what: &str) {
    let found = fs::read(path).unwrap();
    assert_eq!(found.len(), wanted.len(), "{what}: {}", path.display());
    let wrong = found.iter().zip(wanted).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "{what}: {}", path.display());
}

/// The same change of a file and of what it should be.
fn write_at(path: &Path, model: &mut Vec<u8>, (offset, new): (u64, &[u8])) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(new, offset).unwrap();
    drop(file);
    if new.is_empty() {
        // That makes no file longer.
        return;
    }
    let start = usize::try_from(offset).unwrap();
    model.resize(model.len().max(start + new.len()), 0);
    model[start..start + new.len()].copy_from_slice(new);
}

/// A one-writer mount knows all names of directories that it made, but for those that the command had a meta make.
#[test]
fn a_one_writer_mount_has_what_was_cloned_into_it() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("one", "mode=one-writer");
    fs::create_dir_all(target.join("tree/below")).unwrap();
    for name in ["tree/a", "tree/below/b"] {
        fs::write(target.join(name), bytes(1, 3 * MIB)).unwrap();
    }
    host.must(&["clone", "-r", text(&target.join("tree")), text(&target.join("copy"))]);
    for name in ["copy/a", "copy/below/b"] {
        assert_same(&target.join(name), &bytes(1, 3 * MIB), "of a tree");
        // Opened, and not made anew.
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).open(target.join(name)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3 * MIB);
    }
    fs::create_dir(target.join("new")).unwrap();
    assert!(!target.join("new/a").exists());
    clone(&host, &target.join("tree/a"), &target.join("new/a"));
    assert_same(&target.join("new/a"), &bytes(1, 3 * MIB), "of a file");
}

#[test]
fn a_clone_takes_no_room_until_one_of_the_two_is_written() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy_and_watched(3, 2);
    let host = Host::new(&cluster, HANG);
    let mounts = [host.mount("one", ""), host.mount("two", "")];
    let empty = used(&cluster);
    let mut models = [bytes(1, 40 * MIB), Vec::new()];
    let [source, copy] = ["source", "copy"].map(|name| mounts[0].join(name));
    fs::write(&source, &models[0]).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).unwrap();
    let full = used(&cluster);
    assert!(full >= empty + 80 * MIB, "two replicas: {empty} to {full}");
    assert_eq!(clone(&host, &source, &copy), "");
    models[1] = models[0].clone();
    assert!(used(&cluster) < full + MIB, "{full} to {}", used(&cluster));
    assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o777, 0o640);
    for mount in &mounts {
        assert_same(&mount.join("copy"), &models[0], "the clone");
    }
    // A part of a chunk, over the ends of some, a whole one, behind the end.
    let writes = [(100, 50), (MIB - 7, 600_000), (2 * MIB, 1 << 18), (41 * MIB + 3, 9)];
    for (n, (offset, len)) in writes.into_iter().enumerate() {
        write_at(&mounts[1].join("copy"), &mut models[1], (offset, &bytes(n as u64, len)));
        write_at(&source, &mut models[0], (offset + 70_000, &bytes(9 + n as u64, len)));
    }
    for mount in &mounts {
        assert_same(&mount.join("source"), &models[0], "written here");
        assert_same(&mount.join("copy"), &models[1], "written there");
    }
    let shown = host.must(&["info", text(&copy), "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let names = |index: usize| shown["chunks"][index]["data"].as_str().unwrap().to_owned();
    assert_eq!((&shown["users"], &shown["bases"]), (&1.into(), &1.into()), "{shown}");
    assert!(names(0) == shown["data"] && names(1) != names(0), "one is written: {shown}");
    assert_eq!(shown["chunks"][1]["bytes"], 1 << 18, "{shown}");
    let diverged = used(&cluster);
    assert!(diverged < full + 16 * MIB, "some chunks of each: {full} to {diverged}");
    assert_sound(&host);
    // What only the copy has left stays as long as it.
    fs::remove_file(&source).unwrap();
    assert_same(&mounts[1].join("copy"), &models[1], "alone");
    until("chunks of the source alone go", || (used(&cluster) < diverged).then_some(()));
    assert_same(&mounts[0].join("copy"), &models[1], "alone, and for longer");
    assert_sound(&host);
    fs::remove_file(&copy).unwrap();
    until("all chunks go", || (used(&cluster) < empty + MIB).then_some(()));
    assert_sound(&host);
}

/// Files on two mounts, and what they should have in them.
struct Files<'h> {
    host: &'h Host,
    mounts: [PathBuf; 2],
    model: BTreeMap<String, Vec<u8>>,
    rng: Rng,
    made: usize,
    copied: usize,
}

impl<'h> Files<'h> {
    fn new(host: &'h Host, mounts: [PathBuf; 2], seed: u64) -> Self {
        let model = BTreeMap::new();
        Self { host, mounts, model, rng: Rng::new(seed), made: 0, copied: 0 }
    }

    fn mount(&mut self) -> PathBuf {
        self.mounts[usize::try_from(self.rng.below(2)).unwrap()].clone()
    }

    fn name(&mut self) -> String {
        let n = usize::try_from(self.rng.below(self.model.len() as u64)).unwrap();
        self.model.keys().nth(n).unwrap().clone()
    }

    /// A length: of files in the store, of one chunk, of some.
    fn len(&mut self) -> u64 {
        let most = [100, 20_000, 300_000, 3 * MIB][usize::try_from(self.rng.below(4)).unwrap()];
        self.rng.below(most)
    }

    fn make(&mut self) {
        let (len, seed) = (self.len(), self.rng.next_u64());
        self.made += 1;
        let name = format!("f{}", self.made);
        let (content, path) = (bytes(seed, len), self.mount().join(&name));
        // A meta that has just started knows no chains for a moment.
        until("a new file", || match File::create(&path) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            made => Some(made.unwrap()),
        });
        fs::write(path, &content).unwrap();
        self.model.insert(name, content);
    }

    /// Makes a range zeros by fallocate(1), which keeps the length.
    fn punch(&mut self, path: &Path, name: &str) {
        let (offset, len) = (self.len(), self.len() + 1);
        let how = ["--punch-hole", "--zero-range"][usize::try_from(self.rng.below(2)).unwrap()];
        let range = [offset.to_string(), len.to_string()];
        let words = [how, "--keep-size", "--offset", &range[0], "--length", &range[1]];
        let done = Command::new("fallocate").args(words).arg(path).status().unwrap();
        assert!(done.success(), "{words:?} of {}", path.display());
        let model = self.model.get_mut(name).unwrap();
        let end = model.len().min(usize::try_from(offset + len).unwrap());
        let start = usize::try_from(offset).unwrap().min(end);
        model[start..end].fill(0);
    }

    fn clone(&mut self, name: &str) {
        self.made += 1;
        let (other, mount) = (format!("f{}", self.made), self.mount());
        let said = clone(self.host, &mount.join(name), &mount.join(&other));
        self.copied += usize::from(!said.is_empty());
        self.model.insert(other, self.model[name].clone());
    }

    /// Does something, each with an open and a close of its own, so that every mode shows it.
    fn step(&mut self) {
        if self.model.len() < 3 {
            return self.make();
        }
        let (name, mount, len) = (self.name(), self.mount(), self.len());
        let path = mount.join(&name);
        match self.rng.below(12) {
            0..=3 => {
                let (offset, seed) = (self.len(), self.rng.next_u64());
                let model = self.model.get_mut(&name).unwrap();
                write_at(&path, model, (offset, &bytes(seed, len)));
            }
            4 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(len).unwrap();
                let model = self.model.get_mut(&name).unwrap();
                model.resize(usize::try_from(len).unwrap(), 0);
            }
            5 => {
                fs::write(&path, bytes(len, len)).unwrap();
                self.model.insert(name, bytes(len, len));
            }
            6 | 7 => self.punch(&path, &name),
            8 | 9 if self.model.len() < 8 => self.clone(&name),
            _ if self.model.len() >= 8 => {
                fs::remove_file(&path).unwrap();
                self.model.remove(&name);
            }
            _ => assert_same(&path, &self.model[&name], "in between"),
        }
    }

    fn check(&self, what: &str) {
        for (name, wanted) in &self.model {
            for mount in &self.mounts {
                assert_same(&mount.join(name), wanted, what);
            }
        }
    }
}

#[test]
fn files_and_their_clones_are_what_was_written_to_each() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let (seed, steps) = (number("MILLPOND_SEED", 7) as u64, number("MILLPOND_CLONES", 250));
    for mode in ["mode=close-to-open", "mode=strict"] {
        let mounts = [1, 2].map(|n| host.mount(&format!("{}{n}", &mode[5..7]), mode));
        let mut files = Files::new(&host, mounts, seed);
        for _ in 0..steps {
            files.step();
        }
        files.check(mode);
        println!("{mode}: {} files, {} of them copied", files.made, files.copied);
        for (name, _) in std::mem::take(&mut files.model) {
            fs::remove_file(files.mounts[0].join(name)).unwrap();
        }
    }
    assert_sound(&host);
}

#[test]
fn nothing_is_lost_when_daemons_and_metas_die_among_clones() {
    if left_out() {
        return;
    }
    let mut cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let mounts = [host.mount("one", ""), host.mount("two", "")];
    let mut files = Files::new(&host, mounts, number("MILLPOND_SEED", 11) as u64);
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                files.step();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut rng = Rng::new(3);
        for round in 0..number("MILLPOND_KILLS", 10) {
            let seen = done.load(Ordering::Relaxed);
            until("work is done", || {
                let goes_on = done.load(Ordering::Relaxed) > seen + 5 || work.is_finished();
                goes_on.then_some(())
            });
            thread::sleep(Duration::from_millis(rng.below(30)));
            let server = match round % 4 {
                0 | 2 => {
                    host.kill_daemon();
                    continue;
                }
                1 => &mut cluster.manager,
                _ => &mut cluster.nodes[round / 4 % 3],
            };
            server.kill();
            thread::sleep(Duration::from_millis(rng.below(200)));
            server.run();
            until("every replica serves", || cluster.nodes[0].all_serve().then_some(()));
        }
        over.store(true, Ordering::Release);
    });
    files.check("after the kills");
    println!("{} steps, {} files", done.load(Ordering::Relaxed), files.made);
    assert_sound(&host);
}

/// Blocks of a writer, so far apart that they lie on all chains.
const BLOCKS: u64 = 41;
const APART: u64 = 100_000;

/// Writes its count of writes to one block after the other, until it is over.
fn count_up(path: &Path, of: u64, (count, over): (&AtomicU64, &AtomicBool)) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    for n in 1.. {
        let at = (n % BLOCKS * 2 + of) * APART;
        file.write_all_at(&n.to_le_bytes(), at).unwrap();
        count.store(n, Ordering::Release);
        if over.load(Ordering::Acquire) {
            return;
        }
    }
}

/// The last write of a writer that a file has; all before it must be there, and none after it.
fn counted(path: &Path, of: u64) -> u64 {
    let file = File::open(path).unwrap();
    let read = |block: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, (block * 2 + of) * APART).unwrap();
        u64::from_le_bytes(bytes)
    };
    let all: Vec<u64> = (0..BLOCKS).map(read).collect();
    let last = *all.iter().max().unwrap();
    for (block, found) in all.iter().enumerate() {
        let behind = (last + BLOCKS - block as u64) % BLOCKS;
        let wanted = last.saturating_sub(behind);
        let wanted = if wanted % BLOCKS == block as u64 { wanted } else { 0 };
        assert_eq!(*found, wanted, "block {block} of {all:?}");
    }
    last
}

#[test]
fn a_clone_is_of_one_moment_and_its_writers_lose_nothing() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let mounts = [host.mount("one", ""), host.mount("two", "")];
    for round in 0..number("MILLPOND_ROUNDS", 3) {
        let path = |mount: usize, name: &str| mounts[mount].join(format!("{name}{round}"));
        fs::write(path(0, "file"), vec![0; usize::try_from((2 * BLOCKS + 2) * APART).unwrap()])
            .unwrap();
        let (counts, over) = ([const { AtomicU64::new(0) }; 2], AtomicBool::new(false));
        thread::scope(|scope| {
            let (over, path, counts) = (&over, &path, &counts);
            for (of, count) in counts.iter().enumerate() {
                scope.spawn(move || count_up(&path(of, "file"), of as u64, (count, over)));
            }
            for n in 0..4 {
                let seen = || counts.each_ref().map(|count| count.load(Ordering::Acquire));
                let before = seen();
                until("writes", || (seen()[0] > before[0] + 20).then_some(()));
                let (name, before) = (format!("clone{n}-"), seen());
                let said = clone(&host, &path(n % 2, "file"), &path(n % 2, &name));
                assert_eq!(said, "", "it lies over too few to be copied");
                let after = seen();
                for of in 0..2 {
                    let found = counted(&path(of, &name), of as u64);
                    // One more may have been written and not counted yet.
                    assert!(
                        (before[of]..=after[of] + 1).contains(&found),
                        "{found} is not of {before:?} to {after:?}"
                    );
                }
            }
            over.store(true, Ordering::Release);
        });
        for (of, count) in counts.iter().enumerate() {
            let last = count.load(Ordering::Acquire);
            for mount in 0..2 {
                assert_eq!(counted(&path(mount, "file"), of as u64), last, "of mount {mount}");
            }
        }
    }
    assert_sound(&host);
}

/// What is appended is told to a meta some ms later: somebody else may have given the file chunks of its own by then, who
/// knew of less of it.
#[test]
fn what_is_appended_while_others_clone_and_write_is_all_there() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let (here, there) = (host.mount("here", ""), host.mount("there", ""));
    for round in 0..number("MILLPOND_ROUNDS", 6) {
        let name = format!("log{round}");
        fs::write(here.join(&name), vec![1; 20_000]).unwrap();
        until("the other mount to see it", || there.join(&name).exists().then_some(()));
        let over = AtomicBool::new(false);
        let (mut wanted, marks) = thread::scope(|scope| {
            let (path, over) = (here.join(&name), &over);
            let appends = scope.spawn(move || {
                let (mut wanted, mut n) = (vec![1; 20_000], 0_u64);
                let file = OpenOptions::new().write(true).open(path).unwrap();
                while !over.load(Ordering::Acquire) {
                    n += 1;
                    let record = [n.to_le_bytes(); 40].concat();
                    file.write_all_at(&record, wanted.len() as u64).unwrap();
                    wanted.extend_from_slice(&record);
                }
                wanted
            });
            let (path, mut marks) = (there.join(&name), Vec::new());
            let marked = OpenOptions::new().write(true).open(&path).unwrap();
            for n in 0..4 {
                let before = fs::metadata(&path).unwrap().len();
                until("it grows", || {
                    (fs::metadata(&path).unwrap().len() > before + 3000).then_some(())
                });
                let said = clone(&host, &path, &there.join(format!("{name}-{n}")));
                assert_eq!(said, "");
                marked.write_all_at(&[0xff; 9], n * 4000).unwrap();
                marks.push(usize::try_from(n * 4000).unwrap());
            }
            over.store(true, Ordering::Release);
            (appends.join().unwrap(), marks)
        });
        let appended = wanted.clone();
        for (n, mark) in marks.into_iter().enumerate() {
            let found = fs::read(here.join(format!("{name}-{n}"))).unwrap();
            assert!(found.len() > 20_000 && found.len() <= appended.len(), "{}", found.len());
            assert!(found == wanted[..found.len()], "clone {n} of round {round}");
            wanted[mark..mark + 9].fill(0xff);
        }
        for mount in [&here, &there] {
            assert_same(&mount.join(&name), &wanted, "all that was appended");
        }
    }
    assert_sound(&host);
}

#[test]
fn a_tree_is_cloned_and_what_cannot_be_is_said() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let (one, two) = (host.mount("one", ""), host.mount("two", ""));
    let tree = one.join("tree");
    for n in 0..500_u64 {
        let folder = tree.join(format!("part{}", n % 7));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(n.to_string()), bytes(n, n * 97)).unwrap();
    }
    symlink("part0/7", tree.join("link")).unwrap();
    fs::set_permissions(tree.join("part6"), fs::Permissions::from_mode(0o555)).unwrap();
    let done = try_clone(&host, &["-r", text(&tree), text(&one.join("copy"))]);
    let (said, told) =
        (String::from_utf8_lossy(&done.stderr), String::from_utf8_lossy(&done.stdout));
    assert!(done.status.success() && said.is_empty(), "{said}");
    assert!(told.starts_with("500 files of ") && told.contains(" 8 folders, 1 links"), "{told}");
    let both = ["tree", "copy"].map(|name| two.join(name));
    let same = Command::new("diff").args(["-r", "--no-dereference"]).args(both).status().unwrap();
    assert!(same.success());
    let mode = fs::metadata(two.join("copy/part6")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o555);

    let (file, other) = (tree.join("part0/490"), one.join("other"));
    let here = |name: &str| text(&one.join(name)).to_owned();
    let cases: [(&[&str], &str); 8] = [
        (&[text(&file), &here("copy")], "already exists"),
        (&["-r", text(&tree), &here("copy")], "already exists"),
        (&[text(&tree), text(&other)], "add -r"),
        (&["-r", text(&tree), &here("tree/inner")], "would be inside the cloned folder"),
        (&[&here("nothing"), text(&other)], "No such file"),
        (&[text(&file), "/tmp/other"], "not on a mount"),
        (&["/etc/passwd", text(&other)], "not on a mount"),
        (&[text(&file), &here("nowhere/other")], "No such file"),
    ];
    for (words, wanted) in cases {
        let said = refused(&host, words);
        assert!(said.contains(wanted), "{words:?}: {said}");
    }
    assert!(!other.exists());
    // Another mount of the same cluster is as good, and over a quota nothing is left.
    clone(&host, &file, &two.join("over"));
    assert_same(&one.join("over"), &bytes(490, 490 * 97), "by another mount");
    fs::create_dir(one.join("small")).unwrap();
    host.must(&["quota", &here("small"), "--bytes", "50KB"]);
    clone(&host, &file, &one.join("small/fits"));
    let said = refused(&host, &[text(&file), &here("small/more")]);
    assert!(said.contains("over the quota"), "{said}");
    assert!(!one.join("small/more").exists());
    let ro = host.mount("ro", "ro");
    let said = refused(&host, &[text(&file), text(&ro.join("other"))]);
    assert!(said.contains("read-only"), "{said}");
    let away = Cluster::start(1, 1);
    let stranger = Host::new(&away, HANG);
    let there = stranger.mount("there", "");
    let said = refused(&host, &[text(&file), text(&there.join("other"))]);
    assert!(said.contains("another cluster"), "{said}");
    assert_sound(&host);
}
