//! `millpond server`.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use millpond_types::ByteSize;

use super::{log, output};
use crate::exit::{OK, Outcome, abort_on_panic};
use millpond_node::config::{self, ClusterConfig, Config, Io, LogFormat, S3Config, Size};
use millpond_node::server::{Server, StartError, Summary};

pub(super) const EXAMPLES: &str = "Examples:
  millpond server
  millpond server --data /mnt/nvme0 --data /mnt/nvme1 --memory 16GiB
  millpond server --data /dev/nvme1n1 --listen 0.0.0.0:7440 --token-file tokens --tls-cert tls.crt --tls-key tls.key
  millpond server --manager --listen 10.0.0.1:7440 --insecure --form-nodes 3 --replicas 2
  millpond server --join 10.0.0.1:7440 --listen 10.0.0.2:7440 --insecure
  millpond server --no-storage --join 10.0.0.1:7440 --listen 10.0.0.9:7440 --insecure --s3 10.0.0.9:9000
  millpond server --no-storage --join 127.0.0.1:7440 --data ./gateway --listen 127.0.0.1:7450 --http 127.0.0.1:7451 --s3 127.0.0.1:9001
  millpond server --config /etc/millpond.toml";

/// Flags of `millpond server`; each overrides the configuration file.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Args {
    /// Configuration file (TOML); see `millpond config reference`.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Data folder or block device; repeatable. PATH:SIZE sets the size of its data file.
    /// [default: ./millpond-data]
    #[arg(long, value_name = "PATH[:SIZE]")]
    data: Vec<String>,
    /// Size of each new data file. [default: 30 % of the free space, at most 64GiB]
    #[arg(long)]
    size: Option<Size>,
    /// Memory of the server. [default: a quarter of the machine's memory, at most 4GiB; 128MiB
    /// without disks and manager role]
    #[arg(long)]
    memory: Option<Size>,
    /// TCP address for clients; "" for none. [default: 127.0.0.1:7440]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<String>,
    /// Address for metrics and health; "" for none. [default: 127.0.0.1:7441]
    #[arg(long, value_name = "IP:PORT")]
    http: Option<String>,
    /// Unix socket for clients on this host; "" for none.
    /// [default: millpond.sock in the data folder]
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// Threads that serve clients. [default: one per processor, at most 4]
    #[arg(long)]
    cores: Option<u32>,
    /// I/O backend for disks and sockets. [default: auto]
    #[arg(long)]
    io: Option<Io>,
    /// File of client credentials, one per line: TOKEN [NAMESPACE-PATTERN ...]. Reloaded when it
    /// changes.
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
    /// PEM certificate chain; turns TLS on.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// PEM private key of the certificate.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Allow other hosts to connect without credentials or without TLS.
    #[arg(long)]
    insecure: bool,
    /// Managers of the cluster to join, comma-separated; a host name may have several addresses.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<String>,
    /// File with the secret that all nodes of the cluster share.
    #[arg(long, value_name = "FILE")]
    node_secret: Option<String>,
    /// Run the manager role.
    #[arg(long)]
    manager: bool,
    /// Use no disks: the process is only a manager or an S3 gateway.
    #[arg(long)]
    no_storage: bool,
    /// Where managers store their state: embedded, or etcd://host:port,host:port/prefix.
    /// [default: embedded]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Address at which others reach this server; repeatable. [default: the --listen address]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    advertise: Vec<String>,
    /// Failure domain of this server, for example its rack. [default: this server alone]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// For the first manager of a new cluster: create the chains once N failure domains have
    /// registered.
    #[arg(long, value_name = "N")]
    form_nodes: Option<u32>,
    /// Replicas of every chain, with --form-nodes. [default: 1]
    #[arg(long, value_name = "R")]
    replicas: Option<u32>,
    /// TCP address for S3 clients; "" for none. [default: port 9000 of the --listen address on a
    /// server with every role, none on others]
    #[arg(long, value_name = "IP:PORT")]
    s3: Option<String>,
    /// Also serve buckets as host names below this domain: BUCKET.DOMAIN.
    #[arg(long, value_name = "DOMAIN")]
    s3_domain: Option<String>,
    /// PEM certificate chain for S3 clients; turns TLS on for them.
    #[arg(long, value_name = "FILE")]
    s3_tls_cert: Option<String>,
    /// PEM private key of the S3 certificate.
    #[arg(long, value_name = "FILE")]
    s3_tls_key: Option<String>,
    /// S3 access key for the first start; `millpond s3 keys add` creates others.
    #[arg(long, env = "MILLPOND_S3_ACCESS_KEY", value_name = "KEY")]
    s3_access_key: Option<String>,
    /// Secret of the access key; set the variable instead, since other users can see a command
    /// line.
    #[arg(long, env = "MILLPOND_S3_SECRET_KEY", hide_env_values = true, value_name = "SECRET")]
    s3_secret_key: Option<String>,
    /// Format of log lines. [default: text]
    #[arg(long)]
    log_format: Option<LogFormat>,
    /// Log level: error, warn, info, debug or trace. [default: info]
    #[arg(long)]
    log_level: Option<String>,
}

impl Args {
    /// The file's settings with the flags on top.
    pub(super) fn merged(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => config::from_file(path)?,
            None => Config::default(),
        };
        let server = &mut config.server;
        if !self.data.is_empty() {
            server.data.clone_from(&self.data);
        }
        server.size = self.size.or(server.size);
        server.memory = self.memory.or(server.memory);
        server.cores = self.cores.or(server.cores);
        server.io = self.io.unwrap_or(server.io);
        server.socket = self.socket.clone().or(server.socket.take());
        if let Some(listen) = &self.listen {
            server.listen.clone_from(listen);
        }
        if let Some(http) = &self.http {
            server.http.clone_from(http);
        }
        let security = &mut config.security;
        security.token_file = self.token_file.clone().or(security.token_file.take());
        security.tls_cert = self.tls_cert.clone().or(security.tls_cert.take());
        security.tls_key = self.tls_key.clone().or(security.tls_key.take());
        security.insecure |= self.insecure;
        self.merge_cluster(&mut config.cluster);
        self.merge_s3(&mut config.s3);
        config.log.format = self.log_format.unwrap_or(config.log.format);
        if let Some(level) = &self.log_level {
            config.log.level.clone_from(level);
        }
        Ok(config)
    }

    fn merge_s3(&self, s3: &mut S3Config) {
        for (flag, setting) in [
            (&self.s3, &mut s3.listen),
            (&self.s3_domain, &mut s3.domain),
            (&self.s3_tls_cert, &mut s3.tls_cert),
            (&self.s3_tls_key, &mut s3.tls_key),
            (&self.s3_access_key, &mut s3.access_key),
            (&self.s3_secret_key, &mut s3.secret_key),
        ] {
            *setting = flag.clone().or(setting.take());
        }
    }

    fn merge_cluster(&self, cluster: &mut ClusterConfig) {
        if !self.join.is_empty() {
            cluster.managers.clone_from(&self.join);
        }
        if !self.advertise.is_empty() {
            cluster.advertise.clone_from(&self.advertise);
        }
        cluster.node_secret_file = self.node_secret.clone().or(cluster.node_secret_file.take());
        cluster.manager |= self.manager;
        cluster.storage &= !self.no_storage;
        if let Some(store) = &self.store {
            cluster.store.clone_from(store);
        }
        if let Some(domain) = &self.domain {
            cluster.domain.clone_from(domain);
        }
        cluster.form_nodes = self.form_nodes.unwrap_or(cluster.form_nodes);
        cluster.replicas = self.replicas.unwrap_or(cluster.replicas);
    }
}

/// How often the token file is looked at.
const TOKENS_LOOK: Duration = Duration::from_secs(1);

/// Runs a server until SIGINT or SIGTERM; SIGHUP makes it read the token file again.
pub(super) fn run(args: &Args) -> Outcome {
    let config = args.merged()?;
    config.validate()?;
    log::start(&config.log)?;
    abort_on_panic();
    // Before the disks are opened, so that a signal meanwhile is not lost.
    let mut signals = Signals::install().context("installing signal handlers")?;
    let _ended = watch_stop(&signals.stop, config.limits.stop.0)?;
    let server = match Server::start_until(&config, &signals.stop) {
        Err(StartError::Stopped) => return Ok(OK),
        started => started?,
    };
    output::bytes(describe(server.summary()).as_bytes())?;
    tracing::info!("ready");
    let mut refused = None;
    while refused.is_none() && !signals.wait(Some(TOKENS_LOOK)) {
        refused = server.refused();
        if signals.take_reload() || server.tokens_changed() {
            server.reload_tokens();
        }
    }
    tracing::info!("stopping: writing the data in memory to the disks");
    signals.stop.store(true, Ordering::Release);
    server.stop()?;
    tracing::info!("stopped");
    match refused {
        Some(why) => anyhow::bail!(why),
        None => Ok(OK),
    }
}

/// How often it is looked whether a stop was asked for.
const STOP_LOOK: Duration = Duration::from_millis(200);

/// Ends the process when a stop that was asked for is not done in `time`, whatever hangs: a disk that does
/// not answer, a core that does nothing else. What was acknowledged as durable is on the disks, as after
/// `kill -9`. Over when what is returned is dropped.
fn watch_stop(stop: &Arc<AtomicBool>, time: Duration) -> anyhow::Result<mpsc::Sender<()>> {
    let (running, ended) = mpsc::channel::<()>();
    let stop = Arc::clone(stop);
    let is_over = move |wait: Duration| {
        matches!(ended.recv_timeout(wait), Err(mpsc::RecvTimeoutError::Disconnected))
    };
    millpond_env::thread("millpond-stop", move || {
        while !stop.load(Ordering::Acquire) {
            if is_over(STOP_LOOK) {
                return;
            }
        }
        if is_over(time) {
            return;
        }
        tracing::error!(
            "the stop did not finish within {time:?} (limits.stop): the process exits as after \
             kill -9. Data acknowledged from disk is safe; data acknowledged from memory only \
             may be lost"
        );
        std::process::exit(1);
    })?;
    Ok(running)
}

/// The signals that this process has been sent.
struct Signals {
    /// Gets a byte with each.
    arrivals: UnixStream,
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let (arrivals, writer) = UnixStream::pair()?;
        let (stop, reload) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for (signal, flag) in [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &reload)] {
            // The flag first: it is up when the byte arrives.
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self { arrivals, stop, reload })
    }

    /// Waits for a signal, or until `patience` is over; true when it is time to stop.
    fn wait(&mut self, patience: Option<Duration>) -> bool {
        let mut byte = [0];
        let waiting = self.arrivals.set_read_timeout(patience);
        let read = waiting.and_then(|()| self.arrivals.read(&mut byte));
        let broken = read.is_err_and(|error| {
            use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
            !matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
        });
        broken || self.stop.load(Ordering::Acquire)
    }

    /// Whether SIGHUP came since the last call.
    fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::AcqRel)
    }
}

/// What is served and where; the last line is `READY`.
fn describe(summary: &Summary) -> String {
    use std::fmt::Write as _;
    let mut out = format!("millpond {}\n", millpond_node::BUILD);
    for (path, bytes, new) in &summary.disks {
        let note = if *new { ", new" } else { "" };
        let _ = writeln!(out, "  data     {path} ({}{note})", ByteSize(*bytes));
    }
    let [all, pool, index] =
        [summary.memory.total, summary.memory.pool, summary.memory.index].map(ByteSize);
    let _ = writeln!(out, "  memory   {all} ({pool} for values, {index} for the index)");
    let _ = writeln!(out, "  cores    {}, {}", summary.cores, summary.io);
    if let Some(note) = &summary.io_note {
        let _ = writeln!(out, "           io_uring is not used: {note}");
    }
    if let Some(address) = summary.listen {
        let tls = if summary.tls { ", TLS" } else { "" };
        let tokens = if summary.tokens { ", token required" } else { "" };
        let _ = writeln!(out, "  clients  {address}{tls}{tokens}");
    }
    if let Some(path) = &summary.socket {
        let _ = writeln!(out, "  socket   {}", path.display());
    }
    if let Some(address) = summary.http {
        let _ = writeln!(out, "  metrics  http://{address}/metrics");
    }
    if let Some(address) = summary.s3 {
        let tls = if summary.s3_tls { "https" } else { "http" };
        let _ = writeln!(out, "  s3       {tls}://{address}");
    }
    out.push_str("READY\n");
    out
}
