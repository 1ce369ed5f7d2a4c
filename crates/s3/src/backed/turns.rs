//! One fill per key at a time: a concurrent caller waits for the end of the fill instead of
//! repeating it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// A bucket and a key.
type At = (String, String);

/// Keys with a running fill, and the receivers that see its end.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<At, watch::Receiver<()>>>>);

/// The turn of a key, which ends when this is dropped.
pub(crate) struct Turn {
    turns: Turns,
    at: At,
    /// Its drop wakes the waiters.
    _ended: watch::Sender<()>,
}

impl Turns {
    /// Takes the turn of a key; `None` after waiting for the end of another caller's turn.
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
        // Nothing is ever sent: this returns an error when the turn ends.
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
