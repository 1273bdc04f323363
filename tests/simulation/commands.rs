//! The commands of a history, and the random choice of them.

use std::ops::Range;
use std::time::Duration;

use corewheel::ShutdownPolicy;
use fastrand::Rng;

use crate::operations::KEYS;
use crate::shared::SharedPlan;

/// When a timer is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    In(Duration),
    /// An instant this long ago, or at the start if there was none.
    Ago(Duration),
    /// So long after the deadline that the timer has, for a reset.
    After(Duration),
    Never,
}

/// What a payload does when it is delivered or dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Temper {
    Calm,
    /// Its handler or callback uses the shard and the clients.
    Reentrant,
    /// Its handler or callback panics.
    PanicsWhenFired,
    /// Its `Drop` panics.
    PanicsWhenDropped,
}

/// A timer that is to be scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    pub(crate) due: Due,
    pub(crate) temper: Temper,
    pub(crate) is_call: bool,
}

/// What becomes of the reply to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// A task awaits it.
    Awaited,
    /// It is dropped at once.
    Dropped,
    /// The command is sent without a reply.
    Detached,
}

/// A future that is spawned on a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Sleeps(Due),
    /// Ticks as often as it is told, by an interval of the shard.
    Ticks(u8, Duration),
    /// Waits for a message that comes after this time, or never.
    Waits(Due),
    /// A timeout on the shard's own core around a wait.
    TimesOut(Due, Due),
    /// Takes so many values of the shard's delay queue. `true` if it ends when the queue is empty.
    Takes(u8, bool),
    Panics,
    /// The closure that makes it runs a command on a value that is kept on the shard.
    Commands,
}

/// A command. Numbers of clients, shards and timers are taken modulo how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Command {
    pub(crate) client: u8,
    pub(crate) shard: u8,
    pub(crate) timer: u16,
    pub(crate) what: What,
}

/// What a command does, with the client, the shard and the timer that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    NewClient,
    DropClient,
    ForgetClient,
    Schedule(Planned),
    /// So many timers.
    ScheduleMany(u8, Due),
    Cancel(Mode),
    Reset(Due, Mode),
    CancelMany(u8, Mode),
    Remaining,
    /// A timeout of a task on a thread of its own, around a wait.
    Timeout(Due, Due),
    LocalSchedule(Planned),
    LocalMany(u8, Due),
    LocalCancel,
    LocalCancelMany(u8),
    LocalReset(Due),
    Spawn(Work),
    /// A command on a container of the shard.
    Contain(ContainerCommand),
    /// All containers of the shard are dropped, and others take their place.
    ReplaceContainers,
    /// So many sleeps of one task on the shard. The wake-up of the first drops all of them, and
    /// then panics if this is `true`.
    Tangle(Due, u8, bool),
    /// A sleep of a handle of the service, and two tasks that poll it.
    SharedSleep(SharedPlan),
    /// A timeout of a handle of this shard or of the service, around a wait of a task on a thread
    /// of its own.
    SharedTimeout(Option<u8>, Due, Due),
    /// Cancel and reset with a handle of another service; `true` if without replies.
    Foreign(bool),
    /// A step of a task, this many times.
    Steps(u8),
    Run(Duration),
    Stall(Duration),
    Leap(Duration),
    /// Whether the lanes of the shard are held from now on.
    Hold(bool),
    Kill,
    /// A shutdown, whose report is dropped unless a task waits for it.
    Shutdown(ShutdownPolicy, bool),
}

/// A command on the containers of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContainerCommand {
    QueueInsert(Due, Temper),
    /// Takes at most so many values.
    QueueTake(u8),
    QueueRemove(u8),
    QueueReset(u8, Due),
    QueueClear,
    KeyedInsert(u8, Due, Temper),
    KeyedReset(u8, Due),
    KeyedRemove(u8),
    KeyedClear,
    ScaledStart(Temper),
    ScaledReset(u8),
    ScaledCancel(u8),
    ScaledClear,
    /// The scale in quarters; `true` if another thread sets it.
    SetScale(u8, bool),
    /// An operation of the purgatory, with a bit for each of its keys, and how often these must be
    /// checked.
    Watch(Due, Temper, u8, u32),
    Check(u8),
    CancelForKey(u8),
    ClearOperations,
}

/// How many kinds of commands [`Plan::command`] chooses from.
const KINDS: usize = 48;
/// The commands on each container, and on all of them. Most histories use one or two of them, so
/// that they do not take the place of all others.
const CONTAINERS: [Range<usize>; 5] = [23..28, 28..32, 32..37, 37..42, 42..43];
/// Commands that end a shard or the service; a history without them is the rule.
const ENDS: [usize; 2] = [46, 47];

/// The random choices of one history. Each seed switches some kinds of commands off and makes
/// others frequent ("swarm testing", Groce and others, 2012).
struct Plan<'a> {
    rng: &'a mut Rng,
    /// The upper bounds of delays and stalls are powers of two of nanoseconds up to this one.
    bits_max: u32,
    calm: bool,
    /// Commands name one of so many timers, the last ones.
    timers: u16,
    load: Load,
}

/// What a history has more of than a shard can do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Whatever the weights give.
    Any,
    /// Timers that are late or due soon.
    Timers,
    /// Requests of one client.
    Requests,
}

impl Load {
    fn of(rng: &mut Rng) -> Self {
        match rng.u8(..16) {
            0 => Self::Timers,
            1 => Self::Requests,
            _ => Self::Any,
        }
    }
}

const YEAR: Duration = Duration::from_hours(365 * 24);

impl Plan<'_> {
    fn duration(&mut self) -> Duration {
        let bits = self.rng.u32(10..=self.bits_max);
        Duration::from_nanos(self.rng.u64(..1 << bits)).min(YEAR)
    }

    fn due(&mut self) -> Due {
        match self.rng.u8(..16) {
            0 => Due::In(Duration::ZERO),
            1 => Due::Never,
            2 => Due::Ago(self.duration()),
            3 => Due::In(Duration::MAX),
            _ => Due::In(self.duration()),
        }
    }

    fn due_of_reset(&mut self) -> Due {
        if self.rng.u8(..4) == 0 { Due::After(self.duration()) } else { self.due() }
    }

    fn temper(&mut self) -> Temper {
        match self.rng.u8(..8) {
            _ if self.calm => Temper::Calm,
            0 => Temper::PanicsWhenFired,
            1 => Temper::PanicsWhenDropped,
            2..4 => Temper::Reentrant,
            _ => Temper::Calm,
        }
    }

    fn mode(&mut self) -> Mode {
        [Mode::Awaited, Mode::Awaited, Mode::Dropped, Mode::Detached][self.rng.usize(..4)]
    }

    fn planned(&mut self) -> Planned {
        Planned { due: self.due(), temper: self.temper(), is_call: self.rng.bool() }
    }

    fn work(&mut self) -> Work {
        match self.rng.u8(..8) {
            0 => Work::Sleeps(self.due()),
            1 => Work::Ticks(self.rng.u8(..9), self.duration()),
            2 => Work::Waits(self.due()),
            3 => Work::TimesOut(self.due(), self.due()),
            4..6 => Work::Takes(self.rng.u8(..20), self.rng.bool()),
            6 => Work::Commands,
            _ => Work::Panics,
        }
    }

    fn container_command(&mut self, kind: usize, number: u8) -> ContainerCommand {
        use ContainerCommand as Is;
        match kind {
            23 => Is::QueueInsert(self.due(), self.temper()),
            24 => Is::QueueTake(self.rng.u8(..9)),
            25 => Is::QueueRemove(number),
            26 => Is::QueueClear,
            27 => Is::QueueReset(number, self.due()),
            28 => Is::KeyedInsert(number % 16, self.due(), self.temper()),
            29 => Is::KeyedReset(number % 16, self.due()),
            30 => Is::KeyedRemove(number % 16),
            31 => Is::KeyedClear,
            32 => Is::ScaledStart(self.temper()),
            33 => Is::ScaledReset(number),
            34 => Is::ScaledCancel(number),
            35 => Is::ScaledClear,
            36 => Is::SetScale(number % 5, self.rng.u8(..4) == 0),
            37 => {
                let (due, temper) = (self.due(), self.temper());
                Is::Watch(due, temper, self.rng.u8(..1 << KEYS), self.rng.u32(..4))
            }
            38 => Is::Check(number % KEYS),
            39 | 40 => Is::CancelForKey(number % KEYS),
            _ => Is::ClearOperations,
        }
    }

    fn shared_plan(&mut self, shard: u8) -> SharedPlan {
        let shard = self.rng.bool().then_some(shard);
        let is_on_shards = self.rng.u8(..3) == 0;
        let tasks = [(); 2].map(|()| (is_on_shards && self.rng.bool()).then(|| self.rng.u8(..)));
        let (due, pause_max, seed) = (self.due(), self.duration(), self.rng.u64(..));
        let is_taken_over = self.rng.bool();
        SharedPlan { shard, is_taken_over, tasks, due, pause_max, seed }
    }

    fn command(&mut self, kind: usize) -> Command {
        let (client, shard, timer) =
            (self.rng.u8(..), self.rng.u8(..), self.rng.u16(..self.timers));
        let what = match kind {
            0 => What::NewClient,
            1 => What::DropClient,
            2 => What::ForgetClient,
            3 => What::Schedule(self.planned()),
            4..=5 => What::ScheduleMany(self.rng.u8(..20), self.due()),
            6 => What::Cancel(self.mode()),
            7 => What::Reset(self.due_of_reset(), self.mode()),
            8 => What::CancelMany(self.rng.u8(..40), self.mode()),
            9 => What::Remaining,
            10 => What::Timeout(self.due(), self.due()),
            11 => What::LocalSchedule(self.planned()),
            12 => What::LocalMany(self.rng.u8(..20), self.due()),
            13 => What::LocalCancel,
            14 => What::LocalCancelMany(self.rng.u8(..40)),
            15 => What::LocalReset(self.due_of_reset()),
            16 => What::Spawn(self.work()),
            17 => What::Foreign(self.rng.bool()),
            18 if self.load != Load::Any => What::Steps(self.rng.u8(..4)),
            18 => What::Steps(self.rng.u8(..)),
            19 => What::Run(self.duration()),
            20 => What::Stall(self.duration()),
            21 => What::Leap(self.duration()),
            22 => What::Hold(self.rng.bool()),
            23..42 => What::Contain(self.container_command(kind, client)),
            42 => What::ReplaceContainers,
            43 => {
                let (due, count) = (self.due(), self.rng.u8(..5));
                What::Tangle(due, count, !self.calm && self.rng.bool())
            }
            44 => What::SharedSleep(self.shared_plan(shard)),
            45 => {
                let shard = self.rng.bool().then_some(shard);
                What::SharedTimeout(shard, self.due(), self.due())
            }
            46 => What::Kill,
            _ => {
                let all = [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];
                What::Shutdown(all[self.rng.usize(..3)], self.rng.bool())
            }
        };
        Command { client, shard, timer, what }
    }
}

/// The commands of a seed's history.
pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let bits_max = rng.u32(22..=55);
    let calm = rng.bool();
    let mut weights: Vec<u32> = (0..KINDS).map(|_| [0, 1, 4, 20][rng.usize(..4)]).collect();
    // Most commands need timers, and nothing happens while no task runs.
    weights[3] += 4;
    weights[11] += 4;
    weights[18] += 8;
    weights[19] += 8;
    for container in CONTAINERS {
        if rng.u8(..4) > 0 {
            weights[container].fill(0);
        }
    }
    for end in ENDS {
        weights[end] = weights[end].min(1) * u32::from(rng.u8(..4) == 0);
    }
    let load = Load::of(rng);
    let (mut bits_max, mut timers) = (bits_max, [2, 6, u16::MAX][rng.usize(..3)]);
    if load != Load::Any {
        weights.fill(0);
        let kinds: &[(usize, u32)] = match load {
            // Local schedules, cancels and resets, while the clock moves on.
            Load::Timers => &[(11, 20), (12, 6), (13, 4), (15, 4), (18, 30), (19, 2), (21, 12)],
            // Resets and cancels of a few timers, and few turns.
            _ => &[(3, 8), (6, 2), (7, 40), (18, 20), (19, 2)],
        };
        for (kind, weight) in kinds {
            weights[*kind] = *weight;
        }
        (bits_max, timers) = (24, timers.min(6));
    }
    let all: u32 = weights.iter().sum();
    let count = rng.usize(20..400);
    let mut plan = Plan { rng, bits_max, calm, timers, load };
    let mut commands = Vec::with_capacity(count);
    for _ in 0..count {
        let mut left = plan.rng.u32(..all);
        let kind = weights.iter().position(|weight| {
            let is_here = left < *weight;
            left = left.saturating_sub(*weight);
            is_here
        });
        commands.push(plan.command(kind.expect("the choice is below the sum of the weights")));
    }
    commands
}
