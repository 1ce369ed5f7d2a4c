//! The store on an etcd cluster.
//!
//! A transaction reads at one revision and commits by one etcd transaction with comparisons that
//! prove that nothing it read has changed. `docs/store.md` has the scheme; in short, with `R` the
//! revision of the reads:
//!
//! - a key that was read: its modification revision is the one seen (0 when absent);
//! - a range: every key in it was modified at or before `R`. This sees inserts and updates, not
//!   deletes. So every delete also writes a *marker*, a key of the same name in a separate space,
//!   and the same comparison over the markers of the range sees them;
//! - markers are collected all at once by a transaction that also writes the *guard*. A transaction
//!   that read a range also compares the guard with `R`: a reader that could miss a collected
//!   marker conflicts.

mod commit;
mod error;
mod members;
mod session;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use millpond_env::Rng;
use parking_lot::Mutex;

use crate::backend::{Backend, BoxFuture, ChangeStream, Session};
use crate::{KeyRange, StoreError, Version};
use members::Members;
use session::EtcdSession;
use watch::EtcdWatch;

/// Certificates for a cluster with TLS. All in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// Certificates of the authority that signed the members'.
    pub ca: String,
    /// Our certificate and its key, when the members ask for one.
    pub identity: Option<(String, String)>,
    /// The name in the members' certificates, when it is not the host of the endpoint.
    pub domain: Option<String>,
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// How to reach an etcd cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// Members as URLs (`http://10.0.0.1:2379`). Host names are resolved again for every new
    /// connection, and a name with several addresses is fine.
    pub endpoints: Vec<String>,
    /// The prefix of all keys of this store. Stores with different prefixes share a cluster when no
    /// prefix starts with another.
    pub prefix: String,
    /// User and password.
    pub user: Option<(String, String)>,
    /// Certificates.
    pub tls: Option<EtcdTls>,
    /// Time without an answer after which another member is asked. Longer than a commit ever takes
    /// on the members' disks, shorter than the manager's lease (5 s).
    pub timeout: Duration,
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl EtcdOptions {
    /// The defaults: no credentials, prefix `millpond/`, 2 s.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        let (prefix, timeout) = ("millpond/".to_owned(), Duration::from_secs(2));
        Self { endpoints, prefix, user: None, tls: None, timeout }
    }

    /// Refuses settings that cannot work.
    ///
    /// # Errors
    /// `Config`.
    pub fn validate(&self) -> Result<(), StoreError> {
        let wrong = |field, fix: &str| Err(StoreError::Config { field, fix: fix.to_owned() });
        if self.endpoints.is_empty() {
            return wrong("store.endpoints", "give at least one member of the etcd cluster");
        }
        let scheme = if self.tls.is_some() { "https://" } else { "http://" };
        if !self.endpoints.iter().all(|endpoint| endpoint.starts_with(scheme)) {
            let fix = "use https://host:port for all members with certificates, and \
                       http://host:port without";
            return wrong("store.endpoints", fix);
        }
        if self.prefix.is_empty() || self.prefix.len() > 128 {
            return wrong("store.prefix", "write 1 to 128 bytes");
        }
        if self.timeout < Duration::from_millis(100) {
            return wrong("store.timeout", "allow at least 100 ms");
        }
        Ok(())
    }
}

/// Key spaces in etcd.
#[derive(Debug)]
pub(crate) struct Layout {
    data: Vec<u8>,
    marker: Vec<u8>,
    guard: Vec<u8>,
}

impl Layout {
    fn new(prefix: &str) -> Self {
        let part = |name: u8| [prefix.as_bytes(), &[name]].concat();
        Self { data: part(b'd'), marker: part(b'm'), guard: part(b'g') }
    }

    pub(crate) fn data(&self, key: &[u8]) -> Vec<u8> {
        [&self.data, key].concat()
    }

    pub(crate) fn marker(&self, key: &[u8]) -> Vec<u8> {
        [&self.marker, key].concat()
    }

    /// The user's name of a key in the data space.
    pub(crate) fn strip<'a>(&self, key: &'a [u8]) -> Result<&'a [u8], StoreError> {
        key.strip_prefix(self.data.as_slice()).ok_or_else(|| {
            StoreError::Damaged("etcd answered with a key outside our prefix".into())
        })
    }
}

pub(crate) struct Shared {
    members: Members,
    layout: Layout,
    timeout: Duration,
    /// Markers written since the last collection that this client knows of.
    markers: AtomicU64,
    rng: Mutex<Rng>,
}

impl Shared {
    async fn pause(&self, at_most: Duration) {
        let most = u64::try_from(at_most.as_micros()).unwrap_or(u64::MAX).max(1);
        let micros = self.rng.lock().below(most);
        tokio::time::sleep(Duration::from_micros(micros)).await;
    }
}

/// The etcd engine. Clones share its connections.
#[derive(Clone)]
pub struct EtcdBackend(Arc<Shared>);

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend").field("members", &self.0.members).finish_non_exhaustive()
    }
}

impl EtcdBackend {
    /// Prepares the connections; none is made before the first transaction. Must be used inside
    /// a tokio runtime.
    ///
    /// # Errors
    /// `Config`.
    pub fn new(options: &EtcdOptions) -> Result<Self, StoreError> {
        options.validate()?;
        let rng = Rng::from_os().map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        Ok(Self(Arc::new(Shared {
            members: Members::new(options),
            layout: Layout::new(&options.prefix),
            timeout: options.timeout,
            markers: AtomicU64::new(0),
            rng: Mutex::new(rng),
        })))
    }
}

impl Backend for EtcdBackend {
    fn begin(&self) -> Box<dyn Session> {
        Box::new(EtcdSession::new(Arc::clone(&self.0)))
    }

    fn watch(
        &self,
        range: KeyRange,
        after: Version,
    ) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, StoreError>> {
        let watch: Box<dyn ChangeStream> =
            Box::new(EtcdWatch::new(Arc::clone(&self.0), range, after));
        Box::pin(std::future::ready(Ok(watch)))
    }

    fn pause(&self, at_most: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.0.pause(at_most))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{EtcdOptions, EtcdTls};

    #[test]
    fn settings_that_cannot_work_are_refused_by_name() {
        let good = EtcdOptions::new(vec!["http://a:1".into()]);
        good.validate().unwrap();
        let tls = EtcdTls { ca: String::new(), identity: None, domain: None };
        for (bad, field) in [
            (EtcdOptions::new(vec![]), "store.endpoints"),
            (EtcdOptions { tls: Some(tls), ..good.clone() }, "store.endpoints"),
            (EtcdOptions { endpoints: vec!["a:1".into()], ..good.clone() }, "store.endpoints"),
            (EtcdOptions { prefix: String::new(), ..good.clone() }, "store.prefix"),
            (EtcdOptions { timeout: Duration::ZERO, ..good.clone() }, "store.timeout"),
        ] {
            assert!(bad.validate().unwrap_err().to_string().starts_with(field));
        }
    }

    #[test]
    fn passwords_are_not_printed() {
        let user = Some(("root".to_owned(), "hunter2".to_owned()));
        let options = EtcdOptions { user, ..EtcdOptions::new(vec![]) };
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
