//! Caches of recent entries.

use std::hash::Hash;

use quick_cache::{
    DefaultHashBuilder, Options, OptionsBuilder, UnitWeighter, Weighter, sync, unsync,
};

/// The share of a cache for entries requested more than once. By default it is nearly all of it:
/// once old entries of removed files fill it, new entries are evicted before their first use.
const OLD_SHARE: f64 = 0.5;

/// A cache of about `max` entries.
pub(crate) fn shared<K: Eq + Hash, V: Clone>(max: usize) -> sync::Cache<K, V> {
    weighted(max, max as u64, UnitWeighter)
}

/// A cache of about `items` entries, with a limit of their total weight.
pub(crate) fn weighted<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    items: usize,
    weight: u64,
    weighter: W,
) -> sync::Cache<K, V, W> {
    let hasher = DefaultHashBuilder::default();
    let life = sync::DefaultLifecycle::default();
    sync::Cache::with_options(options(items, weight), weighter, hasher, life)
}

/// A cache for one thread, of about `max` entries.
pub(crate) fn owned<K: Eq + Hash, V>(max: usize) -> unsync::Cache<K, V> {
    let hasher = DefaultHashBuilder::default();
    let options = options(max, max as u64);
    unsync::Cache::with_options(options, UnitWeighter, hasher, unsync::DefaultLifecycle::default())
}

fn options(items: usize, weight: u64) -> Options {
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(items).weight_capacity(weight).hot_allocation(OLD_SHARE);
    options.build().expect("both capacities are set")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_last_is_there_however_much_came_before() {
        let (shared, mut owned) = (shared::<u64, u64>(4096), owned::<u64, u64>(4096));
        for n in 0..100_000 {
            shared.insert(n, n);
            owned.insert(n, n);
            // Old entries were requested often.
            for n in [n, n / 2, n / 3] {
                let _ = (shared.get(&n), owned.get(&n));
            }
        }
        let last = 200_000..201_000;
        for n in last.clone() {
            shared.insert(n, n);
            owned.insert(n, n);
        }
        for n in last {
            assert!(shared.get(&n).is_some() && owned.get(&n).is_some(), "{n}");
        }
    }
}
