//! Predicts the next bytes to be read of a file from its past reads: a state machine without I/O.
//!
//! Consecutive reads form a *run*. A run of several reads is read ahead. Runs of equal length with
//! equally distant starts form a *stride*, which is read ahead at that distance, forwards or
//! backwards. Several of both are followed at once, so that threads that read the same file at
//! different places do not disturb each other. A read that fits no pattern costs only its entry in
//! a short list.
//!
//! A run's window begins small and doubles with each proof, as in Linux' on-demand read-ahead (F.
//! Wu et al., "On the design of a new Linux readahead framework", OSR 2008). A stride consists of
//! whole runs, regardless of the number of requests in each, as in Lustre (its manual, "Tuning file
//! readahead").

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Span {
    pub(crate) const fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Limits of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Size of the file in bytes.
    pub(crate) size: u64,
    /// Bytes that one pattern may be ahead of its reader.
    pub(crate) window: u64,
    /// Whether runs are read ahead; false where the kernel does it.
    pub(crate) runs: bool,
}

/// Runs that are followed: the readers of one file and a few strays.
const RUNS_MAX: usize = 24;
/// Strides that are followed.
const STRIDES_MAX: usize = 4;
/// Consecutive reads that prove a run; one less after a long run in the same file, and one less at
/// the beginning of a file.
const READS_OF_RUN: u32 = 3;
/// A run of this many bytes shows that the file is read in runs.
const LONG_RUN: u64 = 1 << 20;
/// The first window of a run in bytes, and the smallest piece of a fetch.
const WINDOW_MIN: u64 = 128 << 10;
/// The largest piece in bytes: several chunks, so that several chains work on it.
const PIECE_MAX: u64 = 1 << 20;
/// The disorder of one reader's requests, in elements of a stride.
const ELEMENTS_OF_DISORDER: i64 = 4;
/// Elements of a stride that are fetched ahead.
const ELEMENTS_MAX: i64 = 64;

/// Consecutive reads.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    reads: u32,
    /// Size of the window in bytes, and the end of the planned range.
    window: u64,
    planned: u64,
    used: u64,
}

/// Runs of `len` bytes at equal distances.
#[derive(Clone, Copy, Debug)]
struct Stride {
    base: u64,
    step: i64,
    len: u64,
    /// The last element that was read, and the last one planned.
    at: i64,
    planned: i64,
    /// Number of elements to be ahead.
    depth: i64,
    used: u64,
}

impl Stride {
    /// The number of the element that starts at or contains `offset`.
    fn element(&self, offset: u64) -> Option<i64> {
        let away = i64::try_from(i128::from(offset) - i128::from(self.base)).ok()?;
        let step = self.step.checked_abs()?;
        let inside = away.rem_euclid(step).cast_unsigned() < self.len;
        inside.then_some(away.div_euclid(step).saturating_mul(self.step.signum()))
    }

    fn start(&self, element: i64) -> Option<u64> {
        self.base.checked_add_signed(element.checked_mul(self.step)?)
    }

    /// Plans the elements after the last one that are not planned yet, within the limits.
    fn plan(&mut self, limits: Limits) -> Vec<Span> {
        let fit =
            i64::try_from(limits.window / self.len.max(1)).unwrap_or(1).clamp(1, ELEMENTS_MAX);
        let until = self.at.saturating_add(self.depth.min(fit));
        let mut spans = Vec::new();
        for element in self.planned.max(self.at).saturating_add(1)..=until {
            let Some(offset) = self.start(element).filter(|offset| *offset < limits.size) else {
                break;
            };
            spans.push(Span { offset, len: self.len.min(limits.size - offset) });
            self.planned = element;
        }
        spans
    }
}

/// The recent reads of one file.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    runs: Vec<Run>,
    strides: Vec<Stride>,
    /// Number of reads.
    clock: u64,
    /// A long run was seen.
    in_runs: bool,
}

impl Detector {
    /// Records a read; returns the ranges to fetch now, none of them twice while reads follow the
    /// pattern.
    pub(crate) fn read(&mut self, span: Span, limits: Limits) -> Vec<Span> {
        if span.len == 0 {
            return Vec::new();
        }
        self.clock += 1;
        if let Some(plan) = self.in_stride(span, limits) {
            return plan;
        }
        if let Some(plan) = self.in_run(span, limits) {
            return plan;
        }
        let stride = self.new_stride(span).filter(|stride| stride.len <= limits.window);
        self.note_run(span);
        let Some(mut stride) = stride else { return Vec::new() };
        let plan = stride.plan(limits);
        if self.strides.len() >= STRIDES_MAX {
            remove_oldest(&mut self.strides, |stride| stride.used);
        }
        self.strides.push(stride);
        plan
    }

    /// Forgets the plans, because the fetched bytes were dropped: they are planned again, starting
    /// small. So a file that is written all the time loses little each time.
    pub(crate) fn begin_again(&mut self) {
        for run in &mut self.runs {
            (run.window, run.planned) = (0, 0);
        }
        for stride in &mut self.strides {
            (stride.depth, stride.planned) = (1, stride.at);
        }
    }

    fn in_stride(&mut self, span: Span, limits: Limits) -> Option<Vec<Span>> {
        let clock = self.clock;
        let near = -ELEMENTS_OF_DISORDER..=ELEMENTS_OF_DISORDER;
        self.strides.iter_mut().find_map(|stride| {
            let element = stride.element(span.offset)?;
            if !near.contains(&element.saturating_sub(stride.at)) {
                return None;
            }
            stride.used = clock;
            if element > stride.at {
                stride.at = element;
                stride.depth = (stride.depth * 2).min(ELEMENTS_MAX);
            }
            Some(stride.plan(limits))
        })
    }

    fn in_run(&mut self, span: Span, limits: Limits) -> Option<Vec<Span>> {
        let proof = READS_OF_RUN - u32::from(self.in_runs);
        let clock = self.clock;
        let proven = |run: &Run| run.reads >= proof - u32::from(run.start == 0 && proof > 2);
        let run = self.runs.iter_mut().find(|run| {
            // Requests of the kernel's own read-ahead overtake each other.
            let slack = if proven(run) && run.planned > run.end { run.window / 2 } else { 0 };
            let reach =
                run.end.saturating_sub(slack).max(run.start)..=run.end.saturating_add(slack);
            reach.contains(&span.offset)
        })?;
        run.used = clock;
        run.end = run.end.max(span.end());
        run.reads = run.reads.saturating_add(1);
        let long = run.end - run.start >= LONG_RUN && proven(run);
        let plan =
            if limits.runs && proven(run) { plan_run(run, span.len, limits) } else { Vec::new() };
        self.in_runs |= long;
        Some(plan)
    }

    /// Detects a stride: a run that begins here lies as far from an earlier one as that one from
    /// its predecessor, and so on for three equal steps.
    fn new_stride(&self, span: Span) -> Option<Stride> {
        let find = |start: u64, len: u64, before: u64| {
            let same = |run: &&Run| run.start == start && run.end - run.start == len;
            self.runs.iter().find(same).filter(|run| run.used < before)
        };
        self.runs.iter().find_map(|last| {
            let len = last.end - last.start;
            let step = i64::try_from(i128::from(span.offset) - i128::from(last.start)).ok()?;
            // Forwards without a gap it is a run.
            let apart = step.unsigned_abs() > len || (step < 0 && step.unsigned_abs() == len);
            if !apart || span.len > len {
                return None;
            }
            let back = |start: u64| start.checked_add_signed(step.checked_neg()?);
            let second = find(back(last.start)?, len, last.used)?;
            find(back(second.start)?, len, second.used)?;
            let (base, used) = (span.offset, self.clock);
            Some(Stride { base, step, len, at: 0, planned: 0, depth: 1, used })
        })
    }

    fn note_run(&mut self, span: Span) {
        if self.runs.len() >= RUNS_MAX {
            remove_oldest(&mut self.runs, |run| run.used);
        }
        let (start, end) = (span.offset, span.end());
        self.runs.push(Run { start, end, reads: 1, window: 0, planned: 0, used: self.clock });
    }
}

/// Plans the continuation of a run.
fn plan_run(run: &mut Run, len: u64, limits: Limits) -> Vec<Span> {
    let grown = if run.window == 0 { len.saturating_mul(2) } else { run.window * 2 };
    let target = limits.window.max(1);
    run.planned = run.planned.max(run.end);
    // Planned in halves of the window, not a little with every read.
    if run.window > 0 && run.planned - run.end > run.window / 2 {
        return Vec::new();
    }
    run.window = grown.max(WINDOW_MIN).min(target);
    let until = run.end.saturating_add(run.window).min(limits.size);
    let piece = (run.window / 4).clamp(WINDOW_MIN, PIECE_MAX);
    let mut spans = Vec::new();
    while run.planned < until {
        // Pieces end at chunk boundaries.
        let end = (run.planned / piece + 1).saturating_mul(piece).min(until);
        spans.push(Span { offset: run.planned, len: end - run.planned });
        run.planned = end;
    }
    spans
}

fn remove_oldest<T>(list: &mut Vec<T>, used: impl Fn(&T) -> u64) {
    let oldest = list.iter().enumerate().min_by_key(|(_, item)| used(item));
    if let Some((index, _)) = oldest {
        list.swap_remove(index);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;

    const LIMITS: Limits = Limits { size: 1 << 30, window: 8 << 20, runs: true };

    fn span(offset: u64, len: u64) -> Span {
        Span { offset, len }
    }

    /// Reads in this order; returns total bytes, bytes that were planned before their read, and
    /// planned bytes.
    fn reads(spans: impl IntoIterator<Item = Span>, limits: Limits) -> (u64, u64, u64) {
        let mut detector = Detector::default();
        let mut asked: Vec<Span> = Vec::new();
        let (mut total, mut hits) = (0, 0);
        for read in spans {
            total += read.len;
            let overlap = |planned: &Span| {
                planned.end().min(read.end()).saturating_sub(planned.offset.max(read.offset))
            };
            hits += asked.iter().map(overlap).sum::<u64>();
            asked.extend(detector.read(read, limits));
        }
        (total, hits, asked.iter().map(|span| span.len).sum())
    }

    #[test]
    fn a_run_is_read_ahead_from_its_third_read_on() {
        let mut detector = Detector::default();
        let at = 7 << 20;
        assert!(detector.read(span(at, 4096), LIMITS).is_empty());
        assert!(detector.read(span(at + 4096, 4096), LIMITS).is_empty());
        let plan = detector.read(span(at + 8192, 4096), LIMITS);
        assert_eq!(plan, [span(at + 12_288, (128 << 10) - 12_288), span(at + (128 << 10), 12_288)]);
        assert!(
            detector.read(span(at + 12_288, 4096), LIMITS).is_empty(),
            "it is far enough ahead"
        );
        let off = Limits { runs: false, ..LIMITS };
        let (_, hits, asked) = reads((0..100).map(|n| span(n << 17, 1 << 17)), off);
        assert_eq!((hits, asked), (0, 0), "the kernel does that");
    }

    #[test]
    fn nearly_all_of_a_long_run_was_asked_for_and_nothing_behind_the_end() {
        for len in [4096, 100_000, 1 << 17, 1 << 20] {
            let count = (64 << 20) / len;
            let limits = Limits { size: count * len, ..LIMITS };
            let (total, hits, asked) = reads((0..count).map(|n| span(n * len, len)), limits);
            assert!(hits >= total - 4 * len, "{len}: {hits} of {total}");
            assert_eq!(asked, hits, "{len}: each byte once");
        }
    }

    #[test]
    fn strides_of_reads_and_of_runs_are_found_forwards_and_backwards() {
        for (len, step, parts) in
            [(4096, 1 << 20, 1_u64), (65_536, 65_536 * 3, 4), (4096, -4096, 1)]
        {
            let base = 512_i64 << 20;
            let element = |n: i64| (base + n * step).cast_unsigned();
            let pieces = (0..200).flat_map(|n| {
                (0..parts).map(move |part| span(element(n) + part * len / parts, len / parts))
            });
            let (total, hits, asked) = reads(pieces, LIMITS);
            assert!(hits * 10 >= total * 9, "{len} {step}: {hits} of {total}");
            // Elements that are never read, and the first runs before the stride is detected.
            assert!(asked <= total + 64 * len + 4 * 2 * WINDOW_MIN, "{len} {step}: {asked}");
        }
    }

    #[test]
    fn readers_that_alternate_do_not_disturb_each_other() {
        let readers = 8;
        let spans = (0..200).flat_map(|n| {
            (0..readers).map(move |reader| span((reader << 26) + (n << 16), 1 << 16))
        });
        let (total, hits, _) = reads(spans, LIMITS);
        assert!(hits * 10 >= total * 9, "{hits} of {total}");
    }

    #[test]
    fn tensors_in_any_order_are_each_read_ahead() {
        let tensors = [5, 2, 7, 1, 6, 3, 4, 0];
        let spans = tensors
            .into_iter()
            .flat_map(|tensor| (0..64).map(move |n| span((tensor << 25) + (n << 17), 1 << 17)));
        let (total, hits, _) = reads(spans, LIMITS);
        assert!(hits * 10 >= total * 9, "{hits} of {total}");
    }

    #[test]
    fn what_was_thrown_away_is_asked_for_again_a_little_at_first() {
        let mut detector = Detector::default();
        let mut planned = 0;
        for n in 0..100 {
            planned += detector.read(span(n << 16, 1 << 16), LIMITS).len();
        }
        assert!(planned > 4);
        detector.begin_again();
        let again = detector.read(span(100 << 16, 1 << 16), LIMITS);
        let bytes: u64 = again.iter().map(|span| span.len).sum();
        assert_eq!((again[0].offset, bytes), (101 << 16, WINDOW_MIN));
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_run() {
        let swapped = (0..400_u64).map(|n| span((n ^ 1) << 17, 1 << 17));
        let (total, hits, _) =
            reads((0..4).map(|n| span(n << 17, 1 << 17)).chain(swapped.skip(4)), LIMITS);
        assert!(hits * 10 >= total * 9, "{hits} of {total}");
    }

    proptest! {
        #[test]
        fn random_reads_are_left_alone(offsets in prop::collection::vec(0_u64..1 << 18, 1..2000)) {
            let (total, _, asked) = reads(offsets.into_iter().map(|n| span(n << 12, 4096)), LIMITS);
            assert!(asked <= total / 20 + WINDOW_MIN, "{asked} of {total}");
        }

        #[test]
        fn any_reads_are_planned_within_the_file_and_the_window(
            reads in prop::collection::vec((any::<u64>(), 0_u64..1 << 21, any::<bool>()), 1..300),
            size in any::<u64>(),
            window in 0_u64..1 << 24,
        ) {
            let mut detector = Detector::default();
            let mut at = 0_u64;
            for (offset, len, goes_on) in reads {
                at = if goes_on { at } else { offset };
                let plan = detector.read(span(at, len), Limits { size, window, runs: true });
                assert!(plan.iter().all(|span| span.len > 0 && span.end() <= size));
                let planned: u64 = plan.iter().map(|span| span.len).sum();
                assert!(planned <= window.max(1) || plan.len() == 1, "{planned} of {window}");
                at = at.saturating_add(len);
            }
        }
    }
}
