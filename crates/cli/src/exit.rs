//! How a command went: its exit code, and what standard error says of it.

/// Everything went well.
pub(crate) const OK: i32 = 0;
/// It did not; standard error says why.
pub(crate) const FAILED: i32 = 1;
/// A key or namespace is not there.
pub(crate) const ABSENT: i32 = 3;

/// How a command went, as an exit code.
pub(crate) type Outcome = anyhow::Result<i32>;

/// The exit code; an error is told.
pub(crate) fn code(outcome: Outcome) -> i32 {
    outcome.unwrap_or_else(|error| {
        eprintln!("millpond: {}", told(&error));
        FAILED
    })
}

/// An error and its causes in one line; a cause that the text before names already is not repeated.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// A thread that panicked serves nobody, and whoever waits for it waits for ever: the process ends, and its supervisor
/// starts a new one. What a server acknowledged is on its disks, what a mount answered in its journal.
pub(crate) fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        std::process::abort();
    }));
}
