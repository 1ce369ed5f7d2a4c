//! `millpond s3 bucket`.

use anyhow::bail;
use millpond_client::{Backing, ClientError, Mode, Rule};
use millpond_s3::{BucketRing, DEFAULT_TENANT};
use millpond_types::ByteSize;
use millpond_types::meta::MetaError;
use serde_json::json;

use super::To;
use super::rules::{ModeArg, name, seconds, unbacked};
use crate::cli::{FAILED, OK, Outcome, output};
use crate::config::{Size, Span};

pub(super) const EXAMPLES: &str = "`add` makes the bucket if it is not there. It asks the backend for a key first, and changes nothing if that fails. Of a bucket that is
backed already it sets --shared, --ttl and --cache anew, each to its default where it is left out; the place cannot change, and rules stay. `rm` leaves in the pool what lies there, and is refused while something waits for the
backend.

Examples:
  millpond s3 bucket add data --backend aws --backend-bucket company-data --prefix pond/ --cache 100GiB
  millpond s3 bucket add public --backend aws --shared --ttl 60s
  millpond s3 bucket list
  millpond s3 bucket rm public";

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    to: To,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Have a bucket be backed.
    Add(Add),
    /// List backed buckets.
    #[command(visible_alias = "ls")]
    List,
    /// Have nothing back a bucket any more.
    Rm {
        /// The bucket.
        bucket: String,
    },
}

#[derive(Debug, clap::Args)]
struct Add {
    /// The bucket.
    bucket: String,
    /// Whose the bucket is, if it is made now.
    #[arg(long, default_value = DEFAULT_TENANT)]
    tenant: String,
    /// The backend, as `millpond s3 backend add` called it.
    #[arg(long)]
    backend: String,
    /// The bucket there. [default: the same name]
    #[arg(long)]
    backend_bucket: Option<String>,
    /// What its keys have there before those of here.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Others write there too: what is cached is compared with the backend when its time is over.
    #[arg(long)]
    shared: bool,
    /// How long what is cached of a shared place is right; and how often changes of mounts are looked for.
    #[arg(long, default_value = "60s")]
    ttl: Span,
    /// Bytes that are cached at most of what the backend has. [default: what the pool has]
    #[arg(long)]
    cache: Option<Size>,
    /// What becomes of writes where no rule says something else. [default: as it is, write-back for a new one]
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
                    "another place backs '{0}', and what lies in the pool is of that one: `millpond s3 persist --wait s3://{0}` and `millpond s3 bucket rm {0}` before it gets this one",
                    add.bucket
                ),
                Err(error) => Err(error.into()),
            }
        }
        Command::List => list(&ring, args.to.json),
        Command::Rm { bucket } => match ring.remove(bucket) {
            Ok(true) => {
                eprintln!(
                    "millpond: nothing backs '{bucket}' any more: objects that only the backend has are there, and not shown here until `millpond s3 bucket add {bucket} …`"
                );
                Ok(OK)
            }
            Ok(false) => unbacked(bucket),
            Err(error) if is_busy(&error) => {
                eprintln!(
                    "millpond: objects of '{bucket}' wait for the backend: `millpond s3 persist --wait s3://{bucket}` before"
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
    let titles = ["bucket", "backend", "place there", "mode", "shared", "ttl", "cache", "rules"];
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
