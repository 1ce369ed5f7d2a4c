//! `millpond s3 bucket`.

use anyhow::bail;
use millpond_client::{Backing, ClientError, Mode, Rule};
use millpond_s3::{BucketRing, DEFAULT_TENANT};
use millpond_types::ByteSize;
use millpond_types::meta::MetaError;
use serde_json::json;

use super::To;
use super::rules::{ModeArg, name, seconds, unbacked};
use crate::exit::{FAILED, OK, Outcome};
use crate::output;
use millpond_node::config::{Size, Span};

pub(super) const EXAMPLES: &str = "\
`add` creates the bucket if it does not exist. It first requests a key from the backend, and changes
nothing if that fails. For a bucket that is backed already, `add` sets --shared, --ttl and --cache
again, each to its default if it is left out. It keeps the rules, and it cannot change the place at
the backend (--backend, --backend-bucket, --prefix).

`rm` keeps the objects in the pool. It fails while objects wait for the backend.

Examples:
  millpond s3 bucket add data --backend aws --backend-bucket company-data --prefix pond/ --cache 100GiB
  millpond s3 bucket add public --backend aws --shared --ttl 60s
  millpond s3 bucket list
  millpond s3 bucket rm public";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Attach a bucket to a backend.
    Add(Add),
    /// List backed buckets.
    #[command(visible_alias = "ls")]
    List,
    /// Detach a bucket from its backend.
    Rm {
        /// Name of the bucket.
        bucket: String,
    },
}

#[derive(Debug, clap::Args)]
struct Add {
    /// Name of the bucket.
    bucket: String,
    /// Owner of the bucket, if the command creates it.
    #[arg(long, default_value = DEFAULT_TENANT)]
    tenant: String,
    /// Name of the backend, as given to `millpond s3 backend add`.
    #[arg(long)]
    backend: String,
    /// Name of the bucket at the backend. [default: the same name]
    #[arg(long)]
    backend_bucket: Option<String>,
    /// Prefix that all keys get at the backend.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Other clients write at the backend too: compare a cached object with the backend when its
    /// --ttl is over.
    #[arg(long)]
    shared: bool,
    /// How long a cached object counts as current with --shared, and how often changes of mounts
    /// are searched for.
    #[arg(long, default_value = "60s")]
    ttl: Span,
    /// Maximum bytes of backend objects in the cache. [default: the size of the pool]
    #[arg(long)]
    cache: Option<Size>,
    /// Mode of writes that no rule covers. [default: unchanged; write-back for a new bucket]
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
}

impl Add {
    fn backing(&self, before: Option<Backing>) -> Backing {
        let mut rules = before.map(|it| it.rules).unwrap_or_default();
        if let Some(mode) = self.mode.map(ModeArg::mode) {
            let of_all = rules.iter_mut().find(|it| it.prefix.is_empty());
            match of_all {
                Some(rule) => rule.mode = mode,
                None if mode == Mode::WriteBack => {}
                None => rules.insert(0, Rule { mode, ..Rule::default() }),
            }
        }
        Backing {
            backend: self.backend.clone(),
            bucket: self.backend_bucket.clone().unwrap_or_else(|| self.bucket.clone()),
            prefix: self.prefix.clone().into_bytes(),
            is_shared: self.shared,
            ttl_s: seconds(self.ttl),
            cache_bytes: self.cache.map_or(0, Size::bytes),
            rules,
        }
    }
}

const fn is_busy(error: &ClientError) -> bool {
    matches!(error, ClientError::File { source: MetaError::Busy, .. })
}

pub(super) fn run(args: &Args) -> Outcome {
    let ring = args.to.buckets()?;
    match &args.command {
        Command::Add(add) => {
            let before = ring.get(&add.bucket)?.flatten();
            match ring.set((&add.bucket, &add.tenant), &add.backing(before)) {
                Ok(_) => Ok(OK),
                Err(error) if is_busy(&error) => bail!(
                    "'{0}' has another place at a backend, and the pool holds objects of that \
                     place: first run `millpond s3 persist --wait s3://{0}` and \
                     `millpond s3 bucket rm {0}`",
                    add.bucket
                ),
                Err(error) => Err(error.into()),
            }
        }
        Command::List => list(&ring, args.to.json),
        Command::Rm { bucket } => match ring.remove(bucket) {
            Ok(true) => {
                eprintln!(
                    "millpond: '{bucket}' is detached: objects that only the backend has stay \
                     there, and are not visible until `millpond s3 bucket add {bucket} …`"
                );
                Ok(OK)
            }
            Ok(false) => unbacked(bucket),
            Err(error) if is_busy(&error) => {
                eprintln!(
                    "millpond: objects of '{bucket}' wait for the backend: first run \
                     `millpond s3 persist --wait s3://{bucket}`"
                );
                Ok(FAILED)
            }
            Err(error) => Err(error.into()),
        },
    }
}

fn list(ring: &BucketRing, json: bool) -> Outcome {
    let all = ring.list()?;
    let prefix = |it: &Backing| String::from_utf8_lossy(&it.prefix).into_owned();
    if json {
        let shown = |(bucket, it): &(String, Backing)| {
            json!({"bucket": bucket, "backend": it.backend, "backend_bucket": it.bucket, "prefix": prefix(it),
                "shared": it.is_shared, "ttl_seconds": it.ttl_s, "cache_bytes": it.cache_bytes, "rules": it.rules.len(),
                "mode": name(it.rule_of(b"").mode)})
        };
        let lines: Vec<_> = all.iter().map(shown).collect();
        return output::line(&serde_json::Value::from(lines).to_string());
    }
    let titles = ["bucket", "backend", "backend path", "mode", "shared", "ttl", "cache", "rules"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|(bucket, it)| {
        let cache = match it.cache_bytes {
            0 => "pool".to_owned(),
            bytes => ByteSize(bytes).to_string(),
        };
        vec![
            bucket.clone(),
            it.backend.clone(),
            format!("{}/{}", it.bucket, prefix(it)),
            name(it.rule_of(b"").mode).to_owned(),
            if it.is_shared { "yes" } else { "no" }.to_owned(),
            format!("{}s", it.ttl_s),
            cache,
            it.rules.len().to_string(),
        ]
    }));
    output::bytes(output::table(&rows).as_bytes())
}
