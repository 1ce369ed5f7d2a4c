//! `millpond kv`: keys of a running server.

mod namespaces;

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use millpond_client::{
    Addresses, Client, ClientError, ClientOptions, ErrorKind, GetOutcome, Room, Value,
};
use millpond_kv::{Batch, BlockStore as _, Namespace};
use millpond_types::limits::CHUNK_BYTES_MAX;
use millpond_types::wire::ItemStatus;
use millpond_types::{BlockKey, GroupId, NamespaceInfo, NamespaceOptions};
use serde_json::json;

use super::output;
use crate::exit::{ABSENT, FAILED, OK, Outcome};
use millpond_node::config::Span;

pub(super) const EXAMPLES: &str =
    "Keys and values are bytes. Write a key that is not text as hex:0011ff.

Examples:
  millpond kv put greeting hello
  millpond kv get greeting
  tar c notes | millpond kv put backup -        (64 MiB at most)
  millpond kv ls --namespace demo --json
  millpond kv ns create demo --quota 10GiB --ttl 24h --ack disk";

/// Room for a value whose length is not known yet; most fit at once.
const ROOM_FIRST: usize = 64 << 10;

/// Where the server is.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address of the server: HOST:PORT or unix:PATH; for a cluster one or more nodes,
    /// comma-separated.
    #[arg(long, global = true, default_value = crate::address::default_address(), env = "MILLPOND_ADDRESS")]
    address: String,
    /// Credential, if the server requires one.
    #[arg(long, global = true, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// PEM file with the CA certificates of the server; turns TLS on.
    #[arg(long, global = true, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Namespace to use; `put` creates it if it does not exist.
    #[arg(long, short, global = true, default_value = "default", env = "MILLPOND_NAMESPACE")]
    namespace: String,
    /// Timeout of a request.
    #[arg(long, global = true, default_value = "10s")]
    timeout: Span,
    /// Print JSON; a value that is not text is printed in hex.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Store a value; a key that already has a value keeps it.
    Put {
        /// The key.
        key: String,
        /// The value; `-` or no value reads standard input.
        value: Option<String>,
        /// Read the value from a file.
        #[arg(long, short, conflicts_with = "value")]
        file: Option<PathBuf>,
        /// Succeed without a change if the key already has a value.
        #[arg(long)]
        if_absent: bool,
    },
    /// Read a value to standard output or a file.
    Get {
        /// The key.
        key: String,
        /// Write the value to a file.
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
    /// List keys.
    Ls {
        /// List only keys with this prefix.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Show statistics of the namespace or of the whole server.
    Stat {
        /// Show the statistics of the whole server.
        #[arg(long)]
        server: bool,
    },
    /// Remove keys.
    Rm(Keys),
    /// Keep keys from eviction until they are unpinned.
    Pin(Keys),
    /// Remove the pins of keys.
    Unpin(Keys),
    /// Mark keys as recently used.
    Touch(Keys),
    /// Count the leading keys that are present.
    Match {
        #[command(flatten)]
        keys: Keys,
        /// Keep the matched keys from eviction for this long (at most 1m).
        #[arg(long, default_value = "0s")]
        lease: Span,
    },
    /// Create, list, show and drop namespaces.
    #[command(subcommand)]
    Ns(namespaces::Command),
}

/// Some keys.
#[derive(Debug, clap::Args)]
struct Keys {
    /// The keys.
    #[arg(required = true)]
    keys: Vec<String>,
}

fn parse_bytes(text: &str) -> anyhow::Result<Vec<u8>> {
    let Some(digits) = text.strip_prefix("hex:") else { return Ok(text.as_bytes().to_vec()) };
    let bad = || format!("'{text}' is not a key: write an even number of hex digits after hex:");
    if !digits.is_ascii() || !digits.len().is_multiple_of(2) {
        bail!(bad());
    }
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).with_context(bad))
        .collect()
}

fn parse_key(text: &str) -> anyhow::Result<BlockKey> {
    Ok(BlockKey::new(&parse_bytes(text)?)?)
}

impl Keys {
    fn parse(&self) -> anyhow::Result<Vec<BlockKey>> {
        self.keys.iter().map(|key| parse_key(key)).collect()
    }
}

/// A key as it can be given to a command again.
fn show_key(key: &BlockKey) -> String {
    let bytes = key.as_bytes();
    // What a terminal does not show as it is, such as a mark of writing direction, is not text here.
    match str::from_utf8(bytes) {
        Ok(text) if text.chars().all(is_shown) && !text.starts_with("hex:") => text.to_owned(),
        _ => format!("hex:{}", hex(bytes)),
    }
}

/// Whether a character is shown as itself, or is a quotation mark or backslash, which only code escapes.
fn is_shown(c: char) -> bool {
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().eq([c])
}

/// A table of namespaces, or one JSON object a line.
pub(super) fn list_namespaces(all: &[NamespaceInfo], json: bool) -> Outcome {
    namespaces::list(all, json)
}

/// Two lower-case digits per byte.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Runs it.
pub(super) fn run(args: &Args) -> Outcome {
    match act(args) {
        Err(error) => {
            let kind = error.downcast_ref::<ClientError>().map(ClientError::kind);
            if kind == Some(ErrorKind::NoNamespace) {
                eprintln!("millpond: {}", crate::exit::told(&error));
                return Ok(ABSENT);
            }
            Err(error)
        }
        done => done,
    }
}

impl Args {
    fn client(&self) -> anyhow::Result<Client> {
        let addresses: Addresses = self.address.parse()?;
        let options = ClientOptions {
            token: self.token.clone(),
            tls_ca: self.tls_ca.clone(),
            deadline: self.timeout.0,
            connections: 1,
            ..ClientOptions::new(addresses)
        };
        Ok(Client::new(options)?)
    }

    fn open(&self, create: bool) -> anyhow::Result<Namespace> {
        let options = NamespaceOptions::default();
        Ok(Namespace::open(&self.client()?, &self.namespace, create, options)?)
    }
}

fn act(args: &Args) -> Outcome {
    match &args.command {
        Command::Put { key, value, file, if_absent } => {
            put(args, key, &read_value(value.as_deref(), file.as_ref())?, *if_absent)
        }
        Command::Get { key, output } => get(args, key, output.as_ref()),
        Command::Ls { prefix } => ls(args, prefix),
        Command::Stat { server } => stat(args, *server),
        Command::Rm(keys) => each(args, keys, |ns, keys| ns.delete(Batch::own(keys))),
        Command::Pin(keys) => each(args, keys, |ns, keys| ns.pin(Batch::own(keys))),
        Command::Unpin(keys) => each(args, keys, |ns, keys| ns.unpin(Batch::own(keys))),
        Command::Touch(keys) => each(args, keys, |ns, keys| ns.touch(Batch::own(keys))),
        Command::Match { keys, lease } => prefix_match(args, keys, lease.0),
        Command::Ns(command) => namespaces::run(args, command),
    }
}

fn read_value(value: Option<&str>, file: Option<&PathBuf>) -> anyhow::Result<Vec<u8>> {
    if let Some(path) = file {
        return std::fs::read(path).with_context(|| path.display().to_string());
    }
    match value {
        Some(text) if text != "-" => Ok(text.as_bytes().to_vec()),
        _ => {
            if std::io::stdin().is_terminal() {
                eprintln!("millpond: reading the value from standard input; end with Ctrl-D");
            }
            let mut bytes = Vec::new();
            let most = CHUNK_BYTES_MAX as u64 + 1;
            std::io::stdin().lock().take(most).read_to_end(&mut bytes)?;
            Ok(bytes)
        }
    }
}

fn put(args: &Args, key: &str, value: &[u8], if_absent: bool) -> Outcome {
    let key = parse_key(key)?;
    if value.len() > CHUNK_BYTES_MAX {
        bail!("the value is larger than 64 MiB: split it into several keys");
    }
    let namespace = args.open(true)?;
    let value = [Value::One(value)];
    let status = namespace.put(Batch::own(&[key]), &value)?;
    if args.json {
        let said = status.first().map_or("none", |status| status.name());
        output::line(&json!({ "key": show_key(&key), "status": said }).to_string())?;
    }
    match status.first() {
        Some(ItemStatus::Ok) => Ok(OK),
        Some(ItemStatus::Exists) if if_absent => Ok(OK),
        Some(ItemStatus::Exists) => bail!(
            "not stored: the key already has a value, which is kept: remove it first with \
             `millpond kv rm`, or accept it with --if-absent"
        ),
        Some(other) => bail!("not stored: {}", explain(*other)),
        None => bail!("the server returned no status for the key"),
    }
}

fn explain(status: ItemStatus) -> &'static str {
    match status {
        ItemStatus::NoSpace => "the disks are full, and no stored value may be evicted",
        ItemStatus::Quota => "the quota of the namespace is used up",
        ItemStatus::Busy => "the server is busy: try again",
        ItemStatus::ReadOnly => "the disk accepts no writes: see the log of the server",
        ItemStatus::Late => "the put took longer than --timeout; the value may still be stored",
        ItemStatus::Corrupt => "the bytes were damaged in transit",
        _ => "unexpected answer",
    }
}

fn get(args: &Args, key: &str, file: Option<&PathBuf>) -> Outcome {
    let key = parse_key(key)?;
    let namespace = args.open(false)?;
    let mut bytes = vec![0; ROOM_FIRST];
    loop {
        let room = &mut [Room::One(&mut bytes)];
        let outcome = namespace.get(Batch::own(&[key]), room)?;
        match outcome.first() {
            Some(GetOutcome::Read(len)) => {
                bytes.truncate(*len as usize);
                break;
            }
            Some(GetOutcome::TooLong(len)) if *len as usize > bytes.len() => {
                bytes.resize(*len as usize, 0);
            }
            Some(GetOutcome::Late) => {
                bail!("the server was too busy to read the value in time: try again")
            }
            _ => {
                eprintln!("millpond: no such key in namespace '{}'", args.namespace);
                return Ok(ABSENT);
            }
        }
    }
    if let Some(path) = file {
        std::fs::write(path, &bytes).with_context(|| path.display().to_string())?;
        return Ok(OK);
    }
    if args.json {
        let text = str::from_utf8(&bytes).ok();
        let hex = text.is_none().then(|| hex(&bytes));
        let line = json!({
            "key": show_key(&key), "bytes": bytes.len(), "value": text, "value_hex": hex,
        });
        return output::line(&line.to_string());
    }
    output::bytes(&bytes)?;
    // A prompt right behind a text looks as if it belonged to it.
    if std::io::stdout().is_terminal() && !bytes.ends_with(b"\n") {
        return output::line("");
    }
    Ok(OK)
}

fn ls(args: &Args, prefix: &str) -> Outcome {
    let prefix = parse_bytes(prefix)?;
    let namespace = args.open(false)?;
    let mut cursor = 0;
    loop {
        let page = namespace.list_page(&prefix, cursor)?;
        let mut text = String::new();
        for info in &page.keys {
            if args.json {
                let line = json!({
                    "key": show_key(&info.key), "bytes": info.len,
                    "expires": (info.expires > 0).then_some(info.expires), "pinned": info.pinned,
                });
                let _ = writeln!(text, "{line}");
            } else {
                let pinned = if info.pinned { "  pinned" } else { "" };
                let _ = writeln!(text, "{:>12}  {}{pinned}", info.len, show_key(&info.key));
            }
        }
        output::bytes(text.as_bytes())?;
        cursor = page.cursor;
        if cursor == 0 {
            return Ok(OK);
        }
    }
}

fn stat(args: &Args, server: bool) -> Outcome {
    let values = if server {
        args.client()?.stats(GroupId::SYSTEM, None)?
    } else {
        args.open(false)?.stats()?
    };
    if args.json {
        let map: serde_json::Map<String, serde_json::Value> =
            values.into_iter().map(|(name, value)| (name, value.into())).collect();
        return output::line(&serde_json::Value::Object(map).to_string());
    }
    let rows: Vec<_> =
        values.into_iter().map(|(name, value)| vec![name, value.to_string()]).collect();
    output::bytes(output::table(&rows).as_bytes())
}

/// Runs a verb on keys; 3 when one of them was not there.
fn each(
    args: &Args,
    keys: &Keys,
    verb: impl Fn(&Namespace, &[BlockKey]) -> Result<Vec<bool>, ClientError>,
) -> Outcome {
    let parsed = keys.parse()?;
    let found = verb(&args.open(false)?, &parsed)?;
    if args.json {
        let map: serde_json::Map<String, serde_json::Value> = parsed
            .iter()
            .zip(&found)
            .map(|(key, found)| (show_key(key), (*found).into()))
            .collect();
        output::line(&serde_json::Value::Object(map).to_string())?;
    }
    let mut code = OK;
    for (key, _) in parsed.iter().zip(&found).filter(|(_, found)| !**found) {
        eprintln!("millpond: no such key: {}", show_key(key));
        code = ABSENT;
    }
    Ok(if found.len() == parsed.len() { code } else { FAILED })
}

fn prefix_match(args: &Args, keys: &Keys, lease: Duration) -> Outcome {
    let parsed = keys.parse()?;
    let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
    let reply = args.open(false)?.match_prefix(Batch::own(&parsed), lease_ms)?;
    if args.json {
        let line =
            json!({ "matched": reply.matched, "leased": reply.leased, "asked": parsed.len() });
        return output::line(&line.to_string());
    }
    output::line(&format!("{} of {} matched, {} leased", reply.matched, parsed.len(), reply.leased))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_print_as_they_are_written() {
        for text in ["plain", "with space", "hex:00ff", "a\"b\\'c", "schlüssel/ключ/鍵"] {
            assert_eq!(show_key(&parse_key(text).unwrap()), text);
        }
        assert_eq!(show_key(&BlockKey::new(b"hex:00").unwrap()), "hex:6865783a3030");
        for hidden in ["tab\t", "new\nline", "\u{202e}turned", "\u{1b}[31m"] {
            assert!(show_key(&BlockKey::new(hidden.as_bytes()).unwrap()).starts_with("hex:"));
        }
        assert_eq!(show_key(&BlockKey::new(&[0xff]).unwrap()), "hex:ff");
        assert!(parse_key("hex:0").is_err());
        assert!(parse_key("hex:zz").is_err());
        assert!(parse_key("hex:").is_err());
    }
}
