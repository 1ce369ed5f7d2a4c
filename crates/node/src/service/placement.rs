//! Which disk of this node holds a slot: weighted rendezvous hashing, worked out once at start.

use millpond_types::limits::SLOTS;
use millpond_types::{SlotId, Uuid128};
use xxhash_rust::xxh3::xxh3_64;

/// Slot → index of the disk.
#[derive(Debug)]
pub struct Placement {
    disk_of_slot: Box<[u8]>,
}

impl Placement {
    /// Spreads the slots over disks of the given identities and capacities in bytes. Adding or
    /// removing a disk moves only the slots that must move. A server without disks has nothing to place.
    ///
    /// # Panics
    /// With more than 256 disks, which the configuration rules out.
    #[must_use]
    pub fn new(disks: &[(Uuid128, u64)]) -> Self {
        assert!(disks.len() <= 256, "a node has at most 256 disks");
        let disk_of_slot = (0..SLOTS)
            .map(|slot| {
                let best = disks
                    .iter()
                    .enumerate()
                    .map(|(index, disk)| (index, score(slot, disk)))
                    .max_by(|(_, a), (_, b)| a.total_cmp(b))
                    .map_or(0, |(index, _)| index);
                u8::try_from(best).unwrap_or(0)
            })
            .collect();
        Self { disk_of_slot }
    }

    /// The disk of `slot`.
    #[must_use]
    pub fn disk(&self, slot: SlotId) -> usize {
        usize::from(self.disk_of_slot[usize::from(slot.0)])
    }
}

/// Logarithmic rendezvous score (Schindelhauer and Schomaker, "Weighted distributed hash tables",
/// 2005): the largest wins with a probability in proportion to the capacity.
#[expect(clippy::cast_precision_loss, reason = "weights need no more than 52 bits")]
fn score(slot: usize, (uuid, capacity): &(Uuid128, u64)) -> f64 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&uuid.0);
    bytes[16..].copy_from_slice(&(slot as u64).to_le_bytes());
    let uniform = ((xxh3_64(&bytes) >> 12) as f64 + 1.0) / ((1u64 << 52) as f64 + 1.0);
    (*capacity as f64) / -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(capacities: &[u64]) -> Vec<(Uuid128, u64)> {
        let id = |i: usize| Uuid128([u8::try_from(i + 1).unwrap(); 16]);
        capacities.iter().enumerate().map(|(i, c)| (id(i), *c)).collect()
    }

    fn share(placement: &Placement, disk: usize) -> f64 {
        let slots = (0..=u16::MAX).filter(|s| placement.disk(SlotId(*s)) == disk).count();
        f64::from(u32::try_from(slots).unwrap()) / 65_536.0
    }

    #[test]
    fn slots_follow_the_capacities() {
        let placement = Placement::new(&disks(&[1 << 30, 3 << 30]));
        assert!((share(&placement, 1) - 0.75).abs() < 0.01);
    }

    #[test]
    fn a_new_disk_only_takes() {
        let before = Placement::new(&disks(&[1, 1]));
        let after = Placement::new(&disks(&[1, 1, 1]));
        for slot in 0..=u16::MAX {
            let (old, new) = (before.disk(SlotId(slot)), after.disk(SlotId(slot)));
            assert!(new == old || new == 2);
        }
        assert!((share(&after, 2) - 1.0 / 3.0).abs() < 0.01);
    }
}
