//! Small tools for futures that need no runtime.

use std::future::Future;
use std::task::Poll;

/// Lets other tasks of this core run once.
pub(crate) fn yield_once() -> impl Future<Output = ()> {
    let mut yielded = false;
    std::future::poll_fn(move |cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
