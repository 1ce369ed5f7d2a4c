//! Objects sent to a backend in parts.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use millpond_types::meta::object::PARTS_MAX;

use super::job::{Job, Not, Opened};
use super::source;
use super::store::{At, Fault, Told};
use crate::record::Parts;

/// The longest object sent in one request, as in AWS.
const WHOLE_MAX: u64 = 5 << 30;
/// Part size of a larger object without known parts: [`PARTS_MAX`] of them are 640 GiB; larger
/// objects have larger parts.
const PART: u64 = 64 << 20;
/// Parts of one object sent in parallel, as far as the window allows.
const SIDE_BY_SIDE: usize = 4;

/// How an object is sent.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// In one request.
    Whole,
    /// In these parts: offsets and lengths.
    Parts(Vec<(u64, u64)>),
}

impl Plan {
    /// The parts with which the client sent it, so that its `ETag` stays the same; one request if
    /// they are unknown.
    pub(super) fn of(len: u64, parts: Option<&Parts>) -> Self {
        if let Some(parts) = parts.filter(|it| it.are_known()) {
            let ranges: Vec<_> = (1..=parts.count).map_while(|n| parts.place(n)).collect();
            if !ranges.is_empty() && ranges.iter().map(|it| it.1).sum::<u64>() == len {
                return Self::Parts(ranges);
            }
        }
        if len <= WHOLE_MAX {
            return Self::Whole;
        }
        let part = PART.max(len.div_ceil(PARTS_MAX.into()).next_multiple_of(1 << 20));
        let offsets = (0..len.div_ceil(part)).map(|n| n * part);
        Self::Parts(offsets.map(|offset| (offset, part.min(len - offset))).collect())
    }
}

/// Aborts all uploads of the key.
pub(super) async fn abort_all(job: &Job, at: At<'_>) -> Result<(), Fault> {
    let permit = job.connected.pace.permit(job.lane).await;
    let found = job.backend().uploads(at).await;
    permit.ended(&found);
    for upload in found? {
        let permit = job.connected.pace.permit(job.lane).await;
        let done = job.backend().abort_upload(at, &upload).await;
        permit.ended(&done);
        done?;
    }
    Ok(())
}

/// Sends a file in parts. Only the last request can have an unknown outcome: without it there is no
/// object.
pub(super) async fn send(
    job: &Job,
    at: At<'_>,
    (told, opened, ranges): (&Told, &Opened, &[(u64, u64)]),
) -> Result<String, Not> {
    if !job.is_shared() {
        abort_all(job, at).await.map_err(Not::Begun)?;
    }
    let permit = job.connected.pace.permit(job.lane).await;
    let upload = job.backend().create_upload(at, told).await;
    permit.ended(&upload);
    let upload = upload.map_err(Not::Begun)?;
    let parts = parts(job, at, (&upload, opened, ranges)).await;
    let parts = match parts {
        Ok(parts) => parts,
        Err(not) => {
            // If the abort fails too, the next attempt repeats it.
            let _ = job.backend().abort_upload(at, &upload).await;
            return Err(not);
        }
    };
    let permit = job.connected.pace.permit(job.lane).await;
    let done = job.backend().complete_upload(at, &upload, (&parts, opened.attr.size)).await;
    permit.ended(&done);
    done.map_err(Not::Done)
}

async fn part(
    job: &Job,
    at: At<'_>,
    part: (&str, u32),
    (opened, range): (&Opened, (u64, u64)),
) -> Result<String, Not> {
    let _memory = source::memory(&job.bucket.door.behind, job.lane, range.1).await;
    let permit = job.connected.pace.permit(job.lane).await;
    let content = source::pieces(&job.bucket.door, opened.file.clone(), range);
    let done = job.backend().upload_part(at, part, content).await;
    permit.ended(&done);
    done.map_err(Not::Begun)
}

async fn parts(
    job: &Job,
    at: At<'_>,
    (upload, opened, ranges): (&str, &Opened, &[(u64, u64)]),
) -> Result<Vec<String>, Not> {
    let sent = (1..).zip(ranges.iter().copied());
    let sent = sent.map(|(number, range)| part(job, at, (upload, number), (opened, range)));
    let etags = stream::iter(sent).buffered(SIDE_BY_SIDE).try_collect().await?;
    // Checked before the object exists.
    job.unchanged(opened).await?;
    Ok(etags)
}

#[cfg(test)]
mod tests {
    use super::{PART, PARTS_MAX, Parts, Plan, WHOLE_MAX};

    #[test]
    fn parts_are_those_that_it_came_with() {
        let parts = Parts::of([5 << 20, 5 << 20, 3].into_iter());
        let len = (10 << 20) + 3;
        let ranges = vec![(0, 5 << 20), (5 << 20, 5 << 20), (10 << 20, 3)];
        assert_eq!(Plan::of(len, Some(&parts)), Plan::Parts(ranges));
        assert_eq!(Plan::of(len, None), Plan::Whole);
        assert_eq!(Plan::of(len + 1, Some(&parts)), Plan::Whole);
        let unknown = Parts::of((0..2_000).map(|n| (5 << 20) + n % 2));
        assert_eq!(
            Plan::of(2_000 * (5 << 20) + 1_000, Some(&unknown)),
            Plan::Parts(
                (0..157)
                    .map(|n| (n * PART, PART.min(2_000 * (5 << 20) + 1_000 - n * PART)))
                    .collect()
            )
        );
    }

    #[test]
    fn what_is_too_long_for_one_request_goes_in_parts_that_cover_it() {
        for len in [WHOLE_MAX + 1, 700 << 30, u64::from(PARTS_MAX) * (5 << 30)] {
            let Plan::Parts(ranges) = Plan::of(len, None) else { panic!("{len}") };
            assert!(ranges.len() <= PARTS_MAX.into());
            assert_eq!(ranges.iter().map(|it| it.1).sum::<u64>(), len);
            assert!(ranges.windows(2).all(|it| it[0].0 + it[0].1 == it[1].0));
        }
    }
}
