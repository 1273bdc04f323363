//! Keys, values and names whose `Drop` uses the timers.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use corewheel_kit::keyed::KeyedTimers;

use corewheel_test_support::{Lab, builder, check_law, ms};

/// A key, value or name whose `Drop` uses the timers that held it.
#[derive(PartialEq, Eq, Hash, Debug)]
struct Nosy(u32);

type NosyTimers = KeyedTimers<Nosy, Nosy, Nosy>;

thread_local! {
    static NOSY: RefCell<Weak<NosyTimers>> = const { RefCell::new(Weak::new()) };
    static DROPS: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Nosy {
    fn drop(&mut self) {
        DROPS.set(DROPS.get() + 1);
        assert!(self.0 != 66, "a drop panics");
        if let Some(timers) = NOSY.with_borrow(Weak::upgrade) {
            let looked_for = std::mem::ManuallyDrop::new(Nosy(1_000));
            assert_eq!(timers.due(&*looked_for), None);
            assert_eq!(timers.remove_group(&*looked_for), []);
            assert!(timers.len() < 100);
        }
    }
}

#[test]
fn drop_of_keys_values_and_names_may_use_the_timers() {
    let mut lab = Lab::<()>::new(builder(1));
    let timers: NosyTimers = KeyedTimers::in_groups(lab.timers(), |one, _| drop(one));
    let timers = Rc::new(timers);
    NOSY.set(Rc::downgrade(&timers));
    DROPS.set(0);
    let drops = || DROPS.replace(0);
    let put = |group, key, delay| {
        assert!(timers.insert_in(Nosy(group), Nosy(key), Nosy(0), ms(delay)).is_ok());
    };
    put(1, 1, 5);
    assert_eq!(drops(), 0, "key, value and name are kept");
    put(1, 2, 5);
    assert_eq!(drops(), 1, "the second copy of the name");
    put(2, 2, 5);
    assert_eq!(drops(), 2, "the key and the old value");
    put(2, 1, 5);
    assert_eq!(drops(), 4, "key, value, the empty group, and a second copy of the name");
    lab.advance(ms(5));
    assert_eq!(drops(), 5, "two keys, two values and the name of their group");
    put(1, 1, 5);
    put(1, 66, 5);
    put(3, 3, 5);
    put(66, 4, 5);
    assert_eq!(drops(), 1);
    let before = lab.counts().panicked;
    drop(timers);
    assert_eq!(drops(), 11, "four keys, four values, three names; one of each panics");
    assert_eq!(lab.timers().len(), 0);
    lab.settle();
    assert_eq!(lab.counts().panicked, before + 2);
    check_law(&lab.counts());
}
