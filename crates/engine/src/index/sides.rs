//! The side of an entry: attributes and piece checksums, packed without an allocation of its own.

/// Step in bytes between the sizes of neighboring classes.
const STEP: usize = 8;
/// The class of sides longer than the largest place, each in an allocation of its own.
const LONG: u32 = 31;
/// Places in one page; few, because every shard has a page of each class that it uses.
const PLACES: usize = 64;
/// Lower bits of an id, which hold the place; the upper bits hold the class.
const PLACE_BITS: u32 = 27;

/// Places of one length.
#[derive(Debug, Default)]
struct Places {
    pages: Vec<Box<[u8]>>,
    used: u32,
    free: Vec<u32>,
}

/// All sides of a shard, by the ids that it assigns.
#[derive(Debug)]
pub(super) struct Sides {
    classes: [Places; LONG as usize],
    long: Vec<Box<[u8]>>,
    free: Vec<u32>,
    long_bytes: usize,
}

fn class_of(len: usize) -> u32 {
    let class = len.div_ceil(STEP).saturating_sub(1);
    u32::try_from(class).unwrap_or(LONG).min(LONG)
}

const fn place_bytes(class: u32) -> usize {
    (class as usize + 1) * STEP
}

const fn split(id: u32) -> (u32, usize) {
    (id >> PLACE_BITS, (id & ((1 << PLACE_BITS) - 1)) as usize)
}

impl Default for Sides {
    fn default() -> Self {
        let classes = std::array::from_fn(|_| Places::default());
        Self { classes, long: Vec::new(), free: Vec::new(), long_bytes: 0 }
    }
}

impl Sides {
    /// Stores `parts`, one after the other.
    pub(super) fn add(&mut self, parts: &[&[u8]]) -> u32 {
        let len = parts.iter().map(|part| part.len()).sum();
        let class = class_of(len);
        if class == LONG {
            return class << PLACE_BITS | self.add_long(parts.concat().into());
        }
        let bytes = place_bytes(class);
        let places = &mut self.classes[class as usize];
        let at = places.free.pop().unwrap_or_else(|| {
            let at = places.used;
            places.used += 1;
            if at as usize == places.pages.len() * PLACES {
                places.pages.push(vec![0; PLACES * bytes].into());
            }
            at
        });
        let start = at as usize % PLACES * bytes;
        let mut place = &mut places.pages[at as usize / PLACES][start..start + bytes];
        for part in parts {
            let (now, rest) = place.split_at_mut(part.len());
            now.copy_from_slice(part);
            place = rest;
        }
        class << PLACE_BITS | at
    }

    fn add_long(&mut self, bytes: Box<[u8]>) -> u32 {
        self.long_bytes += bytes.len();
        if let Some(at) = self.free.pop() {
            self.long[at as usize] = bytes;
            return at;
        }
        self.long.push(bytes);
        u32::try_from(self.long.len() - 1).unwrap_or(u32::MAX >> (32 - PLACE_BITS))
    }

    /// The stored bytes, followed by up to seven meaningless bytes.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let (class, at) = split(id);
        if class == LONG {
            return &self.long[at];
        }
        let bytes = place_bytes(class);
        &self.classes[class as usize].pages[at / PLACES][at % PLACES * bytes..][..bytes]
    }

    /// Removes a side.
    pub(super) fn remove(&mut self, id: u32) {
        let (class, at) = split(id);
        let free = if class == LONG {
            self.long_bytes -= std::mem::take(&mut self.long[at]).len();
            &mut self.free
        } else {
            &mut self.classes[class as usize].free
        };
        free.push(u32::try_from(at).unwrap_or(u32::MAX));
    }

    /// Memory in bytes of all places.
    pub(super) fn bytes(&self) -> usize {
        let of = |(class, places): (u32, &Places)| {
            places.pages.len() * PLACES * place_bytes(class) + places.free.capacity() * 4
        };
        let long = self.long_bytes + self.long.capacity() * size_of::<Box<[u8]>>();
        long + (0u32..).zip(&self.classes).map(of).sum::<usize>()
    }

    /// Bytes of the places in use.
    pub(super) fn live_bytes(&self) -> usize {
        let of = |(class, places): (u32, &Places)| {
            (places.used as usize - places.free.len()) * place_bytes(class)
        };
        self.long_bytes + (0u32..).zip(&self.classes).map(of).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back_and_places_are_used_again() {
        let mut sides = Sides::default();
        let bytes =
            |n: usize| (0..n).map(|at| ((at * 7 + n) % 251).to_le_bytes()[0]).collect::<Vec<u8>>();
        let all: Vec<(usize, u32)> = (0..700)
            .map(|n| {
                let all = bytes(n);
                let (one, two) = all.split_at(n / 3);
                (n, sides.add(&[one, two]))
            })
            .collect();
        let check = |sides: &Sides, all: &[(usize, u32)]| {
            for (n, id) in all {
                let found = sides.get(*id);
                assert_eq!(found[..*n], bytes(*n), "{n}");
                assert!(found.len() < n + 9, "{n}: {}", found.len());
            }
        };
        check(&sides, &all);
        let before = sides.bytes();
        let live = sides.live_bytes();
        assert!((live / 2..=before).contains(&live), "{live} of {before}");
        let (gone, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|(n, _)| n % 3 == 0);
        for (_, id) in &gone {
            sides.remove(*id);
        }
        assert!(sides.live_bytes() < live * 3 / 4, "{} of {live}", sides.live_bytes());
        check(&sides, &kept);
        let again: Vec<_> = gone.iter().map(|(n, _)| (*n, sides.add(&[&bytes(*n)]))).collect();
        check(&sides, &kept);
        check(&sides, &again);
        assert_eq!(sides.live_bytes(), live);
        assert!(sides.bytes() <= before + 8192, "{before}, then {}", sides.bytes());
    }

    /// A key of 32 bytes with the attributes of a chain, and one piece checksum.
    #[test]
    fn a_side_costs_its_bytes_and_few_more() {
        let mut sides = Sides::default();
        let count = 100_000;
        for _ in 0..count {
            sides.add(&[&[1; 92]]);
        }
        assert!(sides.bytes() / count <= 96 + 1, "{}", sides.bytes() / count);
    }
}
