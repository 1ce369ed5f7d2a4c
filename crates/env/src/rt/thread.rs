//! Threads: every one has a name and an owner.

use std::io;

/// A thread that was started with [`thread`]. Dropping it lets the thread run on.
#[derive(Debug)]
pub struct ThreadHandle<T> {
    inner: std::thread::JoinHandle<T>,
}

impl<T> ThreadHandle<T> {
    /// Waits for the thread to end.
    ///
    /// # Errors
    /// The value it panicked with.
    pub fn join(self) -> std::thread::Result<T> {
        self.inner.join()
    }

    /// True once the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }
}

/// Starts a thread; the only way to start one. Linux shows the first 15 bytes of `name`.
///
/// # Errors
/// When the system has no more threads for this process.
pub fn thread<T, F>(name: &str, run: F) -> io::Result<ThreadHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let inner = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(ThreadHandle { inner })
}
