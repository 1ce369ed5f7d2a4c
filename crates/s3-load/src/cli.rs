//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use millpond_env::lookup_host;
use millpond_types::ByteSize;

use crate::LoadError;
use crate::client::{ClientOptions, Endpoint};
use crate::journal::Journal;
use crate::load::{self, LoadOptions, Workload};
use crate::proxy::{Faults, Proxy};
use crate::sign::Credentials;
use crate::verify::{self, VerifyOptions};

/// Generates load, checks data and injects faults for any S3 endpoint.
#[derive(Debug, Parser)]
#[command(name = "millpond-s3-load", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put, get and delete objects, check every answer, and print counts and latencies as JSON.
    ///
    /// Exits with 1 when a read was wrong. The report counts failed requests.
    Load(LoadArgs),
    /// Read every key of a journal and report lost, stale, torn, resurrected and invented objects.
    ///
    /// Exits with 1 when a key is wrong or cannot be read.
    Verify(VerifyArgs),
    /// Run a proxy between clients and an endpoint that injects faults.
    ///
    /// GET /_faults returns the faults and counts as JSON, PUT /_faults sets the faults.
    Proxy(ProxyArgs),
}

/// Credentials and settings of the client.
#[derive(Debug, Args)]
struct ClientArgs {
    /// The bucket; created when it does not exist.
    #[arg(long)]
    bucket: String,
    /// Access key id.
    #[arg(long, env = "AWS_ACCESS_KEY_ID", default_value = "")]
    access_key: String,
    /// Secret key.
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", default_value = "", hide_env_values = true)]
    secret_key: String,
    /// Region that requests are signed for.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Sign the hash of the content, as programs do over plain HTTP; else UNSIGNED-PAYLOAD.
    #[arg(long)]
    sign_payload: bool,
    /// Seconds after which a request fails.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
}

impl ClientArgs {
    fn options(self) -> Result<ClientOptions> {
        Ok(ClientOptions {
            credentials: Credentials {
                access_key: self.access_key,
                secret_key: self.secret_key,
                region: self.region,
            },
            bucket: self.bucket,
            sign_payload: self.sign_payload,
            timeout: seconds("--timeout", self.timeout)?,
        })
    }
}

#[derive(Debug, Args)]
struct LoadArgs {
    /// Kind of load.
    #[arg(value_enum)]
    workload: Workload,
    /// http://HOST:PORT; several endpoints are used in turn.
    #[arg(long, required = true)]
    endpoint: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Size of an object: 10KiB, 64MiB.
    #[arg(long, default_value = "10KiB")]
    size: ByteSize,
    /// Requests in flight, each on a connection of its own.
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    /// Threads that share the requests.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Duration of the load in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Number of keys of all workers together.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// Prefix of the keys.
    #[arg(long, default_value = "load/")]
    prefix: String,
    /// Percentage of gets in the mixed workload.
    #[arg(long, default_value_t = 50)]
    reads: u8,
    /// Percentage of deletes in the mixed workload.
    #[arg(long, default_value_t = 5)]
    deletes: u8,
    /// Seed for the choice of keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For the get workload: compare the bytes of one answer in this many. The bytes of the other
    /// answers are only counted and stay in the kernel, so that the generator uses less CPU.
    #[arg(long, default_value_t = 1)]
    check_every: u32,
    /// Journal file with the known state of the keys: read at the start if it exists, written at
    /// the end.
    #[arg(long)]
    journal: Option<PathBuf>,
}

impl LoadArgs {
    fn options(self) -> Result<LoadOptions> {
        let endpoints: Result<Vec<_>, LoadError> =
            self.endpoint.iter().map(|endpoint| Endpoint::parse(endpoint)).collect();
        Ok(LoadOptions {
            endpoints: endpoints?,
            client: self.client.options()?,
            workload: self.workload,
            size: self.size.0,
            concurrency: self.concurrency,
            threads: self.threads.min(self.concurrency),
            time: seconds("--seconds", self.seconds)?,
            keys: self.keys,
            prefix: self.prefix,
            read_percent: self.reads,
            delete_percent: self.deletes,
            seed: self.seed,
            check_every: self.check_every,
            journal: self.journal,
        })
    }
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// The journal that a load wrote.
    #[arg(long)]
    journal: PathBuf,
    /// http://HOST:PORT.
    #[arg(long)]
    endpoint: String,
    #[command(flatten)]
    client: ClientArgs,
    /// Requests in flight.
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    /// Seconds for which reads of an unreadable key are repeated.
    #[arg(long, default_value_t = 10.0)]
    patience: f64,
    /// Fail when an unacknowledged write replaces a later acknowledged one.
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Args)]
struct ProxyArgs {
    /// Address for clients; port 0 picks a free port, which is printed.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// HOST:PORT of the endpoint.
    #[arg(long)]
    to: String,
    /// Initial faults, as JSON in the form of /_faults.
    #[arg(long, default_value = "{}")]
    faults: String,
}

/// Runs the command given by the arguments of this process.
#[must_use]
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Load(args) => run_load(args),
        Command::Verify(args) => run_verify(args),
        Command::Proxy(args) => run_proxy(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("millpond-s3-load: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run_load(args: LoadArgs) -> Result<bool> {
    let options = args.options()?;
    let loaded = load::run(&options, &load::stop_flag()?)?;
    println!("{:#}", loaded.report(&options));
    Ok(loaded.record.wrong() == 0)
}

fn run_verify(args: VerifyArgs) -> Result<bool> {
    let journal = Journal::read(&args.journal)?
        .with_context(|| format!("no journal {}", args.journal.display()))?;
    let options = VerifyOptions {
        endpoint: Endpoint::parse(&args.endpoint)?,
        client: args.client.options()?,
        concurrency: args.concurrency,
        patience: seconds("--patience", args.patience)?,
        strict: args.strict,
    };
    let findings = verify::run(&options, journal)?;
    println!("{}", serde_json::to_string_pretty(&findings)?);
    Ok(findings.is_right(options.strict))
}

fn run_proxy(args: &ProxyArgs) -> Result<bool> {
    let faults: Faults = serde_json::from_str(&args.faults).context("--faults")?;
    let backend = lookup_host(&args.to).context("--to must be HOST:PORT")?;
    let backend = *backend.first().context("--to has no address")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let proxy = Proxy::bind(args.listen, backend, faults).await?;
        println!("listens on http://{}", proxy.address()?);
        proxy.serve().await;
        Ok(true)
    })
}

fn seconds(option: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .with_context(|| format!("{option} must be a number of seconds"))
}
