//! Commands of other threads that have a reply, and what a shutdown or a foreign handle does.
//!
//! The replies are taken as they are and go to the ledger, which says whether one can be true.

use std::fmt::Debug;
use std::future::IntoFuture;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{CancelOutcome, Payload, ResetOutcome, ShardId, ShutdownPolicy, TimerId, Timers};

use crate::commands::{Due, Mode, Work};
use crate::history::{History, check_law};
use crate::ledger::{Id, Job, Ledger, State, drop_contained};
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
        shard: usize,
        reply: impl IntoFuture<Output = R, IntoFuture: 'static>,
        then: impl FnOnce(R) + 'static,
    ) {
        let asked = self.world.ledger.ask(shard);
        self.wait_for(reply, move |reply| {
            drop(asked);
            then(reply);
        });
    }

    pub(crate) fn cancel(&self, sender: &Sender, (id, handle): (Id, TimerId), mode: Mode) {
        let ledger = Rc::clone(&self.world.ledger);
        ledger.send_cancel(id);
        let (client, number) = (sender.number, sender.next());
        match mode {
            Mode::Detached => sender.client.cancel_detached(handle),
            Mode::Dropped => drop(sender.client.cancel(handle)),
            Mode::Awaited => {
                let shard = usize::from(handle.shard().number());
                self.wait_for_shard(shard, sender.client.cancel(handle), move |outcome| {
                    let Ok(outcome) = outcome else { return ledger.unanswered(id) };
                    ledger.cancelled(id, outcome, 1);
                    ledger.landed(id);
                    ledger.received(client, shard, number);
                });
            }
        }
    }

    pub(crate) fn reset(&self, sender: &Sender, (id, handle): (Id, TimerId), due: Due, mode: Mode) {
        let ledger = Rc::clone(&self.world.ledger);
        let due = ledger.due_of_reset(id, due);
        let (client, number) = (sender.number, sender.next());
        let shard = usize::from(handle.shard().number());
        let is_silent = mode != Mode::Awaited;
        ledger.send_reset(id, due, client, is_silent.then_some((client, shard, number)));
        if mode == Mode::Detached {
            return by_due!(self.world, due, |when| sender.client.reset_detached(handle, when));
        }
        let reply = by_due!(self.world, due, |when| sender.client.reset(handle, when));
        if mode == Mode::Awaited {
            self.wait_for_shard(shard, reply, move |outcome| {
                let Ok(outcome) = outcome else { return ledger.unanswered(id) };
                ledger.received(client, shard, number);
                ledger.reset(id, outcome);
            });
        }
    }

    pub(crate) fn cancel_many(&self, sender: &Sender, timers: &[(Id, TimerId)], mode: Mode) {
        let ledger = Rc::clone(&self.world.ledger);
        let (ids, handles): (Vec<_>, Vec<_>) = timers.iter().copied().unzip();
        for id in &ids {
            ledger.send_cancel(*id);
        }
        sender.next();
        let reply = sender.client.cancel_many(&handles);
        match mode {
            Mode::Detached => reply.detach(),
            Mode::Dropped => drop(reply),
            Mode::Awaited => self.wait_for(reply, move |outcomes| {
                for (id, outcome) in ids.into_iter().zip(outcomes.into_iter().flatten()) {
                    if let Ok(outcome) = outcome {
                        ledger.cancelled(id, outcome, 1);
                    }
                }
            }),
        }
    }

    pub(crate) fn timeout(&self, sender: &Sender, shard: usize, due: Due, work: Due) {
        sender.next();
        let world = Rc::clone(&self.world);
        let timeout = async move {
            let timers = world.service.handle().on(ShardId::new(shard as u16));
            // A delay counts from here on.
            let timeout = world.ledger.timeout(Some(shard), world.ledger.nanos_at(due));
            let result = by_due!(world, due, |when| timers.timeout(when, world.wait(work)).await);
            world.ledger.timeout_done(timeout, result.is_err_and(|error| error.is_elapsed()));
        };
        self.wait_for(timeout, |()| {});
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

    pub(crate) fn use_foreign(
        &self,
        sender: &Sender,
        timers: Option<&Timers<Job>>,
        detached: bool,
    ) {
        let (handle, client, ledger) = (self.other.2, &sender.client, &self.world.ledger);
        sender.next();
        if let Some(outcome) = timers.map(|timers| timers.cancel(handle)) {
            check_foreign(ledger, matches!(outcome, CancelOutcome::Foreign), &outcome);
        }
        if detached {
            client.cancel_detached(handle);
            return client.reset_detached(handle, Duration::ZERO);
        }
        let (cancel, reset) = (client.cancel(handle), client.reset(handle, Duration::ZERO));
        let (of_cancel, of_reset) = (Rc::clone(ledger), Rc::clone(ledger));
        self.wait_for(cancel, move |outcome| {
            let is_foreign = matches!(outcome, Ok(CancelOutcome::Foreign) | Err(_));
            check_foreign(&of_cancel, is_foreign, &outcome);
        });
        self.wait_for(reset, move |outcome| {
            let is_foreign = matches!(outcome, Ok(ResetOutcome::Foreign) | Err(_));
            check_foreign(&of_reset, is_foreign, &outcome);
        });
    }

    pub(crate) fn shut_down(&self, policy: ShutdownPolicy, waits: bool) {
        let ledger = Rc::clone(&self.world.ledger);
        let Some(report) = self.world.begin_shutdown(policy) else { return };
        if !waits {
            return drop(report);
        }
        self.wait_for(report, move |report| {
            report.shards.iter().for_each(|shard| check_law(&ledger, &shard.counts));
            let counted: u64 = report.shards.iter().map(|shard| shard.counts.returned).sum();
            let returned = report.returned;
            if returned.len() as u64 != counted {
                let len = returned.len();
                ledger.violate(format!("{len} timers are returned, and {counted} are counted"));
            }
            for returned in returned {
                match returned.payload {
                    Payload::Value(job) => {
                        ledger.finish(job.id, State::Returned);
                        job.disarm();
                    }
                    // The job in it reports that it is dropped.
                    payload => drop_contained(payload),
                }
            }
        });
    }
}

fn check_foreign(ledger: &Ledger, is_foreign: bool, outcome: &impl Debug) {
    if !is_foreign {
        ledger.violate(format!("a foreign handle has the outcome {outcome:?}"));
    }
}
