//! The search for the primary manager.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, sleep};
use millpond_types::Tick;
use millpond_types::wire::Verb;
use tokio::sync::watch;

use super::Member;
use crate::link::{Dialer, Link, LinkError};

/// Time for which a failed address is not followed again, even if a standby still names it.
const SHUN: Duration = Duration::from_millis(1500);
/// Pause after all known managers were tried.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// A manager that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seat {
    /// The one in this process.
    Here,
    /// At an address.
    At(String),
}

/// The managers that this node knows. One is in use; another replaces it when it fails or is not
/// primary.
pub(super) struct Managers {
    member: Arc<Member>,
    dialer: Rc<Dialer>,
    seeds: Vec<Seat>,
    next: Cell<usize>,
    seat: RefCell<Seat>,
    links: RefCell<HashMap<String, Rc<Link>>>,
    shunned: RefCell<HashMap<String, Tick>>,
    /// Changes with the manager in use: callers that wait at the previous one ask the new one.
    moves: watch::Sender<u64>,
}

impl Managers {
    /// Starts with `addresses` of managers, or of any nodes of the cluster.
    pub(super) fn new(member: Arc<Member>, dialer: Rc<Dialer>, addresses: &[String]) -> Self {
        let mut seeds: Vec<Seat> = Vec::new();
        if member.manager().is_some() {
            seeds.push(Seat::Here);
        }
        let own = &member.identity().addresses;
        let others = addresses.iter().filter(|address| seeds.is_empty() || !own.contains(address));
        let others: Vec<Seat> = others.map(|address| Seat::At(address.clone())).collect();
        seeds.extend(others);
        assert!(!seeds.is_empty(), "a node of a cluster knows a manager");
        Self {
            member,
            dialer,
            seat: RefCell::new(seeds[0].clone()),
            seeds,
            next: Cell::new(1),
            links: RefCell::default(),
            shunned: RefCell::default(),
            moves: watch::Sender::new(0),
        }
    }

    /// Changes with the manager in use.
    pub(super) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// Name of the manager in use, for messages.
    pub(super) fn name(&self) -> String {
        match &*self.seat.borrow() {
            Seat::Here => "the manager in this process".to_owned(),
            Seat::At(address) => address.clone(),
        }
    }

    /// Whether the manager in use is the one in this process.
    pub(super) fn is_here(&self) -> bool {
        *self.seat.borrow() == Seat::Here
    }

    /// Number of managers to try.
    pub(super) fn count(&self) -> usize {
        self.seeds.len()
    }

    fn link(&self, address: &str) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        let make = || Rc::new(Link::new(Rc::clone(&self.dialer), address.to_owned()));
        Rc::clone(links.entry(address.to_owned()).or_insert_with(make))
    }

    /// Sends a request to the manager in use. `server_deadline` is earlier for requests that wait
    /// for news.
    pub(super) async fn ask(
        &self,
        verb: Verb,
        meta: &[u8],
        (deadline, server_deadline): (Tick, Tick),
    ) -> Result<Vec<u8>, LinkError> {
        let seat = self.seat.borrow().clone();
        match seat {
            Seat::Here => {
                let answer = self.member.answer(verb, meta, server_deadline).await;
                answer.map_err(|failure| LinkError::Refused {
                    address: "this process".to_owned(),
                    status: failure.status,
                    retry_after_ms: failure.retry_after_ms,
                    message: failure.message,
                })
            }
            Seat::At(address) => {
                self.link(&address).call(verb, meta, (deadline, server_deadline)).await
            }
        }
    }

    /// Turns to the next manager, since the one in use did not answer, or is not primary and names
    /// others.
    pub(super) async fn turn(&self, failed: bool, named: &[String]) {
        let now = RealClock::tick();
        let before = self.seat.borrow().clone();
        let own = &self.member.identity().addresses;
        if failed && let Seat::At(address) = &before {
            self.shunned.borrow_mut().insert(address.clone(), now.plus(SHUN));
        }
        self.shunned.borrow_mut().retain(|_, until| now < *until);
        let follow = named.iter().find(|address| {
            let known = Seat::At((*address).clone());
            !self.shunned.borrow().contains_key(*address)
                && known != before
                && !own.contains(address)
        });
        let seat = if let Some(address) = follow {
            Seat::At(address.clone())
        } else {
            let at = self.next.get();
            self.next.set(at + 1);
            if at.is_multiple_of(self.seeds.len()) {
                sleep(ROUND_PAUSE).await;
            }
            self.seeds[at % self.seeds.len()].clone()
        };
        if seat == before {
            return;
        }
        // Links to addresses that are no longer named are dropped.
        let kept = |address: &String| {
            let known = Seat::At(address.clone());
            known == seat || self.seeds.contains(&known)
        };
        let mut links = self.links.borrow_mut();
        let gone: Vec<String> = links.keys().filter(|address| !kept(address)).cloned().collect();
        let dropped: Vec<_> = gone.iter().map(|address| links.remove(address)).collect();
        drop(links);
        drop(dropped);
        *self.seat.borrow_mut() = seat;
        self.moves.send_modify(|moves| *moves += 1);
    }
}
