//! Commands of other threads that have a reply, and what a shutdown or a foreign handle does.
//!
//! The replies are taken as they are and go to the ledger, which says whether one can be true.

use std::future::IntoFuture;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{
    CancelOutcome, Payload, ResetOutcome, ShardId, ShutdownPolicy, TimeoutError, TimerId, Timers,
};

use crate::commands::{Due, Mode, Work};
use crate::history::{History, check_law};
use crate::ledger::{Id, Job, drop_contained};
use crate::world::{Sender, by_due, work_on, world};

impl History {
    /// A task of its own awaits a reply.
    pub(crate) fn wait_for<R: 'static>(
        &self,
        reply: impl IntoFuture<Output = R, IntoFuture: 'static>,
        then: impl FnOnce(R) + 'static,
    ) {
        let (ledger, reply) = (Rc::clone(&self.world.ledger), reply.into_future());
        ledger.waiting.set(ledger.waiting.get() + 1);
        drop(self.sim.spawn(async move {
            then(reply.await);
            ledger.waiting.set(ledger.waiting.get() - 1);
        }));
    }

    /// A task of its own awaits the reply of a shard, which comes at once.
    pub(crate) fn wait_for_shard<R: 'static>(
        &self,
        shard: ShardId,
        reply: impl IntoFuture<Output = R, IntoFuture: 'static>,
        then: impl FnOnce(R) + 'static,
    ) {
        let asked = self.world.ledger.ask(usize::from(shard.number()));
        self.wait_for(reply, move |reply| {
            drop(asked);
            then(reply);
        });
    }

    pub(crate) fn cancel(&self, sender: &Rc<Sender>, id: Id, handle: TimerId, mode: Mode) {
        let ledger = Rc::clone(&self.world.ledger);
        ledger.send_cancel(id);
        let number = sender.next();
        match mode {
            Mode::Detached => sender.client.cancel_detached(handle),
            Mode::Dropped => drop(sender.client.cancel(handle)),
            Mode::Awaited => {
                let (reply, client) = (sender.client.cancel(handle), sender.number);
                let shard = usize::from(handle.shard().number());
                self.wait_for_shard(handle.shard(), reply, move |outcome| {
                    let Ok(outcome) = outcome else { return ledger.unanswered(id) };
                    ledger.cancelled(id, outcome);
                    ledger.landed(id);
                    ledger.received(client, shard, number);
                });
            }
        }
    }

    pub(crate) fn reset(&self, sender: &Rc<Sender>, id: Id, handle: TimerId, due: Due, mode: Mode) {
        let ledger = Rc::clone(&self.world.ledger);
        let due = ledger.due_of_reset(id, due);
        let (client, number) = (sender.number, sender.next());
        let shard = usize::from(handle.shard().number());
        let is_silent = mode != Mode::Awaited;
        ledger.send_reset(id, due, client, is_silent.then_some((client, shard, number)));
        match mode {
            Mode::Detached => {
                by_due!(self.world, due, |when| sender.client.reset_detached(handle, when));
            }
            Mode::Dropped | Mode::Awaited => {
                let reply = by_due!(self.world, due, |when| sender.client.reset(handle, when));
                if mode == Mode::Dropped {
                    return drop(reply);
                }
                self.wait_for_shard(handle.shard(), reply, move |outcome| {
                    let Ok(outcome) = outcome else { return ledger.unanswered(id) };
                    ledger.received(client, shard, number);
                    ledger.reset(id, outcome);
                });
            }
        }
    }

    pub(crate) fn cancel_many(&self, sender: &Rc<Sender>, timers: &[(Id, TimerId)], mode: Mode) {
        let ledger = Rc::clone(&self.world.ledger);
        let (ids, handles): (Vec<_>, Vec<_>) = timers.iter().copied().unzip();
        for id in &ids {
            ledger.send_cancel(*id);
        }
        sender.next();
        match mode {
            Mode::Detached => sender.client.cancel_many(&handles).detach(),
            Mode::Dropped => drop(sender.client.cancel_many(&handles)),
            Mode::Awaited => {
                self.wait_for(sender.client.cancel_many(&handles), move |outcomes| {
                    let Ok(outcomes) = outcomes else { return };
                    for (id, outcome) in ids.into_iter().zip(outcomes) {
                        if let Ok(outcome) = outcome {
                            ledger.cancelled(id, outcome);
                        }
                    }
                });
            }
        }
    }

    pub(crate) fn timeout(&self, sender: Rc<Sender>, shard: usize, due: Due, work: Due) {
        let ledger = Rc::clone(&self.world.ledger);
        let time = self.world.time.clone();
        let wait = async move {
            match work {
                Due::In(delay) => time.sleep(delay).await,
                Due::Ago(_) | Due::After(_) => {}
                Due::Never => std::future::pending().await,
            }
        };
        sender.next();
        let world = Rc::clone(&self.world);
        self.wait_for(
            async move {
                let handle = world.service.handle();
                let timers = handle.on(ShardId::new(shard as u16));
                // A delay counts from here on.
                let timeout = world.ledger.timeout(shard, world.ledger.nanos_at(due));
                let result = by_due!(world, due, |when| timers.timeout(when, wait).await);
                (timeout, result)
            },
            move |(timeout, result)| {
                let is_elapsed = result.as_ref().is_err_and(TimeoutError::is_elapsed);
                ledger.timeout_done(timeout, is_elapsed);
            },
        );
    }

    pub(crate) fn spawn(&self, shard: usize, work: Work) {
        // The closure is `Send`, so it finds the history where jobs find it.
        let start = move |timers: Timers<Job>| {
            let world = world().expect("a history runs");
            if work == Work::Commands {
                world.command_kept(shard);
            }
            async move {
                let _alive = Rc::clone(&world.spawned);
                work_on(&world, &timers, work).await;
            }
        };
        let on = ShardId::new(shard as u16);
        if let Ok(reply) = self.sim.service().spawn_on(on, start) {
            self.wait_for(reply, |_| {});
        }
    }

    pub(crate) fn use_foreign(&self, sender: &Rc<Sender>, shard: u8, detached: bool) {
        let (handle, ledger) = (self.other.2, Rc::clone(&self.world.ledger));
        sender.next();
        if let Some(timers) = self.local(shard) {
            let outcome = timers.cancel(handle);
            if !matches!(outcome, CancelOutcome::Foreign) {
                ledger.violate(format!("a foreign handle has the outcome {outcome:?}"));
            }
        }
        if detached {
            sender.client.cancel_detached(handle);
            sender.client.reset_detached(handle, Duration::ZERO);
            return;
        }
        let (cancel, reset) =
            (sender.client.cancel(handle), sender.client.reset(handle, Duration::ZERO));
        self.wait_for(cancel, {
            let ledger = Rc::clone(&ledger);
            move |outcome| {
                if !matches!(outcome, Ok(CancelOutcome::Foreign) | Err(_)) {
                    ledger.violate(format!("a foreign handle has the outcome {outcome:?}"));
                }
            }
        });
        self.wait_for(reset, move |outcome| {
            if !matches!(outcome, Ok(ResetOutcome::Foreign) | Err(_)) {
                ledger.violate(format!("a foreign handle has the outcome {outcome:?}"));
            }
        });
    }

    pub(crate) fn shut_down(&self, policy: ShutdownPolicy, waits: bool) {
        let ledger = Rc::clone(&self.world.ledger);
        let Some(report) = self.world.begin_shutdown(policy) else { return };
        if !waits {
            return drop(report);
        }
        self.wait_for(report, move |report| {
            for shard in &report.shards {
                check_law(&ledger, &shard.counts);
            }
            let counted: u64 = report.shards.iter().map(|shard| shard.counts.returned).sum();
            let returned = report.returned;
            if returned.len() as u64 != counted {
                let len = returned.len();
                ledger.violate(format!("{len} timers are returned, and {counted} are counted"));
            }
            for returned in returned {
                match returned.payload {
                    Payload::Value(job) => {
                        ledger.returned(job.id);
                        job.disarm();
                    }
                    // The job in it reports that it is dropped.
                    payload => drop_contained(payload),
                }
            }
        });
    }
}
