//! Small tools for futures that need no runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

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

/// A future while it runs, then its output.
type Slot<F> = (Option<Pin<Box<F>>>, Option<<F as Future>::Output>);

/// Runs futures together and returns their outputs in order.
///
/// Every wake-up polls all that are left: meant for some dozens of them.
pub(crate) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut slots: Vec<Slot<F>> = futures.into_iter().map(|f| (Some(Box::pin(f)), None)).collect();
    std::future::poll_fn(move |cx: &mut Context<'_>| {
        let mut waiting = false;
        for (future, output) in &mut slots {
            let Some(f) = future else { continue };
            match f.as_mut().poll(cx) {
                Poll::Ready(value) => {
                    *output = Some(value);
                    *future = None;
                }
                Poll::Pending => waiting = true,
            }
        }
        if waiting {
            return Poll::Pending;
        }
        Poll::Ready(slots.drain(..).filter_map(|(_, output)| output).collect())
    })
    .await
}
