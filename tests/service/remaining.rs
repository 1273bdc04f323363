//! `Client::remaining`: the time until a timer is due, from another thread.

use super::*;

#[test]
fn remaining_from_another_thread_is_the_time_to_the_deadline() {
    let mut lab = Lab::<u32>::new(builder(1));
    let client = lab.client();
    let timer = client.on(SHARD).schedule(ms(10), 1).unwrap();
    let mut before = client.remaining(timer);
    lab.advance(ms(4));
    assert_eq!(look(&mut before), Some(Ok(Some(ms(6)))), "the request is executed at 4 ms");
    let mut due = client.remaining(timer);
    lab.clock.advance(ms(20));
    let _ = lab.turn();
    let zero = Some(Ok(Some(Duration::ZERO)));
    assert_eq!(look(&mut due), zero, "the timer is due but not delivered");
    assert_eq!(lab.reply(client.remaining(timer)), Ok(None));
}

#[test]
fn remaining_of_a_timer_of_another_service_is_none_at_once() {
    let lab = Lab::<u32>::new(builder(1));
    let other = Lab::<u32>::new(builder(1));
    let timer = other.timers().schedule(FAR, 1).unwrap();
    assert_eq!(look(&mut lab.client().remaining(timer)), Some(Ok(None)));
}

#[test]
fn remaining_works_on_every_runtime_and_is_refused_after_shutdown() {
    for (host, running) in Running::<u32>::each(Host::all(), 1) {
        let client = running.client();
        let timer = block_on(client.on(SHARD).schedule_when_room(FAR, 1)).unwrap();
        let remaining = client.remaining(timer).wait().unwrap().expect("the timer is pending");
        // The deadline is rounded up to a tick.
        assert!(remaining <= FAR + ms(1) && remaining > FAR / 2, "{host:?}: {remaining:?}");
        running.end(ShutdownPolicy::Drop);
        assert!(client.remaining(timer).wait().is_err(), "{host:?}");
    }
}
