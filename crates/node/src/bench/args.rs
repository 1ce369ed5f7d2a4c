//! The options of `millpond bench`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use millpond_types::ByteSize;
use millpond_types::units::parse_duration;

use super::failover::FailoverArgs;
use super::workload::SizeMix;

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put and get values on a running server; latency histogram, throughput, checked values
    #[command(after_long_help = KV_EXAMPLES)]
    Kv(Box<KvArgs>),
    /// The floor: the same exchange over a bare TCP socket on this machine, without a store
    Echo(EchoArgs),
    /// Failover: how long a local cluster stands still when a process of it dies
    #[command(after_long_help = FAILOVER_EXAMPLES)]
    Failover(FailoverArgs),
}

const FAILOVER_EXAMPLES: &str = "\
Examples:
  millpond dev up --nodes 3 --replicas 2
  millpond bench failover                             20 times kill -9 of a node
  millpond bench failover --kind stop --chart stop.svg
  millpond bench failover --kind manager              needs dev up --managers 3 --store etcd

Writers and readers call for one value on every chain at a time, so a call ends when every chain has
answered. What is told is the time from the fault to the end of the first call that began after it.";

const KV_EXAMPLES: &str = "\
Examples:
  millpond bench kv                                   64 KiB values, one request at a time
  millpond bench kv --transport tcp --size 1MiB --in-flight 8
  millpond bench kv --size 4KiB --batch 64 --seconds 30 --skew 0.99
  millpond bench kv --size 4KiB:70,64KiB:20,1MiB:10 --read-ratio 0.8 --in-flight 16
  millpond bench kv --size 256KiB --working-set 8GiB  more than the server's DRAM tier: reads the disk
  millpond bench kv --read-ratio 0 --size 4KiB --in-flight 64 --ack disk
  millpond bench kv --json run.json --chart run.svg   keep the histogram and draw it

The benchmark works in a namespace of its own and drops it at the end (--keep keeps it). Before
reading it stores the working set. Every value is derived from its key and checked when read: both
ends always, the whole value every 64th time, or always with --verify all. A wrong byte makes the
exit status 1. Ctrl-C ends the run early and prints what was measured so far.";

/// How the benchmark reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TransportArg {
    /// Shared memory on the same host, else TCP
    Auto,
    /// TCP, even on the same host
    Tcp,
    /// The server's Unix socket
    Unix,
    /// Shared memory; fails when the server is on another host
    Shm,
}

/// When a put is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AckArg {
    /// From the server's memory
    Memory,
    /// After it is durable
    Disk,
}

/// How much of what is read is compared with what was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum VerifyArg {
    /// Both ends of every value, the whole of every 64th
    Sample,
    /// Every byte
    All,
}

/// Options of `millpond bench kv`; `--help` explains them.
#[derive(Debug, Args)]
pub struct KvArgs {
    /// Address of the server; of a cluster one or several nodes, with commas
    #[arg(long, default_value = crate::cli::default_address(), env = "MILLPOND_ADDRESS")]
    pub(super) address: String,
    /// How to reach it
    #[arg(long, value_enum, default_value = "auto")]
    pub(super) transport: TransportArg,
    /// Credential, when the server asks for one
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    pub(super) token: String,
    /// PEM file with the certificates that sign the server's, when it speaks TLS
    #[arg(long, value_name = "FILE")]
    pub(super) tls_ca: Option<PathBuf>,
    /// Namespace to work in; one that a benchmark made is dropped before and after, unless --keep
    #[arg(long, default_value = "bench")]
    pub(super) namespace: String,
    /// Leave the namespace as it is, before and after
    #[arg(long)]
    pub(super) keep: bool,
    /// Drop the namespace even if no benchmark made it, with all its values
    #[arg(long, conflicts_with = "keep")]
    pub(super) drop_existing: bool,
    /// Size of the values, or several with weights: 4KiB:70,64KiB:20,1MiB:10
    #[arg(long, default_value = "64KiB")]
    pub(super) size: SizeMix,
    /// Keys per request
    #[arg(long, default_value_t = 1)]
    pub(super) batch: usize,
    /// Requests in flight: so many callers, each with a connection
    #[arg(long, default_value_t = 1)]
    pub(super) in_flight: usize,
    /// Share of requests that read: 1 reads only, 0 writes only
    #[arg(long, default_value_t = 1.0)]
    pub(super) read_ratio: f64,
    /// Zipf exponent of the keys' popularity; 0 is uniform
    #[arg(long, default_value_t = 0.0)]
    pub(super) skew: f64,
    /// Keys in the working set
    #[arg(long, conflicts_with = "working_set")]
    pub(super) keys: Option<u64>,
    /// Bytes of the working set, instead of --keys
    #[arg(long, default_value = "256MiB")]
    pub(super) working_set: ByteSize,
    /// Measure this long
    #[arg(long, default_value_t = 10.0)]
    pub(super) seconds: f64,
    /// Stop after so many requests, even if the time is not over
    #[arg(long)]
    pub(super) ops: Option<u64>,
    /// Run this long before measuring
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub(super) warmup: Duration,
    /// When a put is acknowledged
    #[arg(long, value_enum, default_value = "memory")]
    pub(super) ack: AckArg,
    /// Time that a request may take
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub(super) deadline: Duration,
    /// How much of what is read is compared with what was stored
    #[arg(long, value_enum, default_value = "sample")]
    pub(super) verify: VerifyArg,
    /// Seed of the random choices; the same seed asks for the same keys
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Print the result with its histogram as JSON; with FILE, print it as text and write that there
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
    /// Draw latency and throughput to this file
    #[arg(long, value_name = "FILE.svg")]
    pub(super) chart: Option<PathBuf>,
    /// Show no progress bar
    #[arg(long, short)]
    pub(super) quiet: bool,
}

impl KvArgs {
    /// Checks what clap cannot.
    pub(super) fn validate(&self) -> Result<()> {
        ensure!((1..=1024).contains(&self.batch), "--batch: 1 to 1024 keys per request");
        ensure!((1..=64).contains(&self.in_flight), "--in-flight: 1 to 64 requests");
        ensure!((0.0..=1.0).contains(&self.read_ratio), "--read-ratio: 0 to 1");
        ensure!((0.0..=5.0).contains(&self.skew), "--skew: 0 (uniform) to 5; 0.99 is usual");
        ensure!(self.seconds > 0.0 && self.seconds <= 86_400.0, "--seconds: above 0, up to a day");
        ensure!(self.keys() > 0, "--keys: at least 1; or raise --working-set");
        let payload = u64::from(self.size.max()) * self.batch as u64;
        ensure!(
            payload <= millpond_types::limits::PAYLOAD_BYTES_MAX as u64,
            "--batch: {} values of {} pass the 256 MiB of one request: lower --batch or --size",
            self.batch,
            ByteSize(u64::from(self.size.max()))
        );
        Ok(())
    }

    /// Keys in the working set.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of keys, far below 2^53"
    )]
    pub(super) fn keys(&self) -> u64 {
        self.keys.unwrap_or_else(|| (self.working_set.0 as f64 / self.size.mean()) as u64)
    }
}

/// Which side carries the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Direction {
    /// Small request, large answer
    Get,
    /// Large request, small answer
    Put,
}

/// Options of `millpond bench echo`; `--help` explains them.
#[derive(Debug, Args)]
pub struct EchoArgs {
    /// Bytes of payload per exchange
    #[arg(long, default_value = "64KiB")]
    pub(super) size: ByteSize,
    /// Which side carries the payload
    #[arg(long, value_enum, default_value = "get")]
    pub(super) direction: Direction,
    /// Measure this long
    #[arg(long, default_value_t = 3.0)]
    pub(super) seconds: f64,
    /// Print the result as JSON; with FILE, print it as text and write that there
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
}
