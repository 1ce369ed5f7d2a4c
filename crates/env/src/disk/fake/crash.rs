//! The crashes that a history allows.

use super::image::{Image, Sectors};
use super::{FakeDisk, Record, SECTOR};
use crate::rng::Rng;

/// Iterates over the disks a crash may leave. Made by [`FakeDisk::crash_images`].
#[derive(Debug)]
pub struct CrashImages {
    capacity: u64,
    history: Vec<Record>,
    rng: Rng,
    /// The content that is certain at the current prefix.
    certain: Image,
    /// Records before the crash.
    prefix: usize,
    /// Distance to the next prefix that is examined.
    stride: usize,
    /// Images per prefix.
    share: usize,
    /// Images made of the current prefix.
    made: usize,
    left: usize,
    /// Writes of the current prefix that may be lost, in order.
    uncertain: Vec<usize>,
}

impl CrashImages {
    pub(super) fn new(
        capacity: u64,
        origin: Image,
        history: Vec<Record>,
        limit: usize,
        rng: Rng,
    ) -> Self {
        let prefixes = history.len() + 1;
        let mut certain = origin;
        certain.settle();
        Self {
            capacity,
            history,
            rng,
            certain,
            prefix: 0,
            stride: prefixes.div_ceil(limit.max(1)),
            share: (limit / prefixes).max(1),
            made: 0,
            left: limit,
            uncertain: Vec::new(),
        }
    }

    /// Most images made of this prefix.
    fn share(&self) -> usize {
        if self.uncertain.is_empty() { 1 } else { self.share }
    }

    /// Moves the crash one record later.
    fn advance(&mut self) {
        match &self.history[self.prefix] {
            Record::Write { .. } => self.uncertain.push(self.prefix),
            Record::Sync { started } => {
                let covered = |index: &usize| {
                    let Record::Write { returned, .. } = &self.history[*index] else {
                        return false;
                    };
                    returned.is_some_and(|returned| returned < *started)
                };
                // Applied in order; an uncovered older write to the same place may still be applied
                // on top later, as a disk may do with concurrent writes.
                let (certain, rest): (Vec<usize>, Vec<usize>) =
                    self.uncertain.iter().copied().partition(|index| covered(index));
                for index in certain {
                    apply(&mut self.certain, &self.history[index], &Sectors::All);
                }
                self.certain.settle();
                self.uncertain = rest;
            }
        }
        self.prefix += 1;
    }

    /// The next choice among the uncertain writes.
    fn image(&mut self) -> Image {
        let mut image = self.certain.clone();
        let count = self.uncertain.len();
        // All first, then none, then the other subsets by number while they fit the share.
        let subsets = 1usize.checked_shl(u32::try_from(count).unwrap_or(u32::MAX)).unwrap_or(0);
        let numbered = subsets > 0 && subsets <= self.share.max(2);
        let mask = match self.made {
            0 => Some(usize::MAX),
            1 => Some(0),
            made if numbered && made < subsets => Some(made - 1),
            _ => None,
        };
        for position in 0..count {
            let record = &self.history[self.uncertain[position]];
            let Record::Write { bytes, .. } = record else { continue };
            let sectors = match mask {
                Some(usize::MAX) => Sectors::All,
                Some(mask) if mask >> position & 1 == 1 => Sectors::All,
                Some(_) => continue,
                None => match draw(&mut self.rng, bytes.len()) {
                    Some(sectors) => sectors,
                    None => continue,
                },
            };
            apply(&mut image, record, &sectors);
        }
        image
    }
}

/// Sectors of a write that survive a drawn crash; `None` when all are lost.
fn draw(rng: &mut Rng, len: usize) -> Option<Sectors> {
    let count = len.div_ceil(SECTOR);
    match rng.below(4) {
        0 => None,
        1 => Some(Sectors::All),
        2 => {
            let end = rng.index(count + 1);
            Some(Sectors::Only((0..count).map(|index| index < end).collect()))
        }
        _ => Some(Sectors::Only((0..count).map(|_| rng.chance(1, 2)).collect())),
    }
}

fn apply(image: &mut Image, record: &Record, sectors: &Sectors) {
    if let Record::Write { offset, bytes, .. } = record {
        image.write(*offset, bytes, sectors);
    }
}

impl Iterator for CrashImages {
    type Item = FakeDisk;

    fn next(&mut self) -> Option<FakeDisk> {
        if self.left == 0 {
            return None;
        }
        if self.made >= self.share() {
            for _ in 0..self.stride {
                if self.prefix == self.history.len() {
                    self.left = 0;
                    return None;
                }
                self.advance();
            }
            self.made = 0;
        }
        self.left -= 1;
        let image = self.image();
        self.made += 1;
        Some(FakeDisk::with_image(self.capacity, image, self.prefix))
    }
}
