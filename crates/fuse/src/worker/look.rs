//! Looking for the next request before going to sleep.
//!
//! To wake a processor that sleeps takes 2 us on bare metal and 25 to 40 us on a virtual machine, several times what it takes to
//! answer a question from memory, and a program that asks one comes with the next one as soon as it has the answer. So a thread that
//! answered quickly looks for that for a moment: one thread of a mount at a time, only where it was worth it lately, and not while the
//! mount has other work to do, which wants the processor. `KVM` polls before it halts a guest for the same reason
//! (`halt_poll_ns`), and Go's scheduler before it parks a thread.
//!
//! Where program and thread share a processor that never sleeps, the next request comes at once when the thread gives way, and
//! cannot come while it looks. How long requests take to come behind an answer after which nobody looked tells the two apart.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, cpu_count};
use millpond_fuse_wire::Device;
use millpond_types::Tick;

/// How long a thread looks, and how quick an answer is: behind one that took longer there is little to gain.
const TIME: Duration = Duration::from_micros(50);
/// Who comes back within this was not woken from sleep, and neither was the thread that hears of it: twice of that takes 50 us and
/// more where processors sleep, and under 10 us where they do not.
const PROMPT: Duration = Duration::from_micros(20);
/// After so many times in vain a row, only every so many-th answer is followed by a look.
const VAIN_MAX: u32 = 8;
const SELDOM: u32 = 32;

/// What the threads of a mount know of it.
#[derive(Debug)]
pub(super) struct Look {
    /// A thread looks; or none may.
    taken: AtomicBool,
    /// Answers since a look was worth it.
    vain: AtomicU32,
    /// When a thread gave a quick answer and did not look; 0 once the next request is there.
    answered: AtomicU64,
    /// The last request behind such an answer came at once.
    is_prompt: AtomicBool,
}

impl Look {
    /// With one processor there is nobody to wait for.
    pub(super) fn new() -> Self {
        Self {
            taken: AtomicBool::new(cpu_count() < 2),
            vain: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            is_prompt: AtomicBool::new(false),
        }
    }

    /// A request came now.
    pub(super) fn came(&self, now: Tick) {
        // Most often there is nothing to learn, and nothing for the threads to write to.
        if self.answered.load(Ordering::Relaxed) == 0 {
            return;
        }
        let answered = self.answered.swap(0, Ordering::Relaxed);
        if answered != 0 {
            self.is_prompt.store(now.since(Tick(answered)) < PROMPT, Ordering::Relaxed);
        }
    }

    /// Looks for a request behind the answer to one that came `begun`, if it is worth it.
    pub(super) fn look(&self, device: &Device, begun: Tick) {
        let begun = match RealClock::tick() {
            now if now.since(begun) < TIME => now,
            _ => return,
        };
        if !self.is_due() {
            self.answered.store(begun.0, Ordering::Relaxed);
            return;
        }
        if self.taken.swap(true, Ordering::Acquire) {
            return;
        }
        let found = loop {
            if device.has_request() {
                break true;
            }
            if RealClock::tick().since(begun) >= TIME {
                break false;
            }
            std::hint::spin_loop();
        };
        self.taken.store(false, Ordering::Release);
        if found {
            self.vain.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a look is due after this answer.
    fn is_due(&self) -> bool {
        if self.is_prompt.load(Ordering::Relaxed) {
            return false;
        }
        let vain = self.vain.fetch_add(1, Ordering::Relaxed);
        vain < VAIN_MAX || vain.is_multiple_of(SELDOM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_in_vain_looks_seldom() {
        let look = Look::new();
        let answers = 100 * SELDOM;
        let looks = (0..answers).filter(|_| look.is_due()).count();
        assert_eq!(u32::try_from(looks), Ok(VAIN_MAX + 99));
    }

    #[test]
    fn nobody_looks_for_who_comes_at_once() {
        let look = Look::new();
        let answered = Tick(1_000_000);
        let comes_after = |us: u64| {
            look.answered.store(answered.0, Ordering::Relaxed);
            look.came(answered.plus(Duration::from_micros(us)));
            look.is_due()
        };
        assert!(!comes_after(8));
        look.came(answered.plus(Duration::from_secs(1)));
        assert!(!look.is_due(), "a request behind no quick answer tells nothing");
        assert!(comes_after(60));
        assert!(!comes_after(8));
    }
}
