//! `millpond s3 keys`: the access keys of clients.

use millpond_s3::{DEFAULT_TENANT, KeyRing};
use serde_json::json;

use super::To;
use crate::exit::{ABSENT, OK, Outcome};
use crate::output;

pub(super) const EXAMPLES: &str = r#"The secret of a new key is shown only once.
Gateways apply a change within a second.

Examples:
  millpond s3 keys add training
  eval "$(millpond s3 keys add me --env)"           for aws and other clients in this shell
  millpond s3 keys add team-a --tenant team-a
  millpond s3 keys add reports --bucket reports --bucket public
  millpond s3 keys list
  millpond s3 keys rm training"#;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    #[command(subcommand)]
    command: Keys,
}

#[derive(Debug, clap::Subcommand)]
enum Keys {
    /// Create an access key.
    Add {
        /// Name of the key, unique among all keys.
        name: String,
        /// Tenant of the key. A bucket belongs to the tenant that creates it; keys of other tenants
        /// may use it as its access control lists allow.
        #[arg(long, default_value = DEFAULT_TENANT)]
        tenant: String,
        /// Bucket that the key may use; repeatable. [default: all buckets of the tenant, and those
        /// that other tenants allow]
        #[arg(long = "bucket", value_name = "BUCKET")]
        buckets: Vec<String>,
        /// Print shell variables, even with `--json`: `eval "$(millpond s3 keys add me --env)"`.
        #[arg(long)]
        env: bool,
    },
    /// List access keys, without their secrets.
    #[command(visible_alias = "ls")]
    List,
    /// Remove an access key.
    Rm {
        /// Name of the key, or the access key itself.
        name: String,
    },
}

pub(super) fn run(args: &Args) -> Outcome {
    let ring = KeyRing::open(args.to.client()?)?;
    match &args.command {
        Keys::Add { name, tenant, buckets, env } => {
            let key = ring.add(name, tenant, buckets.clone())?;
            if *env {
                // Letters and digits only: nothing to quote.
                return output::line(&format!(
                    "export AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={}",
                    key.access_key, key.secret_key
                ));
            }
            if args.to.json {
                let shown = json!({"name": key.name, "access_key": key.access_key,
                    "secret_key": key.secret_key, "tenant": key.tenant, "buckets": key.buckets});
                return output::line(&shown.to_string());
            }
            output::line(&format!(
                "access key  {}\nsecret key  {}\n\nThe secret is not shown again.",
                key.access_key, key.secret_key
            ))
        }
        Keys::List => list(&ring, args.to.json),
        Keys::Rm { name } if ring.remove(name)? => Ok(OK),
        Keys::Rm { name } => {
            eprintln!("millpond: no access key '{name}'");
            Ok(ABSENT)
        }
    }
}

fn list(ring: &KeyRing, json: bool) -> Outcome {
    let keys = ring.list()?;
    if json {
        let line = |key: &millpond_s3::Key| json!({"name": key.name, "access_key": key.access_key, "tenant": key.tenant, "buckets": key.buckets});
        let lines: Vec<_> = keys.iter().map(line).collect();
        return output::line(&serde_json::Value::from(lines).to_string());
    }
    let mut rows = vec![["name", "access key", "tenant", "buckets"].map(str::to_owned).to_vec()];
    rows.extend(keys.into_iter().map(|key| {
        let buckets =
            if key.buckets.is_empty() { "all".to_owned() } else { key.buckets.join(", ") };
        vec![key.name, key.access_key, key.tenant, buckets]
    }));
    output::bytes(output::table(&rows).as_bytes())
}
