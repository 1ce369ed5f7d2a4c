//! `millpond s3 backend`.

use std::path::PathBuf;

use anyhow::Context as _;
use millpond_s3::{BackendRing, BackendSettings, BucketRing, Secret};
use serde_json::json;

use super::To;
use crate::exit::{ABSENT, FAILED, OK, Outcome};
use crate::output;

/// Where a secret is taken from that no file has.
const SECRET: &str = "MILLPOND_S3_BACKEND_SECRET";

pub(super) const EXAMPLES: &str = "\
The secret comes from --secret-key-file, or from MILLPOND_S3_BACKEND_SECRET in the environment.
`add` with an existing name replaces its settings; gateways apply them within a few seconds.

Examples:
  millpond s3 backend add minio --endpoint http://10.0.0.5:9000 --access-key pond --secret-key-file secret
  millpond s3 backend add inside --endpoint https://store.inside --ca-file ca.pem --access-key pond --secret-key-file secret
  millpond s3 backend list
  millpond s3 backend rm minio";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a backend, or replace its settings.
    Add(Box<Add>),
    /// List backends, without their secrets.
    #[command(visible_alias = "ls")]
    List,
    /// Remove a backend that no bucket uses.
    Rm {
        /// Name of the backend.
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct Add {
    /// Name of the backend: lowercase letters, digits and dashes.
    name: String,
    #[arg(
        long,
        value_name = "URL",
        help = "URL of the object store: http://HOST:PORT or https://HOST"
    )]
    endpoint: String,
    /// Access key at the object store.
    #[arg(long)]
    access_key: String,
    /// File with the secret of the access key.
    #[arg(long, value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
    /// PEM file with the CA certificates of the endpoint, in place of those that the system trusts.
    /// They are stored with the backend, so that every gateway has them.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Region that requests are signed for.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Address buckets as host names below the endpoint, not in the path.
    #[arg(long)]
    virtual_hosts: bool,
    /// Maximum requests in flight that a gateway uses to persist objects.
    #[arg(long, default_value_t = 64)]
    requests: u32,
    /// Maximum requests per second that a gateway sends to persist objects; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    requests_per_s: u32,
    /// Time until the answer to a request must begin, plus one second for each MiB of its body;
    /// after it the request fails.
    #[arg(long, default_value = "30s")]
    timeout: millpond_node::config::Span,
}

impl Add {
    fn settings(&self) -> anyhow::Result<BackendSettings> {
        let secret = match &self.secret_key_file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("--secret-key-file {}: cannot be read", path.display()))?,
            None => std::env::var(SECRET).ok().with_context(|| {
                format!("no secret: name a file with --secret-key-file, or set {SECRET}")
            })?,
        };
        let ca = self.ca_file.as_ref().map(|path| {
            std::fs::read_to_string(path)
                .with_context(|| format!("--ca-file {}: cannot be read", path.display()))
        });
        Ok(BackendSettings {
            ca_pem: ca.transpose()?,
            region: self.region.clone(),
            secret_key: Secret(secret.trim().to_owned()),
            path_style: !self.virtual_hosts,
            requests_max: self.requests,
            requests_per_s: self.requests_per_s,
            timeout_ms: u64::try_from(self.timeout.0.as_millis()).unwrap_or(u64::MAX),
            ..BackendSettings::new(&self.endpoint, &self.access_key, "")
        })
    }
}

pub(super) fn run(args: &Args) -> Outcome {
    match &args.command {
        Command::Add(add) => {
            let settings = add.settings()?;
            let client = args.to.client()?;
            BucketRing::open(client.clone())?.check_backend(&add.name, &settings)?;
            BackendRing::open(client)?.set(&add.name, &settings)?;
            Ok(OK)
        }
        Command::List => list(&args.to),
        Command::Rm { name } => {
            let client = args.to.client()?;
            let used = BucketRing::open(client.clone())?.list()?;
            let used = used.iter().filter(|(_, backing)| backing.backend == *name);
            let names: Vec<&str> = used.map(|(bucket, _)| bucket.as_str()).collect();
            if !names.is_empty() {
                let names = names.join(", ");
                eprintln!(
                    "millpond: '{name}' backs {names}: first run `millpond s3 bucket rm` for each"
                );
                return Ok(FAILED);
            }
            if BackendRing::open(client)?.remove(name)? {
                return Ok(OK);
            }
            eprintln!("millpond: no backend '{name}'");
            Ok(ABSENT)
        }
    }
}

fn list(to: &To) -> Outcome {
    let all = BackendRing::open(to.client()?)?.list()?;
    if to.json {
        let shown = |(name, it): &(String, BackendSettings)| {
            json!({"name": name, "endpoint": it.endpoint, "region": it.region, "access_key": it.access_key,
                "path_style": it.path_style, "requests": it.requests_max, "requests_per_s": it.requests_per_s,
                "timeout_ms": it.timeout_ms, "own_ca": it.ca_pem.is_some()})
        };
        let lines: Vec<_> = all.iter().map(shown).collect();
        return output::line(&serde_json::Value::from(lines).to_string());
    }
    let titles = ["name", "endpoint", "region", "access key", "requests", "per s"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(all.into_iter().map(|(name, it)| {
        let rate =
            if it.requests_per_s == 0 { "-".to_owned() } else { it.requests_per_s.to_string() };
        vec![name, it.endpoint, it.region, it.access_key, it.requests_max.to_string(), rate]
    }));
    output::bytes(output::table(&rows).as_bytes())
}
