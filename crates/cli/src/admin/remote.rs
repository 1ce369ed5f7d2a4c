//! The way to the primary manager.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use millpond_client::{Address, Client, ClientError, ClientOptions, ErrorKind, Transport};
use millpond_env::RealClock;
use millpond_types::wire::Verb;

use crate::interrupt::Interrupt;
use millpond_control::admin::{
    Answer, Chain, Command, Config, Event, Slot, Status, decode_answer, encode_command,
};
use millpond_node::config::Span;

/// Pause while nobody is primary.
const PAUSE: Duration = Duration::from_millis(200);
/// A silent address must leave time for the others.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);

/// Where the cluster is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Where {
    /// Nodes of the cluster, comma-separated; if one does not answer, the next one is asked.
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = crate::address::default_address(),
        env = "MILLPOND_ADDRESS"
    )]
    pub(crate) server: Vec<String>,
    /// Credential, if the cluster requires one.
    #[arg(long, global = true, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// PEM file with the CA certificates of the servers; turns TLS on.
    #[arg(long, global = true, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Timeout of a request.
    #[arg(long, global = true, default_value = "10s")]
    timeout: Span,
}

impl Where {
    /// A cluster that asks for no credential.
    pub(crate) fn at(server: Vec<String>) -> Self {
        Self { server, token: String::new(), tls_ca: None, timeout: Span(Duration::from_secs(2)) }
    }

    /// The same, asked with other patience.
    pub(crate) fn within(self, timeout: Duration) -> Self {
        Self { timeout: Span(timeout), ..self }
    }

    /// A connection to one server, over TCP.
    pub(crate) fn client(&self, address: &str) -> anyhow::Result<Client> {
        let address: Address = address.parse()?;
        let transport = match address {
            Address::Tcp { .. } => Transport::Tcp,
            Address::Unix(_) => Transport::Unix,
        };
        let options = ClientOptions {
            token: self.token.clone(),
            tls_ca: self.tls_ca.clone(),
            deadline: self.timeout.0,
            connections: 1,
            transport,
            ..ClientOptions::new(address.into())
        };
        Ok(Client::new(options)?)
    }

    /// The cluster behind these addresses.
    pub(crate) fn cluster(&self) -> anyhow::Result<Cluster> {
        let interrupt = Interrupt::install().context("installing signal handlers")?;
        Ok(Cluster { at: self.clone(), known: None, interrupt })
    }
}

/// A cluster, asked over whichever node answers.
pub(crate) struct Cluster {
    at: Where,
    /// Who answered last.
    known: Option<(String, Client)>,
    pub(crate) interrupt: Interrupt,
}

/// What one address said.
enum Reply {
    Answer(Box<Answer>),
    /// Another address may know better.
    Elsewhere(Vec<String>, anyhow::Error),
}

impl Cluster {
    /// Asks the primary, over all addresses, until the time is over.
    pub(crate) fn ask(&mut self, command: &Command) -> anyhow::Result<Answer> {
        let until = RealClock::tick().plus(self.at.timeout.0);
        let request = encode_command(command);
        loop {
            let mut waiting = self.at.server.clone();
            if let Some((known, _)) = &self.known {
                waiting.retain(|address| address != known);
                waiting.insert(0, known.clone());
            }
            let mut asked = Vec::new();
            let mut last = None;
            while !waiting.is_empty() {
                let address = waiting.remove(0);
                if asked.contains(&address) {
                    continue;
                }
                match self.ask_at(&address, &request, until.since(RealClock::tick()))? {
                    Reply::Answer(answer) => return Ok(*answer),
                    Reply::Elsewhere(hints, error) => {
                        waiting.splice(0..0, hints);
                        last = Some(error);
                    }
                }
                asked.push(address);
            }
            let left = until.since(RealClock::tick());
            if left <= PAUSE || self.interrupt.pause(PAUSE) {
                let error = last.unwrap_or_else(|| anyhow::anyhow!("no address was given"));
                return Err(error.context("no manager answers"));
            }
        }
    }

    fn ask_at(&mut self, address: &str, request: &[u8], left: Duration) -> anyhow::Result<Reply> {
        let client = match self.known.take() {
            Some((known, client)) if known == address => client,
            _ => self.at.client(address)?,
        };
        let deadline = left.min(ATTEMPT_MAX).max(Duration::from_millis(1));
        let reply = match client.call(Verb::Admin, request.to_vec(), Some(deadline)) {
            Ok(reply) => reply,
            Err(error) if may_be_elsewhere(&error) => {
                return Ok(Reply::Elsewhere(Vec::new(), anyhow::Error::from(error)));
            }
            Err(error) => return Err(error.into()),
        };
        match decode_answer(&reply)? {
            Answer::NotPrimary { primary } => {
                let error = anyhow::anyhow!("{address} is not the primary manager");
                Ok(Reply::Elsewhere(primary, error))
            }
            answer => {
                self.known = Some((address.to_owned(), client));
                Ok(Reply::Answer(Box::new(answer)))
            }
        }
    }

    /// Carries out a change; the text says what follows.
    pub(super) fn change(&mut self, command: &Command) -> anyhow::Result<String> {
        match self.ask(command)? {
            Answer::Done { text } => Ok(text),
            other => unexpected(other),
        }
    }

    pub(crate) fn status(&mut self) -> anyhow::Result<Status> {
        match self.ask(&Command::Status {})? {
            Answer::Status(status) => Ok(*status),
            other => unexpected(other),
        }
    }

    /// All chains, or all that are not well.
    pub(crate) fn chains(&mut self, unhealthy: bool) -> anyhow::Result<Vec<Chain>> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            match self.ask(&Command::Chains { after, unhealthy })? {
                Answer::Chains(page) => {
                    all.extend(page.chains);
                    match page.next {
                        Some(next) if next > after => after = next,
                        _ => return Ok(all),
                    }
                }
                other => return unexpected(other),
            }
        }
    }

    /// One chain.
    pub(super) fn chain(&mut self, id: u32) -> anyhow::Result<Option<Chain>> {
        match self.ask(&Command::Chains { after: id.saturating_sub(1), unhealthy: false })? {
            Answer::Chains(page) => Ok(page.chains.into_iter().find(|chain| chain.id == id)),
            other => unexpected(other),
        }
    }

    pub(super) fn slots(&mut self) -> anyhow::Result<Vec<Slot>> {
        match self.ask(&Command::Slots {})? {
            Answer::Slots { moving } => Ok(moving),
            other => unexpected(other),
        }
    }

    pub(super) fn config(&mut self) -> anyhow::Result<Config> {
        match self.ask(&Command::Config {})? {
            Answer::Config(config) => Ok(config),
            other => unexpected(other),
        }
    }

    /// Events from a number on, up to the newest.
    pub(super) fn events(&mut self, mut from: u64) -> anyhow::Result<Vec<Event>> {
        let mut all = Vec::new();
        loop {
            match self.ask(&Command::Events { from })? {
                Answer::Events { events } => match events.last() {
                    Some(last) => {
                        from = last.number + 1;
                        all.extend(events);
                    }
                    None => return Ok(all),
                },
                other => return unexpected(other),
            }
        }
    }
}

fn unexpected<T>(answer: Answer) -> anyhow::Result<T> {
    match answer {
        Answer::Refused { text } => bail!(text),
        _ => bail!("unexpected answer from the manager: is it of another version?"),
    }
}

/// True when another node may still answer.
fn may_be_elsewhere(error: &ClientError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unreachable
            | ErrorKind::DeadlineExceeded
            | ErrorKind::Busy
            | ErrorKind::Protocol
    ) && !matches!(error, ClientError::Refused { status, .. } if *status == millpond_types::wire::Status::Unsupported)
}
