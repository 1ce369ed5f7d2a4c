//! A host that mounts: a run directory of its own, and nothing left mounted whatever happens.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use millpond_env::{ProcessId, ProcessSignal};
use millpond_fuse::RunDir;
use millpond_fuse::admin::{Answer, DaemonStatus, Listed, Request, call};
use millpond_fuse_wire::{abort_connection, mounts, unmount};

use crate::process::{Cluster, until};

/// Whether tests on mounts are left out.
pub(crate) fn left_out() -> bool {
    let left_out = std::env::var_os("NO_FUSE").is_some();
    if left_out {
        eprintln!("NO_FUSE is set: this test is left out");
    }
    left_out
}

/// Mounts below a folder, and the processes that serve them. Declare it after the cluster: it must go
/// first.
pub(super) struct Host {
    pub(super) folder: PathBuf,
    pub(super) run_dir: RunDir,
    pub(super) addresses: String,
    /// The network namespace that its processes are in, if it is not this one.
    namespace: Option<String>,
    over: Arc<(Mutex<bool>, Condvar)>,
}

impl Host {
    /// `hang` is how long the test may take before its mounts are aborted and it fails.
    pub(super) fn new(cluster: &Cluster, hang: Duration) -> Self {
        let addresses: Vec<&str> = cluster.nodes.iter().map(|node| &*node.address).collect();
        Self::at(cluster.folder.path(), addresses.join(","), hang)
    }

    /// Mounts the cluster at `addresses` in a new folder below `folder`.
    pub(super) fn at(folder: &Path, addresses: String, hang: Duration) -> Self {
        let folder = folder.canonicalize().unwrap();
        let free = |n: &u32| std::fs::create_dir(folder.join(format!("host{n}"))).is_ok();
        let folder = folder.join(format!("host{}", (0..9).find(free).unwrap()));
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        watch(folder.clone(), Arc::clone(&over), hang);
        let run_dir = RunDir::new(folder.join("run"));
        Self { folder, run_dir, addresses, namespace: None, over }
    }

    /// A host with a network of its own. Not by `ip netns exec`, which gives a process its own mounts too.
    pub(super) fn within(mut self, namespace: String) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// The program, with this host's run directory.
    pub(super) fn command(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_millpond");
        let mut command = match &self.namespace {
            None => Command::new(program),
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
                command
            }
        };
        command.env("MILLPOND_RUN_DIR", self.run_dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs the program.
    pub(super) fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Runs the program, which must succeed; what it printed.
    pub(super) fn must(&self, args: &[&str]) -> String {
        let done = self.run(args);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {said}\n{}", self.log());
        String::from_utf8(done.stdout).unwrap()
    }

    /// Mounts the cluster on a new folder.
    pub(super) fn mount(&self, name: &str, options: &str) -> PathBuf {
        let target = self.folder.join(name);
        std::fs::create_dir_all(&target).unwrap();
        self.must(&["mount", &self.addresses, target.to_str().unwrap(), "-o", options]);
        target
    }

    /// Unmounts, as soon as programs that ran below it have left: what git starts in the background ends a moment after git.
    pub(super) fn umount(&self, target: &Path) {
        let args = ["umount", target.to_str().unwrap()];
        until("nothing is open below the mount", || {
            let done = self.run(&args);
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success() || said.contains("in use"), "{said}\n{}", self.log());
            done.status.success().then_some(())
        });
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.run_dir.log()).unwrap_or_default()
    }

    fn ask(&self, request: &Request) -> Option<Answer> {
        call(&self.run_dir, request, Duration::from_secs(10)).ok()
    }

    /// The daemon, if one answers.
    pub(super) fn status(&self) -> Option<DaemonStatus> {
        match self.ask(&Request::Status)? {
            Answer::Status(status) => Some(status),
            answer => panic!("{answer:?}"),
        }
    }

    pub(super) fn listed(&self) -> Vec<Listed> {
        match self.ask(&Request::List) {
            Some(Answer::Mounts(listed)) => listed,
            answer => panic!("{answer:?}"),
        }
    }

    /// `kill -9` of the daemon; returns when the next one answers.
    pub(super) fn kill_daemon(&self) {
        let (status, _) = until("a daemon answers", || self.status());
        signal(status.pid, ProcessSignal::Kill);
        until("another daemon answers", || self.status().filter(|it| it.pid != status.pid));
    }
}

/// Waits until holder and daemon have ended by themselves.
pub(super) fn ended(status: &DaemonStatus) {
    for pid in [status.pid, status.holder_pid] {
        until("the processes end", || ProcessId::of(pid).is_none().then_some(()));
    }
}

/// Sends a signal to a process that is there.
pub(super) fn signal(pid: u32, signal: ProcessSignal) {
    let process = ProcessId::of(pid).unwrap();
    assert!(process.signal(signal).unwrap());
}

/// Takes all mounts below a folder away, with force if need be.
fn clear(folder: &Path, abort: bool) {
    for mount in mounts().unwrap_or_default() {
        if mount.target.starts_with(folder) {
            if abort {
                abort_connection(mount.connection).ok();
            }
            unmount(&mount.target, true).ok();
        }
    }
}

/// Ends a test that hangs: whoever waits for a mount gets an error.
fn watch(folder: PathBuf, over: Arc<(Mutex<bool>, Condvar)>, hang: Duration) {
    thread::spawn(move || {
        let (done, changed) = &*over;
        let waits = |guard, time| {
            changed.wait_timeout_while(guard, time, |done: &mut bool| !*done).unwrap()
        };
        let (guard, wait) = waits(done.lock().unwrap(), hang);
        if wait.timed_out() {
            eprintln!("the test hangs: its mounts are aborted");
            clear(&folder, true);
            if waits(guard, Duration::from_secs(20)).1.timed_out() {
                std::process::exit(101);
            }
            panic!("the test took too long");
        }
    });
}

impl Drop for Host {
    fn drop(&mut self) {
        let status = self.status();
        if thread::panicking() {
            eprintln!("--- the log of the mounts\n{}", self.log());
        }
        clear(&self.folder, thread::panicking());
        if let Some(holder) = status.and_then(|status| ProcessId::of(status.holder_pid)) {
            let _ = holder.signal(ProcessSignal::Terminate);
            for _ in 0..1000 {
                if !holder.is_there() {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            let _ = holder.signal(ProcessSignal::Kill);
        }
        *self.over.0.lock().unwrap() = true;
        self.over.1.notify_all();
    }
}
