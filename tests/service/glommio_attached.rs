//! A shard in a glommio executor that has timers of its own.

use corewheel_glommio::attach;
use glommio::LocalExecutorBuilder;
use glommio::timer::Timer;

use super::*;

/// From this many pending timers on, glommio keeps them by whole milliseconds and wakes some of
/// them up to a millisecond early.
const MANY: usize = 300;

#[test]
fn sleeps_end_when_glommio_wakes_the_driver_early() {
    if !glommio_works() {
        return;
    }
    let (ended, end) = mpsc::channel();
    let sleeper = thread::spawn(move || {
        let service = builder(1).start_attached_with::<u8>().unwrap();
        let attachment = service.attach(SHARD).unwrap();
        LocalExecutorBuilder::default().make().unwrap().run(async move {
            let timers = attach(attachment, |_, _| {}).unwrap();
            let mut pending: Vec<_> = (0..MANY).map(|_| Timer::new(PATIENCE * 2)).collect();
            for timer in &mut pending {
                let poll = Pin::new(timer).poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!(poll, Poll::Pending);
            }
            // Makes the executor look at its timers all the time.
            let looks = glommio::spawn_local(async {
                loop {
                    Timer::new(Duration::from_micros(100)).await;
                }
            });
            for after in 2..20 {
                timers.sleep(ms(after)).await.unwrap();
            }
            looks.cancel().await;
        });
        ended.send(()).unwrap();
    });
    end.recv_timeout(PATIENCE).expect("a sleep does not end");
    sleeper.join().unwrap();
}
