//! Streams that are told to end by a drain or as the idlest, over both sides.

use corewheel::settings::Scale;
use corewheel::stream::StreamTimeout::{AgeGrace, Drained, Idle, Told};

use super::control::told;
use super::*;

both_sides!(stream_is_told_of_a_drain_and_cut_at_its_end);
fn stream_is_told_of_a_drain_and_cut_at_its_end<K: Kind>() {
    for limits in [NONE, NONE.max_age_grace(ms(5))] {
        let (mut lab, mut stream, mut peer, control) = controlled::<K>(limits);
        let (alarm, waker) = Alarm::new();
        assert!(told(&control, &waker).is_pending() && read(&mut stream).is_pending());
        lab.advance_ticks(10);
        assert!(!alarm.rang());
        lab.service.drain(ms(LIMIT));
        lab.settle();
        assert!(alarm.rang(), "the owner is woken");
        ready(told(&control, &waker));
        lab.advance_ticks(LIMIT - 1);
        assert!(write(&mut peer, b"last").is_ready());
        assert_eq!(ready(read(&mut stream)), b"last", "the stream goes on");
        assert!(read(&mut stream).is_pending());
        lab.advance_ticks(1);
        assert_eq!(timeout(read(&mut stream)), Some(Drained));
        assert_eq!(timeout(told(&control, &waker)), Some(Drained));
        assert_eq!(Drained.to_string(), "the drain of the connections is over");
        let (mut late, _peer) = duplex::<K>(&lab, limits);
        ready(told(&late.control(), &waker));
        lab.advance_ticks(1);
        assert_eq!(timeout(read(&mut late)), Some(Drained), "the window is over");
    }
}

both_sides!(idlest_stream_is_told_and_ends_after_its_grace);
fn idlest_stream_is_told_and_ends_after_its_grace<K: Kind>() {
    for grace in [0, 20] {
        let mut lab = lab();
        let limits = NONE.max_age_grace(ms(grace));
        let mut streams = [(); 2].map(|()| duplex::<K>(&lab, limits));
        lab.advance_ticks(50);
        assert!(write(&mut streams[1].1, b"x").is_ready());
        assert_eq!(ready(read(&mut streams[1].0)), b"x");
        for (stream, _) in &mut streams {
            assert!(read(stream).is_pending());
        }
        // A read that begins to wait counts as activity.
        lab.advance_ticks(20);
        streams[1].0.timers().touch();
        lab.service.close_idlest(1);
        lab.advance_ticks(1);
        let (first, second) = (timeout(read(&mut streams[0].0)), timeout(read(&mut streams[1].0)));
        assert_eq!((first, second), ((grace == 0).then_some(Told), None), "{grace}");
        lab.advance_ticks(grace);
        let expected = if grace == 0 { Told } else { AgeGrace(ms(20)) };
        assert_eq!(timeout(read(&mut streams[0].0)), Some(expected));
        assert!(read(&mut streams[1].0).is_pending());
    }
}

both_sides!(idle_limit_of_a_stream_shrinks_under_pressure);
fn idle_limit_of_a_stream_shrinks_under_pressure<K: Kind>() {
    let limits = NONE.idle(ms(10 * LIMIT)).idle_least(ms(LIMIT));
    let (mut lab, mut stream, _peer) = open::<K>(limits);
    assert!(read(&mut stream).is_pending());
    lab.service.set_scale(Scale::ZERO);
    check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(10 * LIMIT)), || read(&mut stream));
}
