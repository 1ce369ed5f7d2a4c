//! The members of the cluster: one connection each, one of them in use until it fails.
//!
//! One connection per member, not one balanced over all: so the member of each call is known, and a
//! member that hangs (stopped, cut off) is left after one timeout and not met again by every third
//! call.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error as EtcdError, Identity, KvClient, TlsOptions,
};
use millpond_types::limits::STORE_PAGE_BYTES_MAX;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error::{Fate, is_old_login, judge};
use super::{EtcdOptions, Shared};
use crate::StoreError;
use crate::backend::BoxFuture;

/// Bytes accepted as one answer: a page, and its framing. A larger page is requested in halves.
const ANSWER_BYTES_MAX: usize = 2 * STORE_PAGE_BYTES_MAX;
/// Times a read is tried at each member before it is reported.
const ROUNDS: usize = 2;

pub(crate) struct Members {
    all: Vec<Member>,
    /// Index of the one in use.
    current: AtomicUsize,
    connect: ConnectOptions,
    timeout: Duration,
}

struct Member {
    endpoint: String,
    client: Mutex<Option<Client>>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|member| &member.endpoint)).finish()
    }
}

impl Members {
    pub(crate) fn new(options: &EtcdOptions) -> Self {
        // A member without a leader refuses at once instead of letting the call wait.
        let mut connect = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true)
            .with_connect_timeout(options.timeout);
        if let Some((name, password)) = &options.user {
            connect = connect.with_user(name, password);
        }
        if let Some(tls) = &options.tls {
            let mut config = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            if let Some(domain) = &tls.domain {
                config = config.domain_name(domain);
            }
            connect = connect.with_tls(config);
        }
        let member =
            |endpoint: &String| Member { endpoint: endpoint.clone(), client: Mutex::new(None) };
        let all = options.endpoints.iter().map(member).collect();
        Self { all, current: AtomicUsize::new(0), connect, timeout: options.timeout }
    }

    /// The member in use and a client of it.
    pub(crate) async fn client(&self) -> Result<(usize, Client), Failed> {
        let index = self.current.load(Ordering::Relaxed) % self.all.len();
        let member = &self.all[index];
        let connecting = async {
            let mut client = member.client.lock().await;
            if let Some(client) = &*client {
                return Ok(client.clone());
            }
            let connect = Some(self.connect.clone());
            let new = Client::connect([&member.endpoint], connect).await?;
            *client = Some(new.clone());
            Ok(new)
        };
        match timeout(self.timeout, connecting).await {
            Ok(Ok(client)) => Ok((index, client)),
            // Connecting logs in at most, so the caller's request cannot have been done.
            Ok(Err(error)) => Err(Failed { member: index, fate: undone(judge(error)) }),
            Err(_) => Err(Failed { member: index, fate: Fate::NotDone(no_answer()) }),
        }
    }

    /// Leaves a member that failed, unless another call has left it already.
    pub(crate) fn leave(&self, member: usize) {
        let next = (member + 1) % self.all.len();
        let _ = self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn tries(&self) -> usize {
        ROUNDS * self.all.len()
    }
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failed {
    member: usize,
    pub(crate) fate: Fate,
}

impl Failed {
    pub(crate) fn member(&self) -> usize {
        self.member
    }
}

fn undone(fate: Fate) -> Fate {
    match fate {
        Fate::Open(error) => Fate::NotDone(error),
        other => other,
    }
}

fn no_answer() -> EtcdError {
    EtcdError::IoError(std::io::ErrorKind::TimedOut.into())
}

/// A call, created again for each try.
pub(crate) type Call<'a, T> =
    dyn FnMut(KvClient) -> BoxFuture<'static, Result<T, EtcdError>> + Send + 'a;

impl Shared {
    /// Makes a call that changes nothing, at one member after the other until one answers.
    pub(crate) async fn read<T>(&self, call: &mut Call<'_, T>) -> Result<T, StoreError> {
        let mut tries = self.members.tries();
        loop {
            tries -= 1;
            let failed = match self.call(call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            match failed.fate {
                Fate::Refused(error) => return Err(error),
                Fate::NotDone(error) | Fate::Open(error) if tries == 0 => {
                    return Err(StoreError::Unavailable(Box::new(error)));
                }
                Fate::NotDone(_) | Fate::Open(_) => self.members.leave(failed.member),
            }
        }
    }

    /// Makes a call that changes something: repeats it only when it was certainly not done.
    pub(crate) async fn write<T>(&self, call: &mut Call<'_, T>) -> Result<T, StoreError> {
        let mut tries = self.members.tries();
        loop {
            tries -= 1;
            let failed = match self.call(call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if !matches!(failed.fate, Fate::Refused(_)) {
                self.members.leave(failed.member);
            }
            match failed.fate {
                Fate::Refused(error) => return Err(error),
                Fate::Open(error) => return Err(StoreError::Unknown(Box::new(error))),
                Fate::NotDone(error) if tries == 0 => {
                    return Err(StoreError::Unavailable(Box::new(error)));
                }
                Fate::NotDone(_) => {}
            }
        }
    }

    async fn call<T>(&self, call: &mut Call<'_, T>) -> Result<T, Failed> {
        let (member, client) = self.members.client().await?;
        let kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
        match timeout(self.timeout, call(kv)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if is_old_login(&error) {
                    self.members.all[member].client.lock().await.take();
                }
                Err(Failed { member, fate: judge(error) })
            }
            Err(_) => Err(Failed { member, fate: Fate::Open(no_answer()) }),
        }
    }
}
