//! `millpond dev`: a cluster of real processes on this host, for people and for tests.

mod etcd;
mod network;
mod plan;
mod process;
mod up;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use millpond_env::ProcessSignal;

use self::network::Partition;
use self::plan::{Network, Role, State, Store, Wish};
use super::admin::Short;
use super::admin::remote::Where;
use super::interrupt::Interrupt;
use super::output;
use crate::exit::{FAILED, OK, Outcome};
use millpond_node::config::Size;

pub(super) const EXAMPLES: &str = "Examples:
  millpond dev up --nodes 3 --replicas 2
  eval \"$(millpond dev env)\" && millpond admin status
  millpond dev kill n2 && millpond dev start n2
  millpond dev up --nodes 3 --replicas 3 --managers 3 --store etcd --netns
  millpond dev partition n1 --from n2 --one-way && millpond dev heal
  millpond dev down --purge";

/// The managers of a cluster on this host answer at once; without them nodes are shown without their identity.
const ASK: Duration = Duration::from_millis(500);

/// Addresses that clients are given to find a cluster by.
const CLIENT_ADDRESSES: usize = 4;

/// Where the cluster is, and what to do.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder of the cluster.
    #[arg(long, global = true, default_value = ".millpond-dev", env = "MILLPOND_DEV")]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start a cluster and wait until it serves; a folder that has a cluster starts it again.
    Up(Up),
    /// Show the processes of the cluster.
    Status,
    /// Print the environment variables that other commands of millpond need.
    Env,
    /// Stop the cluster; its data stays.
    Down {
        /// Also remove the folder.
        #[arg(long)]
        purge: bool,
    },
    /// Kill a process without warning (SIGKILL).
    Kill(Name),
    /// Freeze a process (SIGSTOP).
    Stop(Name),
    /// Resume a frozen process (SIGCONT).
    Cont(Name),
    /// Start a process that does not run.
    Start(Name),
    /// Stop a process cleanly and start it again.
    Restart(Name),
    /// Start one more node.
    Add,
    /// Cut a node off from the network; needs a cluster that was started with --netns.
    Partition {
        /// Name of the process: n1, m1.
        node: String,
        /// Cut it off only from this process; `host` means clients and operators.
        #[arg(long, value_name = "NODE")]
        from: Option<String>,
        /// Cut one direction only: the node receives from the others, but does not reach them.
        #[arg(long)]
        one_way: bool,
    },
    /// End all partitions.
    Heal,
    /// Print the log of a process.
    Logs {
        /// Name of the process: n1, m1, e1.
        node: String,
        /// Continue with new lines, until Ctrl-C.
        #[arg(long, short)]
        follow: bool,
    },
}

/// A process.
#[derive(Debug, clap::Args)]
struct Name {
    /// Name of the process: n1, m1, e1.
    #[arg(value_name = "NODE")]
    name: String,
}

/// What a new cluster is to be like.
#[derive(Debug, clap::Args)]
struct Up {
    /// Number of nodes with disks.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=200))]
    nodes: u32,
    /// Replicas of every chain.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=6))]
    replicas: u8,
    /// Number of managers; more than one needs --store etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=9))]
    managers: u32,
    /// Where managers store their state.
    #[arg(long, value_enum, default_value = "embedded")]
    store: Store,
    /// Number of disks of each node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    disks: u32,
    /// Size of each disk.
    #[arg(long, default_value = "2GiB")]
    size: Size,
    /// Memory of each server.
    #[arg(long, default_value = "256MiB")]
    memory: Size,
    /// Give each process a network namespace, so that it can be cut off; needs root and iproute2.
    #[arg(long)]
    netns: bool,
    /// Additional flags for the servers with disks.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

/// Runs it.
pub(super) fn run(args: &Args) -> Outcome {
    if let Command::Up(_) = &args.command {
        std::fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    }
    let missing = || {
        format!(
            "{}: no cluster in this folder: run 'millpond dev up', or name its folder with --dir",
            args.dir.display()
        )
    };
    let folder = args.dir.canonicalize().with_context(missing)?;
    let lock = lock(&folder)?;
    if let Command::Up(up) = &args.command {
        return up::run(&folder, |program| wish(up, &folder, program));
    }
    let mut state = State::read(&folder)?.with_context(missing)?;
    match &args.command {
        Command::Up(_) => Ok(OK),
        Command::Status => output::bytes(status(&state, &identities(&state)).as_bytes()),
        Command::Env => output::bytes(environment(&state).as_bytes()),
        Command::Down { purge } => down(&mut state, &folder, *purge),
        Command::Kill(it) => signal(&mut state, &folder, (&it.name, ProcessSignal::Kill)),
        Command::Stop(it) => signal(&mut state, &folder, (&it.name, ProcessSignal::Stop)),
        Command::Cont(it) => signal(&mut state, &folder, (&it.name, ProcessSignal::Continue)),
        Command::Start(it) => start(&mut state, &folder, &it.name),
        Command::Restart(it) => {
            state.member(&it.name)?;
            process::end(&mut state, &folder, std::slice::from_ref(&it.name))?;
            start(&mut state, &folder, &it.name)
        }
        Command::Add => {
            let taken = up::ports(&state);
            let name = state.add(Role::Storage, || process::free_port(&taken))?;
            start(&mut state, &folder, &name)
        }
        Command::Partition { node, from, one_way } => {
            let what = Partition { node, from: from.as_deref(), one_way: *one_way };
            let done = network::partition(&mut state, what);
            state.write(&folder)?;
            done?;
            output::line(&format!("{node} is cut off; 'millpond dev heal' ends the partition"))
        }
        Command::Heal => {
            let done = network::heal(&mut state);
            state.write(&folder)?;
            output::line(&format!("{} directions are open again", done?))
        }
        Command::Logs { node, follow } => {
            state.member(node)?;
            drop(lock);
            logs(&folder, node, *follow)
        }
    }
}

/// One command at a time changes a cluster.
fn lock(folder: &Path) -> anyhow::Result<std::fs::File> {
    let path = folder.join("lock");
    let open = || {
        let options = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
        options.lock()?;
        std::io::Result::Ok(options)
    };
    open().with_context(|| path.display().to_string())
}

fn wish(up: &Up, folder: &Path, program: PathBuf) -> anyhow::Result<State> {
    let network = if up.netns { Some(Network::for_folder(folder)?) } else { None };
    if up.store == Store::Etcd {
        etcd::program(&program)?;
    }
    let wish = Wish {
        nodes: up.nodes,
        managers: up.managers,
        replicas: up.replicas,
        disks: up.disks,
        size: up.size.to_string().replace(' ', ""),
        memory: up.memory.to_string().replace(' ', ""),
        store: up.store,
        flags: up.flags.clone(),
        network,
    };
    let mut taken = Vec::new();
    State::new(wish, program, || {
        let port = process::free_port(&taken)?;
        taken.push(port);
        Ok(port)
    })
}

/// The beginning of each node's identity, as `millpond admin` shows and takes it, by address.
fn identities(state: &State) -> BTreeMap<String, String> {
    if state.members.iter().all(|member| member.running().is_none()) {
        return BTreeMap::new();
    }
    let cluster = Where::at(state.servers()).within(ASK).cluster();
    let Ok(status) = cluster.and_then(|mut cluster| cluster.status()) else {
        return BTreeMap::new();
    };
    let short = Short::of(&status);
    let nodes = status.nodes.iter();
    let named = nodes.flat_map(|node| node.addresses.iter().map(|at| (at.clone(), &node.id)));
    named.map(|(address, id)| (address, short.show(id))).collect()
}

/// A line for each process.
fn status(state: &State, identities: &BTreeMap<String, String>) -> String {
    let head = ["NAME", "ROLE", "NODE", "ADDRESS", "METRICS", "PID", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for member in &state.members {
        let running = member.running();
        let word = match running {
            Some(process) if process.is_stopped() => "frozen",
            Some(_) => "runs",
            None => "does not run",
        };
        let cut = state.network.as_ref().is_some_and(|network| {
            network.cuts.iter().any(|(from, to)| [from, to].contains(&&member.name))
        });
        rows.push(vec![
            member.name.clone(),
            match member.role {
                Role::Etcd => "etcd",
                Role::Manager => "manager",
                Role::Storage => "node",
            }
            .to_owned(),
            identities.get(&member.address()).cloned().unwrap_or_else(|| "-".to_owned()),
            member.address(),
            match member.role {
                Role::Etcd => "-".to_owned(),
                _ => format!("http://{}/metrics", member.second_address()),
            },
            running.map_or("-".to_owned(), |process| process.pid.to_string()),
            format!("{word}{}", if cut { ", cut off" } else { "" }),
        ]);
    }
    output::table(&rows)
}

/// What a shell reads.
fn environment(state: &State) -> String {
    // Several, so that clients find the cluster whichever member is killed.
    let servers = state.servers();
    let few = &servers[..servers.len().min(CLIENT_ADDRESSES)];
    format!("unset MILLPOND_SERVER\nexport MILLPOND_ADDRESS={}\n", few.join(","))
}

fn down(state: &mut State, folder: &Path, purge: bool) -> Outcome {
    let mut killed = Vec::new();
    // Nodes first, so that managers hear of it; what managers need goes last.
    for role in [Role::Storage, Role::Manager, Role::Etcd] {
        let members = state.members.iter().filter(|member| member.role == role);
        let names: Vec<String> = members.map(|member| member.name.clone()).collect();
        killed.extend(process::end(state, folder, &names)?);
    }
    network::remove(state);
    state.write(folder)?;
    if !killed.is_empty() {
        eprintln!("millpond: did not stop in time and were killed: {}", killed.join(", "));
    }
    if purge {
        std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(if killed.is_empty() { OK } else { FAILED })
}

fn signal(state: &mut State, folder: &Path, (name, signal): (&str, ProcessSignal)) -> Outcome {
    let process = state.member(name)?.running();
    let Some(process) = process.filter(|process| process.signal(signal).unwrap_or(false)) else {
        bail!("{name} does not run; 'millpond dev start {name}' starts it");
    };
    if signal == ProcessSignal::Kill {
        let mut interrupt = Interrupt::install()?;
        while process.is_there() && !interrupt.pause(Duration::from_millis(5)) {}
        state.set_process(name, None);
        state.write(folder)?;
        if state.member(name)?.role == Role::Storage {
            let known = identities(state).remove(&state.member(name)?.address());
            let node = known.map_or_else(String::new, |id| format!(", node {id},"));
            let text =
                format!("{name}{node} was killed; managers notice when its lease ends, in 2 s");
            return output::line(&text);
        }
    }
    Ok(OK)
}

fn start(state: &mut State, folder: &Path, name: &str) -> Outcome {
    let mut interrupt = Interrupt::install()?;
    let since = process::log_len(folder, name);
    process::start(state, folder, name)?;
    process::wait_ready(folder, state.member(name)?, since, &mut interrupt)?;
    output::line(&format!("{name} runs at {}", state.member(name)?.address()))
}

fn logs(folder: &Path, name: &str, follow: bool) -> Outcome {
    const LOOK: Duration = Duration::from_millis(200);
    let mut interrupt = Interrupt::install()?;
    let mut from = 0;
    loop {
        let text = process::read_log(folder, name, from)?;
        from += text.len() as u64;
        output::bytes(text.as_bytes())?;
        std::io::stdout().flush()?;
        if !follow || interrupt.pause(LOOK) {
            return Ok(OK);
        }
    }
}
