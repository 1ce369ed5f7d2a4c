//! One conformance suite, run on both backends.

mod forbidden;

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millpond_types::Tick;

use super::{
    IoBackend, Runtime, RuntimeOptions, current_handle, readable, sleep, spawn, thread, timeout,
    yield_now,
};
use crate::clock::RealClock;
use crate::pool::{BufferPool, PoolOptions};
use crate::sys::EventFd;

pub(crate) const BACKENDS: [IoBackend; 2] = [IoBackend::Uring, IoBackend::Threads];

pub(crate) fn runtime(io: IoBackend, pool: Option<&BufferPool>) -> Runtime {
    let options =
        RuntimeOptions { io, pools: pool.into_iter().cloned().collect(), ..Default::default() };
    let runtime = Runtime::new(options).unwrap();
    assert_eq!(runtime.backend(), io);
    runtime
}

/// Runs a test on both backends, with a pool of 8 MiB.
pub(crate) fn on_both(test: impl AsyncFn(BufferPool)) {
    for io in BACKENDS {
        let pool = BufferPool::new(PoolOptions::new(8 << 20)).unwrap();
        runtime(io, Some(&pool)).block_on(test(pool.clone()));
        assert_eq!(pool.used(), 0, "{io:?} kept buffers");
    }
}

#[test]
fn options_are_checked() {
    let options = RuntimeOptions { ring_entries: 0, ..Default::default() };
    let text = Runtime::new(options).unwrap_err().to_string();
    assert!(text.contains("ring_entries"), "{text}");
}

#[test]
fn tasks_finish_and_give_their_values() {
    on_both(async |_| {
        let tasks: Vec<_> = (0..100u64)
            .map(|number| {
                spawn(async move {
                    for _ in 0..number % 5 {
                        yield_now().await;
                    }
                    number
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        assert_eq!(sum, 4950);
    });
}

struct SetOnDrop(Rc<Cell<bool>>);
impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn aborted_tasks_are_dropped_and_detached_ones_run_on() {
    on_both(async |_| {
        let dropped = Rc::new(Cell::new(false));
        let flag = SetOnDrop(Rc::clone(&dropped));
        let task = spawn(async move {
            let _flag = flag;
            pending::<()>().await;
        });
        yield_now().await;
        task.abort();
        assert!(task.await.is_err());
        assert!(dropped.get());

        let ran = Rc::new(Cell::new(false));
        let flag = SetOnDrop(Rc::clone(&ran));
        drop(spawn(async move {
            yield_now().await;
            drop(flag);
        }));
        while !ran.get() {
            yield_now().await;
        }
    });
}

#[test]
fn a_runtime_that_ends_drops_its_tasks() {
    for io in BACKENDS {
        let dropped = Rc::new(Cell::new(false));
        let flag = SetOnDrop(Rc::clone(&dropped));
        let runtime = runtime(io, None);
        let mut task = None;
        runtime.block_on(async {
            task = Some(spawn(async move {
                let _flag = flag;
                sleep(Duration::from_hours(1)).await;
            }));
            yield_now().await;
        });
        assert!(!dropped.get());
        drop(runtime);
        assert!(dropped.get());
        assert!(task.unwrap().is_finished());
    }
}

#[test]
fn timers_fire_in_order_and_not_early() {
    on_both(async |_| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let start = RealClock::tick();
        let tasks: Vec<_> = [30u64, 10, 20]
            .map(|millis| {
                let order = Rc::clone(&order);
                spawn(async move {
                    sleep(Duration::from_millis(millis)).await;
                    assert!(RealClock::tick().since(start) >= Duration::from_millis(millis));
                    order.borrow_mut().push(millis);
                })
            })
            .into_iter()
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.borrow(), [10, 20, 30]);
        assert!(timeout(Duration::from_millis(1), pending::<()>()).await.is_err());
        assert_eq!(timeout(Duration::from_mins(1), async { 7 }).await, Ok(7));
    });
}

#[test]
fn a_dropped_timer_is_forgotten() {
    on_both(async |_| {
        for _ in 0..100 {
            let _ = timeout(Duration::from_mins(1), yield_now()).await;
        }
        assert!(super::core::current().timers.borrow().is_empty());
    });
}

#[test]
fn other_threads_wake_and_spawn() {
    on_both(async |_| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let waker = thread("waker", move || sender.send(5).unwrap()).unwrap();
        assert_eq!(receiver.await.unwrap(), 5);
        waker.join().unwrap();

        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let handle = current_handle();
        let spawner = thread("spawner", move || {
            for number in 0..1_000 {
                let sender = sender.clone();
                handle.spawn_on(move || async move { sender.send(number).unwrap() }).unwrap();
            }
        })
        .unwrap();
        for expected in 0..1_000 {
            assert_eq!(receiver.recv().await, Some(expected));
        }
        spawner.join().unwrap();
    });
}

#[test]
fn an_ended_runtime_says_so() {
    let runtime = runtime(IoBackend::Threads, None);
    let handle = runtime.handle();
    handle.spawn_on(|| async { panic!("the runtime never ran") }).unwrap();
    drop(runtime);
    assert!(handle.spawn_on(|| async {}).is_err());
}

#[test]
fn wakes_cross_between_two_cores_without_loss() {
    for io in BACKENDS {
        let (to_a, mut from_b) = tokio::sync::mpsc::channel::<u32>(1);
        let (to_b, mut from_a) = tokio::sync::mpsc::channel::<u32>(1);
        let echo = thread("echo", move || {
            runtime(io, None).block_on(async move {
                while let Some(number) = from_a.recv().await {
                    to_a.send(number).await.unwrap();
                }
            });
        })
        .unwrap();
        runtime(io, None).block_on(async move {
            for number in 0..5_000 {
                to_b.send(number).await.unwrap();
                assert_eq!(from_b.recv().await, Some(number));
            }
        });
        echo.join().unwrap();
    }
}

#[test]
fn a_late_wake_of_a_finished_task_is_harmless() {
    on_both(async |_| {
        let stolen = Rc::new(RefCell::new(None));
        let place = Rc::clone(&stolen);
        spawn(poll_fn(move |context| {
            *place.borrow_mut() = Some(context.waker().clone());
            Poll::Ready(())
        }))
        .await
        .unwrap();
        // Another task has its place in the table now.
        let next = spawn(async {
            yield_now().await;
            3
        });
        stolen.borrow_mut().take().unwrap().wake();
        assert_eq!(next.await, Ok(3));
    });
}

#[test]
fn events_wake_the_loop() {
    on_both(async |_| {
        let event = Arc::new(EventFd::new().unwrap());
        // Cancelled, then awaited again.
        assert!(timeout(Duration::from_millis(1), readable(event.as_fd())).await.is_err());
        for _ in 0..3 {
            let remote = Arc::clone(&event);
            let notifier = thread("notifier", move || remote.notify()).unwrap();
            readable(event.as_fd()).await.unwrap();
            assert!(event.take());
            assert!(!event.take());
            notifier.join().unwrap();
        }
    });
}

#[test]
fn busy_polling_finds_work() {
    for io in BACKENDS {
        let busy_poll = Duration::from_millis(2);
        let options = RuntimeOptions { io, busy_poll, ..Default::default() };
        let runtime = Runtime::new(options).unwrap();
        // Answers come soon, so after the first sleep the loop polls for the others.
        let (ask, asked) = std::sync::mpsc::channel::<tokio::sync::oneshot::Sender<Tick>>();
        let answer = move || asked.iter().for_each(|sender| sender.send(Tick(9)).unwrap());
        let waker = thread("waker", answer).unwrap();
        for _ in 0..200 {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            ask.send(sender).unwrap();
            assert_eq!(runtime.block_on(receiver).unwrap(), Tick(9));
        }
        drop(ask);
        runtime.block_on(sleep(Duration::from_millis(3)));
        waker.join().unwrap();
    }
}

#[test]
fn a_panic_of_a_task_reaches_the_caller_and_leaves_no_runtime_behind() {
    for io in BACKENDS {
        let result = std::panic::catch_unwind(|| {
            runtime(io, None).block_on(async {
                spawn(async { panic!("an invariant is broken") });
                pending::<()>().await;
            });
        });
        assert!(result.is_err());
        runtime(io, None).block_on(yield_now());
    }
}

#[test]
fn one_task_that_always_has_work_does_not_starve_the_others() {
    on_both(async |_| {
        let event = EventFd::new().unwrap();
        event.notify();
        let stop = Rc::new(Cell::new(false));
        let flag = Rc::clone(&stop);
        // Always readable: completes immediately, every time.
        let greedy = spawn(async move {
            while !flag.get() {
                readable(event.as_fd()).await.unwrap();
            }
        });
        sleep(Duration::from_millis(2)).await;
        stop.set(true);
        greedy.await.unwrap();
    });
}
