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
pub(crate) enum Command {
    /// Put and get values on a running server; reports latency and throughput, and checks values
    #[command(after_long_help = KV_EXAMPLES)]
    Kv(Box<KvArgs>),
    /// Measure the lower bound: the same exchange over a bare TCP socket on this machine
    Echo(EchoArgs),
    /// Measure failover: how long a local cluster does not answer after a fault of a process
    #[command(after_long_help = FAILOVER_EXAMPLES)]
    Failover(FailoverArgs),
}

const FAILOVER_EXAMPLES: &str = "\
Examples:
  millpond dev up --nodes 3 --replicas 2
  millpond bench failover                             kill -9 of a node, 20 times
  millpond bench failover --kind stop --chart stop.svg
  millpond bench failover --kind manager              needs dev up --managers 3 --store etcd

A call of a writer or reader asks for one value on every chain, so it ends when every chain has
answered. The result is the time from the fault to the end of the first call that began after it.";

const KV_EXAMPLES: &str = "\
Examples:
  millpond bench kv                                   64 KiB values, one request at a time
  millpond bench kv --transport tcp --size 1MiB --in-flight 8
  millpond bench kv --size 4KiB --batch 64 --seconds 30 --skew 0.99
  millpond bench kv --size 4KiB:70,64KiB:20,1MiB:10 --read-ratio 0.8 --in-flight 16
  millpond bench kv --size 256KiB --working-set 8GiB  more than the server's DRAM tier: reads the disk
  millpond bench kv --read-ratio 0 --size 4KiB --in-flight 64 --ack disk
  millpond bench kv --json run.json --chart run.svg   keep the histogram and draw it

The benchmark uses a namespace of its own, and drops it at the end unless --keep is given. It stores
the working set before it reads. Every value is derived from its key and checked when read: both
ends always, the whole value every 64th time, or always with --verify all. A wrong byte sets the
exit status to 1. Ctrl-C ends the run early and prints the results so far.";

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
    /// When the value is in the memory of the server
    Memory,
    /// When the value is durable
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
pub(crate) struct KvArgs {
    /// Address of the server; for a cluster one or more nodes, comma-separated
    #[arg(long, default_value = crate::address::default_address(), env = "MILLPOND_ADDRESS")]
    pub(super) address: String,
    /// Transport to the server
    #[arg(long, value_enum, default_value = "auto")]
    pub(super) transport: TransportArg,
    /// Credential, if the server requires one
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    pub(super) token: String,
    /// PEM file with the CA certificates of the server; turns TLS on
    #[arg(long, value_name = "FILE")]
    pub(super) tls_ca: Option<PathBuf>,
    /// Namespace to use; if a benchmark made it, it is dropped before and after, unless --keep
    #[arg(long, default_value = "bench")]
    pub(super) namespace: String,
    /// Keep the namespace as it is, before and after
    #[arg(long)]
    pub(super) keep: bool,
    /// Drop the namespace with all its values even if no benchmark made it
    #[arg(long, conflicts_with = "keep")]
    pub(super) drop_existing: bool,
    /// Size of the values, or sizes with weights: 4KiB:70,64KiB:20,1MiB:10
    #[arg(long, default_value = "64KiB")]
    pub(super) size: SizeMix,
    /// Keys per request
    #[arg(long, default_value_t = 1)]
    pub(super) batch: usize,
    /// Requests in flight: this number of callers, each with a connection
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
    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 10.0)]
    pub(super) seconds: f64,
    /// Stop after this number of requests, even if the time is not over
    #[arg(long)]
    pub(super) ops: Option<u64>,
    /// Warm up for this time before the measurement
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub(super) warmup: Duration,
    /// When a put is acknowledged
    #[arg(long, value_enum, default_value = "memory")]
    pub(super) ack: AckArg,
    /// Timeout of a request
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub(super) deadline: Duration,
    /// How much of each value that is read is compared with the stored one
    #[arg(long, value_enum, default_value = "sample")]
    pub(super) verify: VerifyArg,
    /// Seed of the random choices; the same seed requests the same keys
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Print the result with its histogram as JSON; with FILE, write the JSON there and print text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
    /// Write a chart of latency and throughput to this file
    #[arg(long, value_name = "FILE.svg")]
    pub(super) chart: Option<PathBuf>,
    /// Show no progress bar
    #[arg(long, short)]
    pub(super) quiet: bool,
}

impl KvArgs {
    /// Checks what clap cannot.
    pub(super) fn validate(&self) -> Result<()> {
        ensure!((1..=1024).contains(&self.batch), "--batch: use 1 to 1024 keys per request");
        ensure!((1..=64).contains(&self.in_flight), "--in-flight: use 1 to 64 requests");
        ensure!((0.0..=1.0).contains(&self.read_ratio), "--read-ratio: use 0 to 1");
        ensure!((0.0..=5.0).contains(&self.skew), "--skew: use 0 (uniform) to 5; 0.99 is usual");
        ensure!(
            self.seconds > 0.0 && self.seconds <= 86_400.0,
            "--seconds: use more than 0, up to a day"
        );
        ensure!(self.keys() > 0, "--keys: use at least 1, or raise --working-set");
        let payload = u64::from(self.size.max()) * self.batch as u64;
        ensure!(
            payload <= millpond_types::limits::PAYLOAD_BYTES_MAX as u64,
            "--batch: {} values of {} exceed the 256 MiB of one request: lower --batch or --size",
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
pub(crate) struct EchoArgs {
    /// Bytes of payload per exchange
    #[arg(long, default_value = "64KiB")]
    pub(super) size: ByteSize,
    /// Which side carries the payload
    #[arg(long, value_enum, default_value = "get")]
    pub(super) direction: Direction,
    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 3.0)]
    pub(super) seconds: f64,
    /// Print the result as JSON; with FILE, write the JSON there and print text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
}
