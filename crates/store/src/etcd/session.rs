//! One transaction on etcd: reads at one revision, and the revisions for later comparisons.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{
    Error as EtcdError, GetOptions, GetResponse, KeyValue, ResponseHeader, SortOrder, SortTarget,
    Txn, TxnOp, TxnOpResponse,
};

use super::Shared;
use super::error::is_too_large;
use crate::backend::{BoxFuture, Commit, RangeRead, RawPage, Session};
use crate::{StoreError, Version};

/// Reads in one request: etcd's bound on operations.
const READS_MAX: usize = 128;

pub(crate) struct EtcdSession {
    pub(crate) shared: Arc<Shared>,
    /// The revision that all reads see; that of the first answer.
    pub(crate) revision: Option<i64>,
    /// Modification revisions of keys that were read; 0 for absent ones.
    pub(crate) seen: HashMap<Vec<u8>, i64>,
}

impl EtcdSession {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, revision: None, seen: HashMap::new() }
    }

    fn options(&self) -> GetOptions {
        match self.revision {
            Some(revision) => GetOptions::new().with_revision(revision),
            None => GetOptions::new(),
        }
    }

    /// Pins the revision of the transaction at its first answer.
    fn pin(&mut self, header: Option<&ResponseHeader>) -> Result<(), StoreError> {
        let revision = header.map(ResponseHeader::revision).filter(|revision| *revision > 0);
        let revision = revision
            .ok_or_else(|| StoreError::Damaged("etcd answered without a revision".into()))?;
        self.revision.get_or_insert(revision);
        Ok(())
    }

    async fn read_one(&mut self, key: Vec<u8>) -> Result<Option<KeyValue>, StoreError> {
        let options = self.options();
        let mut answer = self
            .shared
            .read(&mut |mut kv| {
                let (key, options) = (key.clone(), options.clone());
                Box::pin(async move { kv.get(key, Some(options)).await })
            })
            .await?;
        self.pin(answer.header())?;
        Ok(answer.take_kvs().pop())
    }

    /// Reads several keys by one request: an etcd transaction without comparisons reads at one
    /// revision.
    async fn read_many(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        let options = self.options();
        let layout = &self.shared.layout;
        let gets: Vec<TxnOp> =
            keys.iter().map(|key| TxnOp::get(layout.data(key), Some(options.clone()))).collect();
        let txn = Txn::new().and_then(gets);
        let answer = self
            .shared
            .read(&mut |mut kv| {
                let txn = txn.clone();
                Box::pin(async move { kv.txn(txn).await })
            })
            .await?;
        self.pin(answer.header())?;
        let found: Vec<_> = answer
            .op_responses()
            .into_iter()
            .map(|answer| match answer {
                TxnOpResponse::Get(mut found) => Ok(found.take_kvs().pop()),
                _ => Err(StoreError::Damaged("etcd sent an unexpected answer to a read".into())),
            })
            .collect::<Result<_, _>>()?;
        if found.len() == keys.len() {
            return Ok(found);
        }
        Err(StoreError::Damaged("etcd sent a wrong number of reads".into()))
    }

    async fn read_keys(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READS_MAX) {
            let found = match keys {
                [key] => vec![self.read_one(self.shared.layout.data(key)).await?],
                keys => self.read_many(keys).await?,
            };
            for (key, found) in std::iter::zip(keys, found) {
                let revision = found.as_ref().map_or(0, KeyValue::mod_revision);
                self.seen.insert(key.clone(), revision);
                values.push(found.map(|found| found.into_key_value().1));
            }
        }
        Ok(values)
    }

    async fn read_page(&mut self, read: &RangeRead) -> Result<RawPage, StoreError> {
        let layout = &self.shared.layout;
        let (start, end) = (layout.data(&read.range.start), layout.data(&read.range.end));
        let mut options = self.options().with_range(end);
        if read.reverse {
            options = options.with_sort(SortTarget::Key, SortOrder::Descend);
        }
        let mut answer = self.read_some(start, options, read.limit).await?;
        self.pin(answer.header())?;
        let more = answer.more();
        let entries = answer
            .take_kvs()
            .into_iter()
            .map(|found| {
                let (key, value) = found.into_key_value();
                Ok((self.shared.layout.strip(&key)?.to_vec(), value))
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        if more && entries.is_empty() {
            return Err(StoreError::Damaged(
                "etcd sent an empty page although more follows".into(),
            ));
        }
        Ok(RawPage { entries, more })
    }

    /// Reads a page; a shorter one when that many values are too large for one answer.
    async fn read_some(
        &self,
        start: Vec<u8>,
        options: GetOptions,
        mut limit: usize,
    ) -> Result<GetResponse, StoreError> {
        loop {
            let asked = i64::try_from(limit).unwrap_or(i64::MAX);
            let answer = self
                .shared
                .read(&mut |mut kv| {
                    let (start, options) = (start.clone(), options.clone().with_limit(asked));
                    Box::pin(async move {
                        match kv.get(start, Some(options)).await {
                            Ok(answer) => Ok(Some(answer)),
                            Err(error) if is_too_large(&error) => Ok(None),
                            Err(error) => Err::<_, EtcdError>(error),
                        }
                    })
                })
                .await?;
            match answer {
                Some(answer) => return Ok(answer),
                None if limit == 1 => {
                    return Err(StoreError::Damaged(
                        "etcd holds a value over the limit of Millpond".into(),
                    ));
                }
                None => limit /= 2,
            }
        }
    }

    pub(crate) async fn revision(&mut self) -> Result<i64, StoreError> {
        if let Some(revision) = self.revision {
            return Ok(revision);
        }
        let guard = self.shared.layout.guard.clone();
        self.read_one(guard).await?;
        self.revision.ok_or_else(|| StoreError::Damaged("etcd answered without a revision".into()))
    }
}

impl Session for EtcdSession {
    fn version(&mut self) -> BoxFuture<'_, Result<Version, StoreError>> {
        Box::pin(async { self.revision().await.map(version_of) })
    }

    fn get<'a>(
        &'a mut self,
        keys: &'a [Vec<u8>],
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, StoreError>> {
        Box::pin(self.read_keys(keys))
    }

    fn range<'a>(&'a mut self, read: &'a RangeRead) -> BoxFuture<'a, Result<RawPage, StoreError>> {
        Box::pin(self.read_page(read))
    }

    fn commit(self: Box<Self>, commit: Commit) -> BoxFuture<'static, Result<Version, StoreError>> {
        Box::pin(self.commit_writes(commit))
    }
}

pub(crate) fn version_of(revision: i64) -> Version {
    Version(u64::try_from(revision).unwrap_or(0))
}
