//! How long entries of the tables may be idle: less where an endpoint has many, so that the least recently used make
//! room for others.

use std::collections::BTreeMap;

/// Buckets of ages: bucket n begins at 2^n ns, the first at 0.
const BUCKETS: usize = u64::BITS as usize;
/// Entries used within this time are never evicted, ns. An entry that is added after a walk through a table can be as
/// old, at the next one, as the time between the two.
const RECENT_NS: u64 = 100_000_000;
/// How long entries may be idle, ns, if their endpoint uses more than half of its quota: short flows of UDP do not
/// signal their end.
const CROWDED_NS: u64 = 3_000_000_000;

/// Ages of a table's entries, as found by walks through it.
#[derive(Debug, Default)]
pub(super) struct Ages {
    /// Of each endpoint's entries, in the current walk.
    found: BTreeMap<u16, [u32; BUCKETS]>,
    /// The age at which entries are removed, ns, for endpoints that had many at the last walk.
    most: BTreeMap<u16, u64>,
}

impl Ages {
    /// Records the age of an entry that a walk has found. Returns the age, ns, at which that endpoint's entries are
    /// removed.
    pub(super) fn most(&mut self, endpoint: u16, age_ns: u64) -> u64 {
        let bucket = age_ns.checked_ilog2().unwrap_or(0) as usize;
        let buckets = self.found.entry(endpoint).or_insert([0; BUCKETS]);
        if let Some(bucket) = buckets.get_mut(bucket) {
            *bucket += 1;
        }
        self.most.get(&endpoint).copied().unwrap_or(u64::MAX)
    }

    /// Ends a walk through a table of `max` entries. An endpoint that has used up its quota keeps the more recently
    /// used half.
    pub(super) fn end_walk(&mut self, max: u64) {
        let found = std::mem::take(&mut self.found);
        let count = |buckets: &[u32; BUCKETS]| buckets.iter().map(|n| u64::from(*n)).sum::<u64>();
        let total: u64 = found.values().map(count).sum();
        let most = |buckets: &[u32; BUCKETS]| {
            let held = count(buckets);
            // The quota is the number of free entries, as in `abi::has_room`.
            let may_hold = max.saturating_sub(total - held) / 2;
            // Some were added and removed during the walk.
            if held * 16 >= may_hold * 15 {
                Some(age_of(buckets, may_hold / 2))
            } else {
                (held > may_hold / 2).then_some(CROWDED_NS)
            }
        };
        self.most = found
            .iter()
            .filter_map(|(endpoint, buckets)| Some((*endpoint, most(buckets)?)))
            .collect();
    }
}

/// The age below which there are at most `keep` entries, but at least [`RECENT_NS`].
fn age_of(buckets: &[u32; BUCKETS], keep: u64) -> u64 {
    let mut younger = 0;
    let full = buckets.iter().position(|n| {
        younger += u64::from(*n);
        younger > keep
    });
    full.map_or(CROWDED_NS, |bucket| 1 << bucket)
        .clamp(RECENT_NS, CROWDED_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Walks through tables of 1,000 entries.
    fn walk(ages: &mut Ages, entries: &[(u16, u64)]) -> Vec<(u16, u64)> {
        let evicted = entries
            .iter()
            .filter(|(endpoint, age)| *age >= ages.most(*endpoint, *age))
            .copied()
            .collect();
        ages.end_walk(1000);
        evicted
    }

    #[test]
    fn nothing_is_evicted_while_there_is_room() {
        let entries: Vec<_> = (0..400)
            .map(|n| (1 + n / 200, u64::from(n) * SECOND_NS))
            .collect();
        let mut ages = Ages::default();
        for _ in 0..3 {
            assert_eq!(walk(&mut ages, &entries), []);
        }
    }

    #[test]
    fn many_flows_may_not_be_idle_for_long() {
        let entries: Vec<_> = (0..400).map(|n| (1, n * SECOND_NS)).collect();
        let mut ages = Ages::default();
        assert_eq!(walk(&mut ages, &entries), []);
        assert_eq!(walk(&mut ages, &entries), entries[3..]);
    }

    #[test]
    fn a_full_table_evicts_the_least_recently_used() {
        // Endpoint 1 uses its whole quota: half of the table without the 100 entries of endpoint 2, which are older.
        let flood = (0..450).map(|n| (1, n * 5_000_000));
        let others = (0..100).map(|n| (2, 10 * SECOND_NS + n));
        let entries: Vec<_> = flood.chain(others).collect();
        let mut ages = Ages::default();
        assert_eq!(walk(&mut ages, &entries), []);
        let evicted = walk(&mut ages, &entries);
        assert!(evicted.iter().all(|(endpoint, _)| *endpoint == 1));
        let kept = 450 - evicted.len();
        assert!((75..=225).contains(&kept), "{kept}");
        let youngest = evicted.iter().map(|(_, age)| *age).min().unwrap_or(0);
        assert_eq!(youngest, entries[kept].1);
        // Once there is room again, nothing more is evicted.
        let rest = &entries[..kept];
        walk(&mut ages, rest);
        assert_eq!(walk(&mut ages, rest), []);
    }

    #[test]
    fn flows_in_use_are_not_evicted() {
        let entries: Vec<_> = (0..500).map(|n| (1, n * 100_000)).collect();
        let mut ages = Ages::default();
        for _ in 0..3 {
            assert_eq!(walk(&mut ages, &entries), []);
        }
    }
}
