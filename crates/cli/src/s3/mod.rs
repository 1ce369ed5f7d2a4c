//! `millpond s3`: access keys, and the object stores behind buckets.

mod backend;
mod bucket;
mod keys;
mod persist;
mod rules;
mod status;

use millpond_client::{Addresses, Client, ClientOptions};
use millpond_s3::BucketRing;

use crate::exit::Outcome;

pub(super) const EXAMPLES: &str = "Examples:
  millpond s3 keys add training
  millpond s3 backend add aws --endpoint https://s3.eu-central-1.amazonaws.com --region eu-central-1 \\
      --access-key AKIA… --secret-key-file secret
  millpond s3 bucket add data --backend aws --cache 100GiB
  millpond s3 status";

#[derive(Debug, clap::Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it")]
pub(super) enum Command {
    /// Create, list and remove the access keys of clients.
    #[command(after_help = keys::EXAMPLES)]
    Keys(keys::Args),
    /// Add, list and remove backends: object stores behind buckets.
    #[command(after_help = backend::EXAMPLES)]
    Backend(backend::Args),
    /// Attach buckets to a backend, which stores their objects; list and detach them.
    #[command(after_help = bucket::EXAMPLES)]
    Bucket(bucket::Args),
    /// Show and change the rules of a backed bucket, by key prefix.
    #[command(after_help = rules::EXAMPLES, args_conflicts_with_subcommands = true)]
    Rules(rules::Args),
    /// Show the objects that wait for the backends of buckets, and those that fail there.
    Status(status::Args),
    /// Persist waiting objects to the backend at once.
    #[command(after_help = persist::EXAMPLES)]
    Persist(persist::Args),
    /// Retry failed objects at once, without the rest of their pause.
    Retry(persist::RetryArgs),
}

/// Which cluster, and how it is told.
#[derive(Debug, clap::Args)]
struct To {
    /// Addresses of some nodes of the cluster: HOST:PORT, comma-separated.
    #[arg(long, global = true, default_value = crate::address::default_address(), env = "MILLPOND_ADDRESS")]
    server: Addresses,
    /// Credential, if the cluster requires one.
    #[arg(long, global = true, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

impl To {
    fn client(&self) -> anyhow::Result<Client> {
        let token = self.token.clone();
        Ok(Client::new(ClientOptions { token, ..ClientOptions::new(self.server.clone()) })?)
    }

    fn buckets(&self) -> anyhow::Result<BucketRing> {
        Ok(BucketRing::open(self.client()?)?)
    }
}

pub(super) fn run(command: &Command) -> Outcome {
    match command {
        Command::Keys(args) => keys::run(args),
        Command::Backend(args) => backend::run(args),
        Command::Bucket(args) => bucket::run(args),
        Command::Rules(args) => rules::run(args),
        Command::Status(args) => status::run(args),
        Command::Persist(args) => persist::run(args),
        Command::Retry(args) => persist::retry(args),
    }
}

/// Keys of a bucket that begin so: `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Below {
    bucket: String,
    prefix: String,
}

impl std::str::FromStr for Below {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("s3://").ok_or("write s3://BUCKET/PREFIX")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err("the bucket is missing: write s3://BUCKET/PREFIX".to_owned());
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::Below;

    #[test]
    fn a_prefix_is_a_url() {
        let below = |text: &str| text.parse::<Below>();
        for (text, bucket, prefix) in
            [("s3://b", "b", ""), ("s3://b/", "b", ""), ("s3://b/a/ü", "b", "a/ü")]
        {
            let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
            assert_eq!(below(text), Ok(Below { bucket, prefix }));
        }
        assert!(below("b/a").is_err() && below("s3://").is_err() && below("s3:///a").is_err());
    }
}
