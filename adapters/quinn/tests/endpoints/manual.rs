//! Connections by a manual clock, over real sockets: their deadlines come when the test says so.

use std::pin::pin;

use corewheel_test_support::{Lab, builder};
use tokio::runtime::Builder;

use super::*;

const IDLE: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = ms(300);

/// Lets the tasks of the runtime run, as often as a datagram and its answer need.
async fn run_tasks(lab: &mut Lab) {
    for _ in 0..3 {
        lab.settle();
        // The runtime runs its other tasks and looks at its sockets before it wakes this task.
        tokio::task::yield_now().await;
    }
}

/// Runs a future beside the shard, while the manual clock stands still.
async fn drive<F: Future>(lab: &mut Lab, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            output = &mut future => return output,
            () = run_tasks(lab) => {}
        }
    }
}

#[test]
fn keep_alive_holds_a_connection_open_for_many_idle_times() {
    within_patience(|| {
        let tokio = Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            // The thread of the runtime also drives the shard.
            let mut lab: Lab = Lab::new(builder(1));
            let mut transport = transport(IDLE);
            transport.keep_alive_interval(Some(KEEP_ALIVE));
            let endpoints = Endpoints::new(&QuinnRuntime::new(lab.handle()), transport);
            let (client, server) = drive(&mut lab, endpoints.connect()).await.unwrap();
            let pings = || client.stats().frame_tx.ping + server.stats().frame_tx.ping;
            let (begin, before) = (lab.clock.now(), pings());
            while lab.clock.now() < begin + 3 * IDLE {
                lab.advance(ms(10));
                run_tasks(&mut lab).await;
            }
            let sent = pings() - before;
            assert!(sent >= 10, "{sent} pings");
            assert_eq!((client.close_reason(), server.close_reason()), (None, None));
            let echo = echo_all(server.clone());
            drive(&mut lab, async {
                tokio::select! {
                    () = echo => panic!("the connection has ended"),
                    () = check_echo(&client, 100) => {}
                }
            })
            .await;
        });
    });
}
