//! Polling for the next request before going to sleep.
//!
//! Waking a sleeping processor takes 2 us on bare metal and 25 to 40 us on a virtual machine,
//! several times the duration of an answer from memory, and a program often sends its next request
//! as soon as it has the answer. So a thread that answered quickly polls for it briefly: one thread
//! of a mount at a time, only if polling paid off recently, and not while the mount has other work
//! that needs the processor. `KVM` polls before it halts a guest for the same reason
//! (`halt_poll_ns`), and Go's scheduler before it parks a thread.
//!
//! If program and thread share a processor that never sleeps, the next request comes at once when
//! the thread yields, and cannot come while it polls. The delay of requests after an answer without
//! polling distinguishes the two cases.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, cpu_count};
use millpond_fuse_wire::Device;
use millpond_types::Tick;

/// How long a thread polls, and the longest duration of an answer before it: after a slower one
/// there is little to gain.
const TIME: Duration = Duration::from_micros(50);
/// A next request within this time needed no wake-up from sleep, neither of the program nor of the
/// thread: two wake-ups take 50 us and more where processors sleep, and under 10 us where they do
/// not.
const PROMPT: Duration = Duration::from_micros(20);
/// After this many polls in a row without success, only every `SELDOM`-th answer is followed by
/// one.
const VAIN_MAX: u32 = 8;
const SELDOM: u32 = 32;

/// The polling state of a mount's threads.
#[derive(Debug)]
pub(super) struct Look {
    /// A thread polls, or polling is disabled.
    taken: AtomicBool,
    /// Answers since the last successful poll.
    vain: AtomicU32,
    /// When a thread gave a quick answer and did not poll; 0 once the next request has arrived.
    answered: AtomicU64,
    /// Whether the last request after such an answer came at once.
    is_prompt: AtomicBool,
}

impl Look {
    /// Disables polling with a single processor, where no other thread could send a request.
    pub(super) fn new() -> Self {
        Self {
            taken: AtomicBool::new(cpu_count() < 2),
            vain: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            is_prompt: AtomicBool::new(false),
        }
    }

    /// Notes the arrival of a request.
    pub(super) fn came(&self, now: Tick) {
        // Most often there is nothing to learn, and no shared memory to write to.
        if self.answered.load(Ordering::Relaxed) == 0 {
            return;
        }
        let answered = self.answered.swap(0, Ordering::Relaxed);
        if answered != 0 {
            self.is_prompt.store(now.since(Tick(answered)) < PROMPT, Ordering::Relaxed);
        }
    }

    /// Polls for a request after the answer to one that arrived at `begun`, if it is worth it.
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

    /// Whether to poll after this answer.
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
