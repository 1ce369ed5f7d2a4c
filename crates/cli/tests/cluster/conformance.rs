//! Suites that others wrote, on a mount of a real cluster: pjdfstest for POSIX semantics, fsx for
//! bytes and lengths. `crates/cli/tests/tools/install.sh` installs them; `NO_FUSE=1` leaves them out.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::mount::left_out;
use crate::process::Cluster;

/// The folder with the suites.
pub(crate) fn tools() -> PathBuf {
    let folder = std::env::var_os("MILLPOND_TOOLS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools"),
        PathBuf::from,
    );
    let there = folder.join("bin/pjdfstest").exists() && folder.join("bin/fsx").exists();
    assert!(
        there,
        "pjdfstest and fsx are not in {}: run crates/cli/tests/tools/install.sh, or set NO_FUSE=1",
        folder.display()
    );
    folder.join("bin")
}

/// A mount, served by a child of this process; unmounted when dropped.
pub(crate) struct Mounted {
    child: Child,
    pub(crate) folder: PathBuf,
}

impl Mounted {
    pub(crate) fn new(cluster: &Cluster, name: &str, options: &str) -> Self {
        let folder = cluster.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let addresses: Vec<&str> = cluster.nodes.iter().map(|node| &*node.address).collect();
        let mut child = Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["mount", "--foreground", "-o", options, &addresses.join(",")])
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "READY"), "the mount did not start");
        Self { child, folder }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a suite and returns what it printed; panics with that when it fails.
fn passes(command: &mut Command) -> String {
    let done = command.stdin(Stdio::null()).output().unwrap();
    let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.concat();
    assert!(done.status.success(), "{command:?}: {}\n{text}", done.status);
    text
}

/// The suite needs an unprivileged user for its permission tests; every Debian has these.
const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"], ["daemon", "daemon"]]
"#;

/// Modes that claim POSIX semantics, with the folders to mount them at.
const MODES: [(&str, &str); 5] = [
    ("strict", "mode=strict"),
    ("close", "mode=close-to-open"),
    ("undelegated", "mode=close-to-open,nodelegations"),
    ("writer", "mode=one-writer"),
    ("relaxed", "mode=relaxed"),
];

#[test]
fn pjdfstest_passes() {
    if left_out() {
        return;
    }
    let (tools, cluster) = (tools(), Cluster::roomy(3, 2));
    let config = cluster.folder.path().join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).unwrap();
    for (name, options) in MODES {
        let mounted = Mounted::new(&cluster, name, options);
        let mut suite = Command::new(tools.join("pjdfstest"));
        let text = passes(suite.arg("-c").arg(&config).arg("-p").arg(&mounted.folder));
        assert!(text.contains(" 0 failed"), "{options}:\n{text}");
        let passed = text.lines().filter(|line| line.trim_end().ends_with(" ok")).count();
        assert!(passed > 350, "{options}: only {passed} cases passed:\n{text}");
    }
}

#[test]
fn fsx_passes() {
    if left_out() {
        return;
    }
    let (tools, cluster) = (tools(), Cluster::roomy(3, 2));
    let operations = std::env::var("MILLPOND_FSX_OPS").unwrap_or_else(|_| "1000".to_owned());
    let seeds = std::env::var("MILLPOND_FSX_SEEDS").unwrap_or_else(|_| "1".to_owned());
    for (name, options) in MODES {
        let mounted = Mounted::new(&cluster, name, options);
        for seed in seeds.split(',') {
            let file = mounted.folder.join(format!("file{seed}"));
            let artifacts = cluster.folder.path();
            let mut suite = Command::new(tools.join("fsx"));
            passes(suite.args(["-N", &operations, "-S", seed, "-P"]).arg(artifacts).arg(file));
        }
    }
}

/// Our own: what fsx does not do (`crates/cli/tests/tools/file_fuzz.py`).
#[test]
fn random_operations_agree_with_a_model() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let operations = std::env::var("MILLPOND_FUZZ_OPS").unwrap_or_else(|_| "600".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/file_fuzz.py");
    for (seed, (name, options)) in MODES.iter().enumerate() {
        let mounted = Mounted::new(&cluster, name, options);
        let mut fuzzer = Command::new("python3");
        let fuzzer = fuzzer.arg(&script).arg(&mounted.folder).args(["--ops", &operations]);
        passes(fuzzer.args(["--seed", &(seed + 1).to_string()]));
    }
}

/// The same with clones of the files among it, while they are open, mapped and written.
#[test]
fn clones_agree_with_a_model() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let operations = std::env::var("MILLPOND_FUZZ_OPS").unwrap_or_else(|_| "400".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/file_fuzz.py");
    for (seed, (name, options)) in MODES.iter().enumerate() {
        let mounted = Mounted::new(&cluster, name, options);
        let mut fuzzer = Command::new("python3");
        let fuzzer = fuzzer.arg(&script).arg(&mounted.folder).args(["--ops", &operations]);
        let fuzzer = fuzzer.args(["--clone", env!("CARGO_BIN_EXE_millpond")]);
        println!("{name}: {}", passes(fuzzer.args(["--seed", &(seed + 1).to_string()])).trim());
    }
}

/// Runs a command of the shell that must succeed, and returns what it prints.
fn millpond(args: &[&str], path: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    passes(command.args(&args[..1]).arg(path).args(&args[1..]))
}

#[test]
fn a_path_tells_where_its_bytes_lie_and_keeps_to_its_quota() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let mounted = Mounted::new(&cluster, "mount", "");
    let folder = mounted.folder.join("team");
    std::fs::create_dir(&folder).unwrap();
    let none = Command::new(env!("CARGO_BIN_EXE_millpond")).arg("quota").arg(&folder).output();
    let none = String::from_utf8_lossy(&none.unwrap().stderr).into_owned();
    assert!(none.contains("no quota applies to it"), "{none}");
    millpond(&["quota", "--bytes", "1MiB", "--inodes", "5"], &folder);
    let file = folder.join("file");
    std::fs::write(&file, vec![7; 600 << 10]).unwrap();
    let over = std::fs::File::create(folder.join("over")).unwrap();
    let full = (&over).write_all(&vec![8; 600 << 10]).and_then(|()| over.sync_all());
    assert_eq!(full.unwrap_err().raw_os_error(), Some(122), "EDQUOT");
    // A small write is held: who closes the file or makes it durable hears of it.
    std::fs::write(&file, vec![7; (1 << 20) - 100]).unwrap();
    (&over).write_all(&[8; 101]).unwrap();
    assert_eq!(over.metadata().unwrap().len(), 101);
    assert_eq!(over.sync_all().unwrap_err().raw_os_error(), Some(122), "EDQUOT");
    over.sync_all().unwrap();
    assert_eq!(std::fs::read(folder.join("over")).unwrap(), b"", "it was never there");
    std::fs::write(&file, vec![7; 600 << 10]).unwrap();
    let quota: serde_json::Value =
        serde_json::from_str(&millpond(&["quota", "--json"], &folder)).unwrap();
    assert_eq!((&quota["bytes"], &quota["inodes"]), (&(600 << 10).into(), &3.into()), "{quota}");
    // What `df` says of it and of a file in it.
    for path in [&folder, &file] {
        let said = Command::new("stat").args(["-f", "-c", "%b %a %S"]).arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let numbers: Vec<u64> = said.split_whitespace().map(|it| it.parse().unwrap()).collect();
        let (all, free) = (numbers[0] * numbers[2], numbers[1] * numbers[2]);
        assert_eq!((all, free), (1 << 20, 424 << 10), "{said}");
    }
    std::fs::write(folder.join("fourth"), b"").unwrap();
    std::fs::write(folder.join("fifth"), b"").unwrap();
    let sixth = std::fs::write(folder.join("sixth"), b"").unwrap_err();
    assert_eq!(sixth.raw_os_error(), Some(122), "EDQUOT");

    let info: serde_json::Value =
        serde_json::from_str(&millpond(&["info", "--json"], &file)).unwrap();
    assert_eq!(info["chunks"].as_array().unwrap().len(), 3, "{info}");
    assert_eq!(info["chunks"][2]["bytes"], 88 << 10, "{info}");
    assert_eq!(info["chunks"][0]["nodes"].as_array().unwrap().len(), 2, "two replicas: {info}");
    let sum: serde_json::Value =
        serde_json::from_str(&millpond(&["summary", "--json"], &mounted.folder)).unwrap();
    assert_eq!((&sum["files"], &sum["directories"]), (&4.into(), &2.into()), "{sum}");
    let elsewhere = Command::new(env!("CARGO_BIN_EXE_millpond")).args(["info", "/"]).output();
    let elsewhere = elsewhere.unwrap();
    let text = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(!elsewhere.status.success() && text.contains("not on a mount"), "{text}");
}

#[test]
fn what_a_quota_refused_goes_with_its_file() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let mounted = Mounted::new(&cluster, "mount", "");
    let folder = mounted.folder.join("team");
    std::fs::create_dir(&folder).unwrap();
    millpond(&["quota", "--bytes", "64KiB"], &folder);
    let path = folder.join("file");
    let file = std::fs::File::create(&path).unwrap();
    for mib in 1..7 {
        let full = file.write_all_at(&vec![7; 1 << 20], mib << 20).and_then(|()| file.sync_all());
        assert_eq!(full.unwrap_err().raw_os_error(), Some(122), "EDQUOT");
    }
    let addresses: Vec<&str> = cluster.nodes.iter().map(|node| &*node.address).collect();
    let found = || {
        let mut fsck = Command::new(env!("CARGO_BIN_EXE_millpond"));
        fsck.args(["fsck", "--settle", "0", &addresses.join(",")]);
        let done = fsck.output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (code, text) = found();
    assert_eq!(code, Some(4), "nothing was written behind the end: {text}");
    drop(file);
    std::fs::remove_file(path).unwrap();
    crate::process::until("the chunks are gone", || {
        found().1.contains(" 0 chunks: clean").then_some(())
    });
}
