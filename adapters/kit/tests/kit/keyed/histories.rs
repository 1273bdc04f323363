//! Random histories, compared with a plain map. With the code it shares nothing: deadlines are
//! whole ticks, so that nothing is rounded.

use std::cell::RefCell;
use std::collections::BTreeMap;

use corewheel::{Refused, RefusedKind};
use corewheel_kit::keyed::{Expired, KeyedTimers};
use fastrand::Rng;

use corewheel_test_support::{FAR, Lab, builder, check_law, ms, seeds, shared, ticks_of};

/// A key of the model.
#[derive(Clone, Copy)]
struct Known {
    value: u32,
    due: u64,
    group: Option<u32>,
    /// The number of its joining a group.
    joined: u32,
}

/// Takes the keys that are due out of the model, and compares them with those that have fired.
#[track_caller]
fn check_fired(model: &mut BTreeMap<u32, Known>, fired: &[(u64, u32, u32)], end: u64, at: &str) {
    let due: BTreeMap<_, _> = model.extract_if(.., |_, known| known.due <= end).collect();
    assert_eq!(fired.len(), due.len(), "{at}");
    for (when, key, value) in fired {
        let known = due.get(key).map(|known| known.value);
        assert_eq!((*when, known), (end, Some(*value)), "{at}: {key}");
    }
    assert!(fired.is_sorted_by_key(|(_, key, _)| due[key].due), "{at}: out of order");
}

fn kind<V>(refused: Refused<V>) -> RefusedKind {
    refused.kind()
}

#[test]
fn random_history_agrees_with_a_plain_map() {
    type Mine = KeyedTimers<u32, u32, u32>;
    seeds::each(60, |seed| {
        let mut rng = Rng::with_seed(seed);
        let mut lab = Lab::<()>::new(builder(1).capacity(25));
        let (fired, noted) = shared::<RefCell<Vec<_>>>();
        let own = lab.timers().clone();
        let handler = move |one: Expired<u32, u32>, _: &Mine| {
            let at = ticks_of(&own);
            noted.borrow_mut().push((at, one.key, one.value));
        };
        let timers: Mine = KeyedTimers::in_groups(lab.timers(), handler);
        let mut model: BTreeMap<u32, Known> = BTreeMap::new();
        let (epoch, mut joins) = (lab.clock.now(), 0);
        for step in 0..600 {
            let at = format!("seed {seed}, step {step}");
            let now = ticks_of(lab.timers());
            let key = rng.u32(..30);
            let delay = if rng.bool() { rng.u64(..20) } else { rng.u64(..2_000) };
            let due = now + delay;
            match rng.u32(..12) {
                0..4 => {
                    let group = rng.bool().then(|| rng.u32(..4));
                    let put = match group {
                        Some(group) => timers.insert_in(group, key, step, ms(delay)).map_err(kind),
                        None => timers.insert(key, step, ms(delay)).map_err(kind),
                    };
                    let put = put.map(|before| before.map(|entry| (entry.value, entry.deadline)));
                    let before = model.get(&key).copied();
                    if before.is_none() && model.len() == 25 {
                        assert_eq!(put, Err(RefusedKind::Full), "{at}");
                    } else {
                        let entry = |known: Known| (known.value, epoch + ms(known.due));
                        assert_eq!(put, Ok(before.map(entry)), "{at}");
                        joins += 1;
                        let stays = before.filter(|known| known.group == group);
                        let joined = stays.map_or(joins, |known| known.joined);
                        model.insert(key, Known { value: step, due, group, joined });
                    }
                }
                4 | 5 => {
                    assert_eq!(timers.reset(&key, ms(delay)), model.contains_key(&key), "{at}");
                    if let Some(known) = model.get_mut(&key) {
                        known.due = due;
                    }
                }
                6 | 7 => {
                    let ended = timers.remove(&key).map(|one| (one.key, one.value, one.deadline));
                    let known = model.remove(&key);
                    let known = known.map(|known| (key, known.value, epoch + ms(known.due)));
                    assert_eq!(ended, known, "{at}");
                }
                8 => {
                    let group = rng.u32(..4);
                    let ended = timers.remove_group(&group);
                    let ended = ended.into_iter().map(|one| (one.key, one.value));
                    let is_member = |_: &_, known: &mut Known| known.group == Some(group);
                    let mut members: Vec<_> = model.extract_if(.., is_member).collect();
                    members.sort_by_key(|(_, known)| known.joined);
                    let members = members.into_iter().map(|(key, known)| (key, known.value));
                    assert!(ended.eq(members), "{at}");
                }
                _ => {
                    lab.advance(ms(rng.u64(1..40)));
                    let end = ticks_of(lab.timers());
                    check_fired(&mut model, &fired.take(), end, &at);
                }
            }
            assert_eq!(fired.take(), [], "{at}: a timer fires when no time has passed");
            assert_eq!((timers.len(), lab.timers().len()), (model.len(), model.len()), "{at}");
            for key in 0..30 {
                let due = timers.due(&key).map(|due| due + ms(ticks_of(lab.timers())));
                let expected = model.get(&key).map(|known| lab.clock.now() + ms(known.due));
                assert_eq!(due, expected, "{at}");
            }
        }
        drop(timers.drain());
        assert_eq!(lab.timers().len(), 0);
        lab.advance(FAR);
        check_law(&lab.counts());
    });
}
