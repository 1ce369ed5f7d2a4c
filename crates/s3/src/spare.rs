//! Reusable buffers of bodies: the system need not clear memory for each body.

use parking_lot::Mutex;

/// Shorter buffers are allocated each time; there are no longer ones.
const SHORTEST: usize = 256 << 10;
const LONGEST: usize = 4 << 20;
/// Bytes kept at most.
const BYTES_MAX: usize = 32 << 20;

/// Buffers of one, two, four times the shortest length, and so on.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// The capacity of a buffer for `len` bytes.
pub(crate) const fn room(len: usize) -> usize {
    if len < SHORTEST || len > LONGEST { len } else { len.next_power_of_two() }
}

impl Spare {
    /// A buffer with a capacity for `len` bytes. Content and length are left over from its last
    /// use.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let room = room(len);
        let mut waiting = self.0.lock();
        let Some(at) = waiting.buffers.iter().rposition(|buffer| buffer.capacity() == room) else {
            drop(waiting);
            return Vec::with_capacity(room);
        };
        waiting.bytes -= room;
        waiting.buffers.swap_remove(at)
    }

    /// Returns a buffer.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let room = buffer.capacity();
        let is_kept = (SHORTEST..=LONGEST).contains(&room) && room.is_power_of_two();
        let mut waiting = self.0.lock();
        if is_kept && waiting.bytes + room <= BYTES_MAX {
            waiting.bytes += room;
            waiting.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_their_memory_is_bounded() {
        let spare = Spare::default();
        let mut one = spare.take(SHORTEST + 1);
        assert_eq!((one.capacity(), room(SHORTEST + 1)), (2 * SHORTEST, 2 * SHORTEST));
        one.push(7);
        spare.give(one);
        assert!(spare.take(SHORTEST).is_empty(), "the other one is longer");
        assert_eq!(spare.take(2 * SHORTEST), [7]);
        spare.give(spare.take(10));
        spare.give(Vec::with_capacity(LONGEST + 1));
        assert_eq!(spare.0.lock().bytes, 0, "neither is kept");
        let many: Vec<_> = (0..2 * BYTES_MAX / LONGEST).map(|_| spare.take(LONGEST)).collect();
        for buffer in many {
            spare.give(buffer);
        }
        assert_eq!(spare.0.lock().bytes, BYTES_MAX);
    }
}
