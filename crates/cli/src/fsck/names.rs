//! The names half of a check: the rules of the namespace, over records that metas hand out.

use std::collections::BTreeSet;

use anyhow::bail;
use indicatif::ProgressBar;
use millpond_meta::{Records, VolumeError, check as check_names};
use millpond_store::{KeyRange, Page, StoreError};
use millpond_types::meta::{MetaError, MetaOp, MetaReply, RecordRange, Repair};

use super::super::metas::Metas;
use super::{Args, Report, spinner};

/// Inodes of a batch: some 64 MiB.
const INODES_AT_ONCE: usize = 1 << 20;

/// Records by way of the metas: each page from whichever answers.
pub(super) struct Remote<'a> {
    pub(super) metas: &'a Metas,
    pub(super) progress: &'a ProgressBar,
}

fn away(error: anyhow::Error) -> VolumeError {
    VolumeError::Store(StoreError::Unavailable(error.into()))
}

impl Remote<'_> {
    pub(super) fn page_now(&self, range: KeyRange, values: bool) -> anyhow::Result<Page> {
        let KeyRange { start, end } = range;
        let wanted = RecordRange { start, end: end.clone(), values };
        let MetaReply::Records(page) = self.metas.ask_as_me(MetaOp::Records(wanted))? else {
            bail!("unexpected answer from a meta: is it of another version?");
        };
        self.progress.inc(page.entries.len() as u64);
        let rest = page.next.map(|start| KeyRange { start, end });
        Ok(Page { entries: page.entries, rest })
    }

    pub(super) fn at_once_now(&self, keys: Vec<Vec<u8>>) -> anyhow::Result<Vec<Option<Vec<u8>>>> {
        let n = keys.len();
        match self.metas.ask_as_me(MetaOp::RecordsAt { keys })? {
            MetaReply::Values(values) if values.len() == n => Ok(values),
            _ => bail!("unexpected answer from a meta: is it of another version?"),
        }
    }
}

impl Records for Remote<'_> {
    async fn page(&self, range: KeyRange, values: bool) -> Result<Page, VolumeError> {
        self.page_now(range, values).map_err(away)
    }

    async fn at_once(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>, VolumeError> {
        self.at_once_now(keys).map_err(away)
    }
}

/// Checks; with repairs again and again, until there is nothing more that helps.
pub(super) fn check(metas: &Metas, args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let progress = spinner("names, records read")?;
    let records = Remote { metas, progress: &progress };
    let (mut told, mut refused) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let found = runtime.block_on(check_names(&records, INODES_AT_ONCE))?;
        (report.inodes, report.names, report.bytes) = (found.inodes, found.entries, found.bytes);
        let new = found.findings.iter().map(ToString::to_string);
        report.findings.extend(new.filter(|text| told.insert(text.clone())));
        (report.more, report.unjudged) = (found.more, found.unjudged);
        report.left = found.findings.len() as u64 + found.more;
        if !args.repair || found.repairs.is_empty() {
            break;
        }
        let mut done = 0;
        for repair in found.repairs {
            match put_right(metas, &repair)? {
                Ok(repaired) => done += u64::from(repaired),
                Err(error) => drop(refused.insert(format!("{repair:?}: {error}"))),
            }
            progress.set_message(format!("{done} repairs"));
        }
        report.repaired += done;
        if done == 0 {
            break;
        }
    }
    report.notes.extend(refused);
    progress.finish_and_clear();
    Ok(())
}

/// Whether there was something to put right, or why it cannot be.
fn put_right(metas: &Metas, repair: &Repair) -> anyhow::Result<Result<bool, MetaError>> {
    match metas.ask_as_me(MetaOp::Repair(repair.clone())) {
        Ok(MetaReply::Repaired(done)) => Ok(Ok(done)),
        Ok(_) => bail!("unexpected answer from a meta: is it of another version?"),
        Err(error) => match error.downcast::<MetaError>() {
            Ok(refused) => Ok(Err(refused)),
            Err(error) => Err(error),
        },
    }
}
