//! Sleeping on a word that two processes share.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps until `word` is no longer `expected`, is woken, or `timeout` has passed. May wake early.
pub(super) fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `word` is a live, aligned u32 and `time` a timespec; the result only tells why the
    // sleep ended, and the caller checks again in every case.
    let _ = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time)
    };
}

/// Wakes all sleepers on `word`.
pub(super) fn wake(word: &AtomicU32) {
    // SAFETY: `word` is a live, aligned u32.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
