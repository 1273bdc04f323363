//! Heartbeats of connections that begin together and do not beat together.

use super::*;

const COUNT: usize = 300;
const PERIOD: u64 = 250;

/// The greatest number of beats in one tick.
fn most(beats: &[Vec<u64>]) -> usize {
    let mut beats = beats.concat();
    beats.sort_unstable();
    beats.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(0)
}

/// The ticks of the heartbeats of each of some connections that begin together.
fn heartbeats<S: Opened>(limits: ConnLimits) -> Vec<Vec<u64>> {
    let mut lab = Lab::<u8>::new(TimerService::builder().shards(1));
    let conns: Vec<_> = (0..COUNT).map(|_| S::open(&lab, limits)).collect();
    // Every server greets its client.
    conns.iter().for_each(ConnTimers::touch_write);
    let mut beats = vec![Vec::new(); COUNT];
    for tick in 0..4 * PERIOD {
        lab.settle();
        for (conn, beats) in conns.iter().zip(&mut beats) {
            if event(conn).is_some() {
                beats.push(tick);
                conn.touch_write();
            }
        }
        lab.clock.advance(ms(1));
    }
    beats
}

#[test]
fn heartbeats_of_connections_that_begin_together_are_spread_and_keep_their_distance() {
    let limits = NONE.heartbeat(ms(PERIOD));
    on_both!(|S| {
        let once = || {
            seeds::note(seeds::of_process());
            heartbeats::<S>(limits.heartbeat_phase(true))
        };
        let all = once();
        assert_eq!(all, once(), "a seed repeats them");
        for beats in &all {
            // On a shard, a stamp may be some 10 ms later than what was written.
            let follows = |two: &[u64]| (PERIOD..PERIOD + 12).contains(&(two[1] - two[0]));
            assert!(beats.len() >= 3 && beats.windows(2).all(follows), "{beats:?}");
            assert!(beats[0] <= PERIOD, "the first is within the period: {beats:?}");
        }
        assert!(most(&all) < COUNT / 20, "{}", most(&all));
        let early = all.iter().filter(|beats| beats[0] < PERIOD / 2).count();
        assert!((COUNT / 3..COUNT * 2 / 3).contains(&early), "{early}");
        let most = most(&heartbeats::<S>(limits));
        assert!(most >= COUNT, "without a phase they come together");
    });
}

/// The most heartbeats in a tick of the second period, of 100,000 connections that begin within
/// 100 ms and have a heartbeat of 10 s. Without a phase, those that begin within a millisecond have
/// theirs together, so that a tenth of the connections shows the most.
fn most_of_100_000(has_phase: bool) -> u32 {
    // The count depends on when the connections begin.
    let mut lab = Lab::<u8>::at_epoch(TimerService::builder().shards(1));
    let limits = NONE.heartbeat(ms(10_000)).heartbeat_phase(has_phase);
    let beats = Rc::new(Cell::new(0));
    let mut conns = Vec::new();
    for _ in 0..if has_phase { 100 } else { 10 } {
        for _ in 0..1_000 {
            let (conn, beats) = (Timers::open(&lab, limits), Rc::clone(&beats));
            conn.on_event(move |conn, _| {
                beats.set(beats.get() + 1);
                conn.touch_write();
            });
            conns.push(conn);
            lab.clock.advance(Duration::from_micros(1));
        }
        lab.settle();
    }
    lab.advance_ticks(10_000);
    let count = |_| {
        beats.set(0);
        lab.advance(ms(1));
        beats.get()
    };
    // A stamp of what was written is up to 10 ms late.
    (0..10_100).map(count).max().unwrap()
}

#[test]
fn fullest_tick_after_a_restart_has_a_fraction_of_the_heartbeats_with_a_phase() {
    // The mean is 10. The guide has these figures.
    assert_eq!([false, true].map(most_of_100_000), [1_000, 31]);
}
