//! The content of a fake disk: sparse 4 KiB blocks, cheap to clone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SECTOR;

const BLOCK: u64 = super::DISK_BLOCK;
const BLOCK_LEN: usize = 4096;

type Block = Arc<[u8; BLOCK_LEN]>;
type Blocks = BTreeMap<u64, Block>;

/// Which sectors of a write arrive.
#[derive(Clone, Debug)]
pub(super) enum Sectors {
    All,
    /// One flag per sector, from the first.
    Only(Vec<bool>),
}

/// Blocks by number: a shared base, and the changes since.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    base: Arc<Blocks>,
    changed: Blocks,
}

impl Image {
    fn block(&self, number: u64) -> Option<&Block> {
        self.changed.get(&number).or_else(|| self.base.get(&number))
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        for_each_block(offset, into.len(), |number, within, range| match self.block(number) {
            Some(block) => into[range.clone()].copy_from_slice(&block[within..][..range.len()]),
            None => into[range].fill(0),
        });
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8], sectors: &Sectors) {
        for_each_block(offset, bytes.len(), |number, within, range| {
            let old = self.block(number).cloned().unwrap_or_else(|| Arc::new([0; BLOCK_LEN]));
            let block = Arc::make_mut(self.changed.entry(number).or_insert(old));
            match sectors {
                Sectors::All => block[within..][..range.len()].copy_from_slice(&bytes[range]),
                Sectors::Only(arrived) => {
                    for start in range.clone().step_by(SECTOR) {
                        if arrived[start / SECTOR] {
                            let end = (start + SECTOR).min(range.end);
                            let at = within + (start - range.start);
                            block[at..at + (end - start)].copy_from_slice(&bytes[start..end]);
                        }
                    }
                }
            }
        });
    }

    /// Makes the current content the shared base of later clones.
    pub(super) fn settle(&mut self) {
        if !self.changed.is_empty() {
            Arc::make_mut(&mut self.base).append(&mut self.changed);
        }
    }

    pub(super) fn blocks(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.base.keys().chain(self.changed.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| number * BLOCK).collect()
    }
}

/// Splits a range at blocks: number of the block, offset within it, and range of the bytes.
fn for_each_block(
    offset: u64,
    len: usize,
    mut visit: impl FnMut(u64, usize, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = usize::try_from(at % BLOCK).expect("less than a block");
        let count = (BLOCK_LEN - within).min(len - done);
        visit(at / BLOCK, within, done..done + count);
        done += count;
    }
}
