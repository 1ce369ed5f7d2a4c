//! The executor of one core: tasks, the ready queue, timers and the driver.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millpond_types::Tick;
use slab::Slab;

use super::IoBackend;
use super::driver::{Driver, Finished, Wait};
use super::op::{Action, FileRef};
use super::remote::{Mail, Remote};
use super::task::{JoinHandle, Task, joinable};
use super::timer::Timers;
use crate::clock::RealClock;
use crate::pool::Buf;

/// The key of the future given to `block_on`.
pub(super) const MAIN: usize = usize::MAX;
/// Longest time that a runtime that ends waits for the kernel to release its memory.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Rounds of tasks that wake each other before the kernel is entered: a request, the task that
/// sends its answer, and tasks woken by that share one call. Bounded, as a task may wake itself for
/// ever.
const ROUNDS_PER_TURN: usize = 3;
/// Longest sleep without a timer; only bounds a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_mins(1);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    /// Absent while it is being polled.
    future: Option<LocalFuture>,
    task: Arc<Task>,
}

pub(crate) struct Core {
    remote: Arc<Remote>,
    tasks: RefCell<Slab<Slot>>,
    ready: RefCell<VecDeque<Arc<Task>>>,
    pub(super) timers: RefCell<Timers>,
    driver: RefCell<Driver>,
    finished: RefCell<Finished>,
    mail: RefCell<Mail>,
    /// Disks used on this core, by their ids.
    files: RefCell<Vec<(u64, FileRef)>>,
    busy_poll: Duration,
    /// The last sleep was shorter than polling for work would have been.
    polling_pays: Cell<bool>,
    backend: IoBackend,
    ended: Cell<bool>,
}

/// The core of this thread.
///
/// # Panics
/// Outside `Runtime::block_on`.
pub(crate) fn current() -> Rc<Core> {
    CURRENT.with_borrow(|current| {
        Rc::clone(current.as_ref().expect("called outside Runtime::block_on of this thread"))
    })
}

/// The core of this thread, if it has one.
pub(crate) fn try_current() -> Option<Rc<Core>> {
    CURRENT.try_with(|current| current.try_borrow().ok()?.clone()).ok().flatten()
}

/// Queues a task on this thread; false when it belongs to another core.
pub(super) fn push_ready(task: &Arc<Task>) -> bool {
    CURRENT
        .try_with(|current| {
            let current = current.borrow();
            let Some(core) = current.as_ref() else { return false };
            if !Arc::ptr_eq(&core.remote, &task.remote) {
                return false;
            }
            core.ready.borrow_mut().push_back(Arc::clone(task));
            true
        })
        .unwrap_or(false)
}

/// Makes a core current until this is dropped.
struct Entered;

impl Entered {
    fn enter(core: &Rc<Core>) -> Self {
        CURRENT.with_borrow_mut(|current| {
            assert!(current.is_none(), "block_on was called inside a runtime of the same thread");
            *current = Some(Rc::clone(core));
        });
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let core = CURRENT.with_borrow_mut(Option::take);
        drop(core);
    }
}

impl Core {
    pub(super) fn new(driver: Driver, remote: Arc<Remote>, busy_poll: Duration) -> Self {
        let backend = driver.kind();
        Self {
            remote,
            tasks: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            driver: RefCell::new(driver),
            finished: RefCell::default(),
            mail: RefCell::default(),
            files: RefCell::default(),
            busy_poll,
            polling_pays: Cell::new(false),
            backend,
            ended: Cell::new(false),
        }
    }

    pub(super) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    pub(crate) fn handle(&self) -> super::Handle {
        super::Handle { remote: Arc::clone(&self.remote) }
    }

    pub(crate) const fn backend(&self) -> IoBackend {
        self.backend
    }

    pub(super) fn buffers_registered(&self) -> bool {
        self.driver.borrow().buffers_registered()
    }

    pub(super) fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        assert!(!self.ended.get(), "a task was spawned on a runtime that has ended");
        let (future, handle) = joinable(future);
        let mut tasks = self.tasks.borrow_mut();
        let place = tasks.vacant_entry();
        let task = Arc::new(Task::new(Arc::clone(&self.remote), place.key()));
        place.insert(Slot { future: Some(Box::pin(future)), task: Arc::clone(&task) });
        drop(tasks);
        task.schedule();
        handle(task)
    }

    // ---- operations

    pub(super) fn submit(&self, action: Action) -> usize {
        self.driver.borrow_mut().submit(action)
    }

    /// Queues two operations in order; the backend must be `io_uring`.
    pub(super) fn submit_linked(&self, first: Action, then: Action) -> (usize, usize) {
        let keys = self.driver.borrow_mut().submit_linked(first, then);
        keys.expect("only the io_uring backend links operations; the caller looks first")
    }

    pub(super) fn poll_op(&self, key: usize, waker: &Waker) -> Option<i32> {
        let (result, replaced) = self.driver.borrow_mut().poll_op(key, waker);
        drop(replaced);
        result
    }

    pub(super) fn abandon(&self, key: usize, resource: impl FnOnce() -> Box<dyn Any>) {
        let mut finished = Finished::default();
        self.driver.borrow_mut().abandon(key, resource, &mut finished);
        drop(finished);
    }

    pub(crate) fn fixed_index(&self, buf: &Buf) -> Option<u16> {
        self.driver.borrow_mut().fixed_index(buf)
    }

    pub(crate) fn register_file(&self, fd: i32) -> FileRef {
        self.driver.borrow_mut().register_file(fd)
    }

    /// File of disk `id` on this core; `register` runs on first use.
    pub(crate) fn file(&self, id: u64, register: impl FnOnce() -> FileRef) -> FileRef {
        let known = self.files.borrow().iter().find(|known| known.0 == id).map(|known| known.1);
        known.unwrap_or_else(|| {
            let file = register();
            self.files.borrow_mut().push((id, file));
            file
        })
    }

    pub(crate) fn forget_file(&self, id: u64, slot: u32) {
        self.files.borrow_mut().retain(|known| known.0 != id);
        self.driver.borrow_mut().unregister_file(slot);
    }

    pub(crate) fn forget_socket(&self, fd: i32) {
        self.driver.borrow_mut().forget_socket(fd);
    }

    // ---- the loop

    pub(super) fn block_on<F: Future>(self: &Rc<Self>, future: F) -> F::Output {
        let _entered = Entered::enter(self);
        let mut future = pin!(future);
        let main = Arc::new(Task::new(Arc::clone(&self.remote), MAIN));
        main.schedule();
        let waker = Waker::from(Arc::clone(&main));
        let mut poll_main = |task: &Arc<Task>| {
            if !Arc::ptr_eq(task, &main) {
                return Poll::Pending;
            }
            task.unqueue();
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        loop {
            for _ in 0..ROUNDS_PER_TURN {
                if let Poll::Ready(output) = self.round(&mut poll_main) {
                    return output;
                }
            }
            self.turn();
        }
    }

    /// Runs the tasks that are ready now; tasks woken by them run in the next round.
    fn round<T>(&self, poll_main: &mut impl FnMut(&Arc<Task>) -> Poll<T>) -> Poll<T> {
        let count = self.ready.borrow().len();
        for _ in 0..count {
            let Some(task) = self.ready.borrow_mut().pop_front() else { break };
            if task.key != MAIN {
                self.run(&task);
            } else if let Poll::Ready(output) = poll_main(&task) {
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    }

    fn run(&self, task: &Arc<Task>) {
        task.unqueue();
        if task.has_ended() {
            return;
        }
        let future = self.tasks.borrow_mut()[task.key].future.take();
        let mut future = future.expect("a task's future is home while it is not polled");
        let finished = task.is_aborted() || {
            let waker = Waker::from(Arc::clone(task));
            future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        if finished {
            task.end();
            let slot = self.tasks.borrow_mut().remove(task.key);
            drop(slot);
            drop(future);
        } else {
            self.tasks.borrow_mut()[task.key].future = Some(future);
        }
    }

    /// Fires timers, reads mail, and lets the driver work; sleeps when there is nothing to do. The
    /// kernel is entered once per turn: submitting and sleeping are one call.
    fn turn(&self) {
        self.fire_timers();
        self.read_mail();
        if !self.ready.borrow().is_empty() {
            self.drive(Wait::No);
            return;
        }
        let until = self.timers.borrow().next().unwrap_or(Tick::MAX);
        if self.polling_pays.get() {
            if self.poll_busily(until) {
                return;
            }
            self.polling_pays.set(false);
        }
        if self.remote.prepare_sleep() {
            let asleep = RealClock::tick();
            self.drive(Wait::Until(until.min(asleep.plus(SLEEP_MAX))));
            self.remote.end_sleep();
            self.polling_pays.set(RealClock::tick().since(asleep) < self.busy_poll);
        }
    }

    /// Polls for work for a while instead of sleeping; true when there is some.
    fn poll_busily(&self, until: Tick) -> bool {
        let end = RealClock::tick().plus(self.busy_poll);
        loop {
            for _ in 0..16 {
                self.drive(Wait::No);
                if !self.ready.borrow().is_empty() || self.remote.has_mail() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = RealClock::tick();
            if now >= until {
                return true;
            }
            if now >= end {
                return false;
            }
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = RealClock::tick();
        loop {
            let waker = self.timers.borrow_mut().pop_due(now);
            let Some(waker) = waker else { break };
            waker.wake();
        }
    }

    fn read_mail(&self) {
        if !self.remote.has_mail() {
            return;
        }
        let mut mail = self.mail.take();
        self.remote.take(&mut mail);
        if self.ended.get() {
            // No new work starts; only results of worker threads still count.
            mail.woken.clear();
            mail.jobs.clear();
        }
        for task in mail.woken.drain(..) {
            self.ready.borrow_mut().push_back(task);
        }
        for job in mail.jobs.drain(..) {
            job();
        }
        if !mail.done.is_empty() {
            let mut finished = self.finished.take();
            self.driver.borrow_mut().complete_remote(&mail.done, &mut finished);
            mail.done.clear();
            self.settle(finished);
        }
        *self.mail.borrow_mut() = mail;
    }

    fn drive(&self, wait: Wait) {
        let mut finished = self.finished.take();
        self.driver.borrow_mut().turn(wait, &mut finished);
        self.settle(finished);
    }

    /// Wakes and drops the results of the driver, and keeps the lists for the next turn.
    fn settle(&self, mut finished: Finished) {
        for waker in finished.wakers.drain(..) {
            waker.wake();
        }
        finished.garbage.clear();
        *self.finished.borrow_mut() = finished;
    }

    /// Drops every task, then waits until the kernel has released all memory.
    pub(super) fn end(self: &Rc<Self>) {
        self.ended.set(true);
        {
            // Dropped futures may need the current core.
            let _entered = try_current().is_none().then(|| Entered::enter(self));
            loop {
                let slots: Vec<Slot> = self.tasks.borrow_mut().drain().collect();
                if slots.is_empty() {
                    break;
                }
                for slot in slots {
                    slot.task.end();
                    drop(slot);
                }
            }
            self.ready.borrow_mut().clear();
            self.drain();
        }
        self.remote.close();
    }

    fn drain(&self) {
        let end = RealClock::tick().plus(DRAIN_MAX);
        let mut finished = Finished::default();
        self.driver.borrow_mut().cancel_all(&mut finished);
        self.settle(finished);
        while !self.driver.borrow().is_idle() && RealClock::tick() < end {
            self.read_mail();
            let soon = RealClock::tick().plus(Duration::from_millis(10));
            self.drive(Wait::Until(soon));
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.drain();
        if !self.driver.borrow().is_idle() {
            self.driver.borrow_mut().leak();
        }
    }
}
