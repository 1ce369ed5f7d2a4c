//! `millpond s3 rules`: what becomes of keys, by their prefixes.

use anyhow::bail;
use millpond_client::{Backing, Mode, Rule, Sharing, WhenFull};
use millpond_types::ByteSize;
use millpond_types::limits::REPLICAS_MAX;
use serde_json::json;

use super::To;
use crate::exit::{ABSENT, OK, Outcome};
use crate::output;
use millpond_node::config::{Size, Span};

pub(super) const EXAMPLES: &str = "\
The rule with the longest matching prefix applies to a key; without a rule, the mode is write-back.
A change applies to later writes; objects that are already written keep their rule. Gateways apply
a change within a second.

Examples:
  millpond s3 rules data
  millpond s3 rules set data checkpoints/ --mode write-through
  millpond s3 rules set data scratch/ --mode transient --ttl 24h --quota 500GiB
  millpond s3 rules set data models/ --mode write-back --pin --priority 30
  millpond s3 rules set data incoming/ --mode write-back --sharing shared --ttl 10s
  millpond s3 rules rm data scratch/";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    /// Bucket to show the rules of.
    #[arg(required = true)]
    bucket: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a rule, or replace the rule of this prefix.
    Set(Set),
    /// Remove a rule.
    Rm {
        /// Name of the bucket.
        bucket: String,
        /// Prefix of the rule; "" for the rule of all keys.
        prefix: String,
    },
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Name of the bucket.
    bucket: String,
    /// Prefix of the keys; "" for all keys.
    prefix: String,
    /// When writes are acknowledged, and whether they reach the backend.
    #[arg(long, value_enum)]
    mode: ModeArg,
    /// Keep cached objects even beyond the cache limits.
    #[arg(long)]
    pin: bool,
    /// Lifetime of transient objects; for other modes, how long a cached object counts as current
    /// where the place at the backend is shared. [default: unlimited; the value of the bucket]
    #[arg(long)]
    ttl: Option<Span>,
    /// Whether other clients write below the prefix at the backend. [default: as for the bucket]
    #[arg(long, value_enum)]
    sharing: Option<SharingArg>,
    /// Maximum bytes below the prefix of a transient rule: a write beyond it fails with 507. The
    /// prefix must end with '/' and must be empty when it gets its first quota.
    /// [default: unlimited]
    #[arg(long)]
    quota: Option<Size>,
    /// Persist these objects before others that have waited up to this many minutes longer, 0 to
    /// 255.
    #[arg(long, default_value_t = 0)]
    priority: u8,
    /// Replicas of objects larger than 16 KiB; `millpond admin form` makes the chains for them.
    /// [default: the replicas of the pool]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(REPLICAS_MAX)))]
    replicas: Option<u8>,
    /// How write-back writes behave while the pool or a disk is full.
    #[arg(long, value_enum, default_value = "slow-down")]
    when_full: FullArg,
}

/// What becomes of writes.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum ModeArg {
    /// Acknowledge when the pool has the object; write to the backend later.
    #[default]
    WriteBack,
    /// Acknowledge when the backend has the object.
    WriteThrough,
    /// Never write to the backend.
    Transient,
}

/// Who writes at the backend.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SharingArg {
    /// No other client writes there.
    Exclusive,
    /// Other clients write there: a cached object counts as current for the time to live.
    Shared,
}

/// What becomes of writes while the pool is full.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FullArg {
    /// Reject writes with 503.
    SlowDown,
    /// Acknowledge writes when the backend has the objects.
    WriteThrough,
}

impl ModeArg {
    pub(super) const fn mode(self) -> Mode {
        match self {
            Self::WriteBack => Mode::WriteBack,
            Self::WriteThrough => Mode::WriteThrough,
            Self::Transient => Mode::Transient,
        }
    }
}

/// A mode as commands have it.
pub(super) const fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::WriteBack => "write-back",
        Mode::WriteThrough => "write-through",
        Mode::Transient => "transient",
    }
}

/// Whole seconds.
pub(super) fn seconds(span: Span) -> u32 {
    u32::try_from(span.0.as_secs()).unwrap_or(u32::MAX)
}

impl Set {
    fn rule(&self, replicas: u8) -> Rule {
        Rule {
            replicas,
            prefix: self.prefix.clone().into_bytes(),
            mode: self.mode.mode(),
            is_pinned: self.pin,
            sharing: match self.sharing {
                None => Sharing::AsBucket,
                Some(SharingArg::Exclusive) => Sharing::Exclusive,
                Some(SharingArg::Shared) => Sharing::Shared,
            },
            priority: self.priority,
            ttl_s: self.ttl.map_or(0, seconds),
            quota_bytes: self.quota.map_or(0, Size::bytes),
            when_full: match self.when_full {
                FullArg::SlowDown => WhenFull::SlowDown,
                FullArg::WriteThrough => WhenFull::WriteThrough,
            },
        }
    }
}

/// A number of replicas as rules have it: 0 is that of the pool. Refuses one that no chain has.
fn table_of(to: &To, wanted: u8) -> anyhow::Result<u8> {
    let chains = to.client()?.chains(None)?;
    if wanted == chains.replicas {
        return Ok(0);
    }
    if chains.tables.contains(&wanted) {
        return Ok(wanted);
    }
    let there: Vec<String> =
        [chains.replicas].iter().chain(&chains.tables).map(u8::to_string).collect();
    bail!(
        "--replicas {wanted}: the pool has chains of {} replicas: first run \
         `millpond admin form --replicas {wanted}`",
        there.join(", ")
    );
}

/// Nothing backs a bucket.
#[expect(clippy::unnecessary_wraps, reason = "it is what a command ends with")]
pub(super) fn unbacked(bucket: &str) -> Outcome {
    eprintln!(
        "millpond: '{bucket}' has no backend: `millpond s3 bucket add {bucket} --backend NAME`"
    );
    Ok(ABSENT)
}

pub(super) fn run(args: &Args) -> Outcome {
    let ring = args.to.buckets()?;
    match (&args.command, &args.bucket) {
        (Some(Command::Set(set)), _) => {
            let replicas = set.replicas.map_or(Ok(0), |wanted| table_of(&args.to, wanted))?;
            if ring.set_rule(&set.bucket, &set.rule(replicas))? {
                Ok(OK)
            } else {
                unbacked(&set.bucket)
            }
        }
        (Some(Command::Rm { bucket, prefix }), _) => {
            match ring.remove_rule(bucket, prefix.as_bytes())? {
                None => unbacked(bucket),
                Some(true) => Ok(OK),
                Some(false) => {
                    eprintln!("millpond: '{bucket}' has no rule for the prefix '{prefix}'");
                    Ok(ABSENT)
                }
            }
        }
        (None, bucket) => {
            let bucket = bucket.as_deref().unwrap_or_default();
            match ring.get(bucket)?.flatten() {
                Some(backing) => list(&backing, args.to.json),
                None => unbacked(bucket),
            }
        }
    }
}

const fn full_name(it: WhenFull) -> &'static str {
    match it {
        WhenFull::SlowDown => "slow-down",
        WhenFull::WriteThrough => "write-through",
    }
}

/// Who writes at the backend, if the rule says so.
const fn sharing_name(it: Sharing) -> Option<&'static str> {
    match it {
        Sharing::AsBucket => None,
        Sharing::Exclusive => Some("exclusive"),
        Sharing::Shared => Some("shared"),
    }
}

/// The replicas that a rule asks for.
fn replicas(rule: &Rule) -> Option<u8> {
    Some(rule.replicas).filter(|it| *it > 0)
}

fn list(backing: &Backing, json: bool) -> Outcome {
    let mut rules = backing.rules.clone();
    if !rules.iter().any(|it| it.prefix.is_empty()) {
        rules.insert(0, Rule::default());
    }
    let prefix = |it: &Rule| String::from_utf8_lossy(&it.prefix).into_owned();
    if json {
        let shown = |it: &Rule| {
            json!({"prefix": prefix(it), "mode": name(it.mode), "pinned": it.is_pinned,
                "ttl_seconds": it.ttl_s, "quota_bytes": it.quota_bytes, "priority": it.priority,
                "when_full": full_name(it.when_full), "replicas": replicas(it),
                "sharing": sharing_name(it.sharing)})
        };
        let lines: Vec<_> = rules.iter().map(shown).collect();
        return output::line(&serde_json::Value::from(lines).to_string());
    }
    let titles = [
        "prefix",
        "mode",
        "sharing",
        "pinned",
        "ttl",
        "quota",
        "priority",
        "replicas",
        "when full",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let or_dash = |is_set: bool, text: String| if is_set { text } else { "-".to_owned() };
    rows.extend(rules.iter().map(|it| {
        vec![
            or_dash(!it.prefix.is_empty(), prefix(it)),
            name(it.mode).to_owned(),
            sharing_name(it.sharing).unwrap_or("-").to_owned(),
            if it.is_pinned { "yes" } else { "no" }.to_owned(),
            or_dash(it.ttl_s > 0, format!("{}s", it.ttl_s)),
            or_dash(it.quota_bytes > 0, ByteSize(it.quota_bytes).to_string()),
            it.priority.to_string(),
            replicas(it).map_or_else(|| "-".to_owned(), |it| it.to_string()),
            full_name(it.when_full).to_owned(),
        ]
    }));
    output::bytes(output::table(&rows).as_bytes())
}
