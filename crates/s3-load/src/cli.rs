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

/// Load, checks and faults for any S3 endpoint.
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
    /// Ends with 1 when a read was wrong. Requests that failed are in the report.
    Load(LoadArgs),
    /// Read every key of a journal and say what is lost, stale, torn, resurrected or invented.
    ///
    /// Ends with 1 when a key is wrong or cannot be read.
    Verify(VerifyArgs),
    /// Stand between clients and an endpoint and make faults.
    ///
    /// GET /_faults tells the faults and counts as JSON, PUT /_faults sets the faults.
    Proxy(ProxyArgs),
}

/// Who asks, and how.
#[derive(Debug, Args)]
struct ClientArgs {
    /// The bucket; made when it is not there.
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
    /// Sign the hash of what is put, as programs do over plain HTTP; else UNSIGNED-PAYLOAD.
    #[arg(long)]
    sign_payload: bool,
    /// Seconds after which a request has failed.
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
    /// What is done.
    #[arg(value_enum)]
    workload: Workload,
    /// http://HOST:PORT; several are used in turn.
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
    /// Threads that share them.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How long.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Keys, all workers together.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// What keys begin with.
    #[arg(long, default_value = "load/")]
    prefix: String,
    /// Gets of 100 requests of the mixed workload.
    #[arg(long, default_value_t = 50)]
    reads: u8,
    /// Deletes of 100 requests of the mixed workload.
    #[arg(long, default_value_t = 5)]
    deletes: u8,
    /// Seed for the choice of keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Of the get workload, compare the bytes of one answer in so many; those of the others are counted and stay in the kernel,
    /// so that the generator takes less of the cores.
    #[arg(long, default_value_t = 1)]
    check_every: u32,
    /// A file with what is known of the keys: gone on with when it is there, written in the end.
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
    /// The journal that a load left.
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
    /// Seconds for which a key that cannot be read is asked for again.
    #[arg(long, default_value_t = 10.0)]
    patience: f64,
    /// A write in doubt must not show behind a later one that was acknowledged.
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Args)]
struct ProxyArgs {
    /// Address for clients; port 0 is a free one, which is printed.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// HOST:PORT of the endpoint.
    #[arg(long)]
    to: String,
    /// The faults to begin with, as JSON in the form of /_faults.
    #[arg(long, default_value = "{}")]
    faults: String,
}

/// Runs the command of this process's arguments.
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
        .with_context(|| format!("there is no journal {}", args.journal.display()))?;
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
    let backend = lookup_host(&args.to).context("--to is HOST:PORT")?;
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
    Duration::try_from_secs_f64(value).with_context(|| format!("{option} is a number of seconds"))
}
