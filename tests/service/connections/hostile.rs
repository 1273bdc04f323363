//! Connections under those who want to prove them wrong: shards that are held up again and again,
//! callbacks and wakers that turn on their connection, and ends at the wrong moment.

use super::*;

/// Lets time pass in steps that are a little too long for what is noted to hold: each leaves a gap.
fn run_held_up(lab: &mut Lab<u8>, milliseconds: u64, mut each: impl FnMut(&mut Lab<u8>)) {
    let end = lab.clock.now() + ms(milliseconds);
    while lab.clock.now() < end {
        lab.clock.advance(Duration::from_micros(13_100));
        lab.settle();
        each(lab);
    }
}

#[test]
fn a_connection_is_idle_in_time_on_a_shard_that_is_held_up_all_the_time() {
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(60_000), ..NONE };
    let quiet = lab.timers().connection(limits).unwrap();
    let others: Vec<_> = (0..200).map(|_| lab.timers().connection(NONE).unwrap()).collect();
    quiet.touch_read();
    let touched = lab.clock.now();
    let mut told = Vec::new();
    run_held_up(&mut lab, 130_000, |lab| {
        others.iter().for_each(ConnTimers::touch_read);
        told.extend(event(&quiet).map(|event| (lab.clock.now() - touched, event)));
    });
    let [(first, (ReadIdle, true)), (second, (ReadIdle, false))] = told[..] else {
        panic!("{told:?}")
    };
    assert!((ms(60_000)..ms(60_030)).contains(&first), "{first:?}");
    assert!((ms(60_000)..ms(60_030)).contains(&(second - first)), "{second:?}");
}

#[test]
fn an_event_is_the_first_again_even_if_nobody_asked_for_the_last_one() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert_eq!(run(&mut lab, &conn, 100), [(100, ReadIdle, true)]);
    // This one is withdrawn, as nobody asks before something is read.
    lab.advance(ms(100));
    conn.touch_read_at(lab.clock.now());
    lab.advance(ms(100));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
}
