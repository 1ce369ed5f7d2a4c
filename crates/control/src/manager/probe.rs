//! Probes of a node's process: all its addresses are asked at once.

use std::rc::Rc;
use std::time::Duration;

use millpond_cluster::manager::ProbeOutcome;
use millpond_env::{RealClock, spawn, timeout};
use millpond_types::Tick;
use millpond_types::cluster::Incarnation;

use crate::link::{Dialer, LinkError, resolve};

/// Time limit for the answer of an address. A live process answers within microseconds; a dead host
/// never answers, and then the lease decides.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Finding at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Process(Incarnation),
    Nobody,
    Nothing,
}

/// Asks all addresses for the process `incarnation`.
pub(super) async fn probe(
    dialer: &Rc<Dialer>,
    addresses: Vec<String>,
    incarnation: Incarnation,
) -> ProbeOutcome {
    let deadline = RealClock::tick().plus(ANSWER_MAX);
    let mut asked = Vec::new();
    for address in addresses {
        asked.push(spawn(ask(Rc::clone(dialer), address, deadline)));
    }
    let mut found = Vec::with_capacity(asked.len());
    for task in asked {
        found.extend(task.await.unwrap_or_else(|_| vec![Found::Nothing]));
    }
    conclude(&found, incarnation)
}

/// Asks all addresses of one name. A name that does not resolve in time takes no time from others.
async fn ask(dialer: Rc<Dialer>, address: String, deadline: Tick) -> Vec<Found> {
    let Ok(all) = resolve(&address, deadline).await else { return vec![Found::Nothing] };
    let greet = |at| {
        let (dialer, address) = (Rc::clone(&dialer), address.clone());
        spawn(async move {
            let left = deadline.since(RealClock::tick());
            match timeout(left, dialer.greet(at, &address)).await {
                Ok(Ok(peer)) => Found::Process(peer.hello.incarnation),
                Ok(Err(LinkError::NobodyThere { .. })) => Found::Nobody,
                _ => Found::Nothing,
            }
        })
    };
    let asked: Vec<_> = all.into_iter().map(greet).collect();
    let mut found = Vec::with_capacity(asked.len());
    for task in asked {
        found.push(task.await.unwrap_or(Found::Nothing));
    }
    found
}

/// Draws the conclusion: one address with the process proves that it lives; its end needs all
/// addresses.
fn conclude(found: &[Found], incarnation: Incarnation) -> ProbeOutcome {
    if found.contains(&Found::Process(incarnation)) {
        return ProbeOutcome::Alive(incarnation);
    }
    if found.is_empty() || found.contains(&Found::Nothing) {
        return ProbeOutcome::Unknown;
    }
    let other = found.iter().find_map(|found| match found {
        Found::Process(other) => Some(*other),
        _ => None,
    });
    other.map_or(ProbeOutcome::Gone, ProbeOutcome::Alive)
}

#[cfg(test)]
mod tests {
    use super::{Found, Incarnation, ProbeOutcome, conclude};

    #[test]
    fn an_end_needs_every_address() {
        let me = Incarnation(7);
        let other = Found::Process(Incarnation(8));
        let me_there = Found::Process(me);
        assert_eq!(conclude(&[Found::Nobody, me_there], me), ProbeOutcome::Alive(me));
        assert_eq!(conclude(&[Found::Nothing, me_there], me), ProbeOutcome::Alive(me));
        assert_eq!(conclude(&[Found::Nobody, Found::Nobody], me), ProbeOutcome::Gone);
        assert_eq!(conclude(&[Found::Nobody, other], me), ProbeOutcome::Alive(Incarnation(8)));
        assert_eq!(conclude(&[other, Found::Nothing], me), ProbeOutcome::Unknown);
        assert_eq!(conclude(&[Found::Nobody, Found::Nothing], me), ProbeOutcome::Unknown);
        assert_eq!(conclude(&[], me), ProbeOutcome::Unknown);
    }
}
