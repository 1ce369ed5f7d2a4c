//! What is done for a key once at a time: who comes while it is done waits for its end instead of doing it too.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// A bucket and a key.
type At = (String, String);

/// Keys that something is done for, and who tells of its end.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<At, watch::Receiver<()>>>>);

/// It is done for a key, until this is dropped.
pub(crate) struct Turn {
    turns: Turns,
    at: At,
    /// Those who wait see it go.
    _ended: watch::Sender<()>,
}

impl Turns {
    /// The turn of a key; none after somebody else's has ended that was there first.
    pub(crate) async fn take(&self, bucket: &str, key: &str) -> Option<Turn> {
        let at = (bucket.to_owned(), key.to_owned());
        let mut ended = match self.0.lock().entry(at.clone()) {
            Entry::Occupied(taken) => taken.get().clone(),
            Entry::Vacant(free) => {
                let (sender, receiver) = watch::channel(());
                free.insert(receiver);
                return Some(Turn { turns: self.clone(), at, _ended: sender });
            }
        };
        // Nothing is ever sent: this is an error when the turn is over.
        let _ = ended.changed().await;
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.0.lock().remove(&self.at);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::Turns;

    #[tokio::test]
    async fn who_comes_second_waits_for_the_first_and_has_no_turn() {
        let turns = Turns::default();
        let first = turns.take("b", "k").await.unwrap();
        assert!(turns.take("b", "other").await.is_some() && turns.take("c", "k").await.is_some());
        let (mut second, third) = (Box::pin(turns.take("b", "k")), Box::pin(turns.take("b", "k")));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert!(second.await.is_none());
        let first = turns.take("b", "k").await;
        assert!(first.is_some() && third.now_or_never().is_none());
        drop(first);
        assert!(turns.0.lock().is_empty());
    }
}
