//! `millpond kv ns`.

use millpond_kv::Namespace;
use millpond_types::wire::NamespaceSet;
use millpond_types::{Ack, ByteSize, NamespaceInfo, NamespaceOptions, Priority};
use serde_json::json;

use super::Args;
use crate::exit::{ABSENT, OK, Outcome};
use crate::output;
use millpond_node::config::{Size, Span};

/// What to do with namespaces.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List namespaces.
    Ls,
    /// Create a namespace.
    Create {
        /// Name of the namespace: letters, digits and ._-/:@
        name: String,
        /// When a put is acknowledged.
        #[arg(long, value_enum, default_value = "memory")]
        ack: AckArg,
        /// Maximum size; at the limit the namespace evicts its own coldest values, or with
        /// `--no-evict` rejects new ones. [default: unlimited]
        #[arg(long)]
        quota: Option<Size>,
        /// Time after which values expire. [default: never]
        #[arg(long)]
        ttl: Option<Span>,
        /// Eviction priority of the values.
        #[arg(long, value_enum, default_value = "normal")]
        priority: PriorityArg,
        /// Never evict the values of the namespace; a full disk rejects new ones.
        #[arg(long)]
        no_evict: bool,
    },
    /// Change a namespace: the quota at once, time to live and priority for later values.
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
    Set {
        /// Name of the namespace.
        name: String,
        /// Maximum size; 0 for no quota. A namespace that holds more evicts its coldest values, or
        /// rejects new ones if it was created with `--no-evict`.
        #[arg(long, group = "change")]
        quota: Option<Size>,
        /// Time after which later values expire; 0s for never.
        #[arg(long, group = "change")]
        ttl: Option<Span>,
        /// Eviction priority of the values.
        #[arg(long, value_enum, group = "change")]
        priority: Option<PriorityArg>,
    },
    /// Show one namespace.
    Show {
        /// Name of the namespace.
        name: String,
    },
    /// Remove a namespace and all its values.
    Drop {
        /// Name of the namespace.
        name: String,
    },
}

/// When a put is acknowledged.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum AckArg {
    /// When the value is in memory; a crash may lose the latest values.
    Memory,
    /// When the value is on disk; it survives power loss.
    Disk,
}

/// Eviction class.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum PriorityArg {
    /// Evicted first.
    Low,
    /// Evicted after low and before high.
    Normal,
    /// Evicted last.
    High,
}

impl From<PriorityArg> for Priority {
    fn from(arg: PriorityArg) -> Self {
        match arg {
            PriorityArg::Low => Self::Low,
            PriorityArg::Normal => Self::Normal,
            PriorityArg::High => Self::High,
        }
    }
}

/// A time to live in seconds; less than one is one, since 0 stands for ever.
fn seconds(ttl: Span) -> u32 {
    let whole = u32::try_from(ttl.0.as_secs()).unwrap_or(u32::MAX);
    if ttl.0.is_zero() { 0 } else { whole.max(1) }
}

fn show(info: &NamespaceInfo) -> serde_json::Value {
    let options = &info.options;
    let layout = super::hex(&options.layout.0);
    json!({
        "name": info.name,
        "id": info.id.0,
        "ack": if options.ack == Ack::Disk { "disk" } else { "memory" },
        "priority": match options.priority {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        },
        "evict": options.evict,
        "ttl_seconds": options.ttl_seconds,
        "quota_bytes": options.quota.0,
        "replicas": options.replicas,
        "run_blocks": options.run_blocks,
        "layout": (!options.layout.is_unset()).then_some(layout),
    })
}

/// Runs it.
pub(super) fn run(args: &Args, command: &Command) -> Outcome {
    let client = args.client()?;
    match command {
        Command::Ls => list(&client.namespaces(None)?, args.json),
        Command::Create { name, ack, quota, ttl, priority, no_evict } => {
            let options = NamespaceOptions {
                ack: match ack {
                    AckArg::Memory => Ack::Memory,
                    AckArg::Disk => Ack::Disk,
                },
                quota: quota.map_or(ByteSize(0), |quota| quota.0),
                ttl_seconds: ttl.map_or(0, seconds),
                priority: (*priority).into(),
                evict: !no_evict,
                ..NamespaceOptions::default()
            };
            let known = client.namespaces(None)?.into_iter().any(|info| info.name == *name);
            let namespace = Namespace::open(&client, name, true, options.clone())?;
            if known && namespace.info().options != options {
                anyhow::bail!(
                    "namespace '{name}' exists with other options: change quota, ttl and priority \
                     with `millpond kv ns set {name}`; for other options drop it first with \
                     `millpond kv ns drop {name}`"
                );
            }
            Ok(OK)
        }
        Command::Set { name, quota, ttl, priority } => {
            let set = NamespaceSet {
                name: name.clone(),
                quota: quota.map(|quota| quota.0),
                ttl_seconds: ttl.map(seconds),
                priority: priority.map(Into::into),
            };
            let changed = client.set_namespace(&set, None)?;
            if args.json {
                return output::line(&show(&changed).to_string());
            }
            Ok(OK)
        }
        Command::Show { name } => {
            let all = client.namespaces(None)?;
            let Some(info) = all.iter().find(|info| info.name == *name) else {
                eprintln!("millpond: no namespace '{name}'");
                return Ok(ABSENT);
            };
            let value = show(info);
            if args.json {
                return output::line(&value.to_string());
            }
            output::bytes(output::table(&rows(&value)).as_bytes())
        }
        Command::Drop { name } => {
            client.drop_namespace(name, None)?;
            Ok(OK)
        }
    }
}

/// One row for each option.
fn rows(value: &serde_json::Value) -> Vec<Vec<String>> {
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(name, value)| vec![name.clone(), text(value)]).collect()
}

/// A table of namespaces, or one JSON object a line.
pub(super) fn list(all: &[NamespaceInfo], json: bool) -> Outcome {
    if json {
        let lines: Vec<String> = all.iter().map(|info| format!("{}\n", show(info))).collect();
        return output::bytes(lines.concat().as_bytes());
    }
    let mut rows = vec![["NAME", "ACK", "EVICT", "TTL", "QUOTA"].map(str::to_owned).to_vec()];
    for info in all {
        let options = &info.options;
        rows.push(vec![
            info.name.clone(),
            if options.ack == Ack::Disk { "disk" } else { "memory" }.to_owned(),
            if options.evict { "yes" } else { "no" }.to_owned(),
            if options.ttl_seconds == 0 {
                "-".to_owned()
            } else {
                format!("{}s", options.ttl_seconds)
            },
            if options.quota.0 == 0 { "-".to_owned() } else { options.quota.to_string() },
        ]);
    }
    output::bytes(output::table(&rows).as_bytes())
}
