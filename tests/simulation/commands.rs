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
    /// Takes so many values of the shard's delay queue. `all` if it ends when the queue is empty.
    Takes {
        count: u8,
        all: bool,
    },
    Panics,
    /// The closure that makes it runs a command on a value that is kept on the shard.
    Commands,
}

/// A command. Numbers of clients, shards and timers are taken modulo how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    NewClient,
    DropClient(u8),
    ForgetClient(u8),
    Schedule {
        client: u8,
        shard: u8,
        due: Due,
        temper: Temper,
        is_call: bool,
    },
    ScheduleMany {
        client: u8,
        shard: u8,
        count: u8,
        due: Due,
    },
    Cancel {
        client: u8,
        timer: u16,
        mode: Mode,
    },
    Reset {
        client: u8,
        timer: u16,
        due: Due,
        mode: Mode,
    },
    CancelMany {
        client: u8,
        timer: u16,
        count: u8,
        mode: Mode,
    },
    Remaining {
        client: u8,
        timer: u16,
    },
    /// A timeout of a task on a thread of its own.
    Timeout {
        client: u8,
        shard: u8,
        due: Due,
        work: Due,
    },
    LocalSchedule {
        shard: u8,
        due: Due,
        temper: Temper,
        is_call: bool,
    },
    LocalMany {
        shard: u8,
        count: u8,
        due: Due,
    },
    LocalCancel {
        shard: u8,
        timer: u16,
    },
    LocalCancelMany {
        shard: u8,
        timer: u16,
        count: u8,
    },
    LocalReset {
        shard: u8,
        timer: u16,
        due: Due,
    },
    Spawn {
        shard: u8,
        work: Work,
    },
    /// A command on a container of a shard.
    Contain {
        shard: u8,
        command: ContainerCommand,
    },
    /// All containers of a shard are dropped, and others take their place.
    ReplaceContainers {
        shard: u8,
    },
    /// Sleeps of one task on a shard. The wake-up of the first drops all of them.
    Tangle {
        shard: u8,
        due: Due,
        count: u8,
        panics: bool,
    },
    /// A sleep of a handle of the service, and two tasks that poll it.
    SharedSleep(SharedPlan),
    /// A timeout of a handle, of a task on a thread of its own.
    SharedTimeout {
        shard: Option<u8>,
        due: Due,
        work: Due,
    },
    /// Cancel and reset with a handle of another service.
    Foreign {
        client: u8,
        shard: u8,
        detached: bool,
    },
    /// A step of a task, this many times.
    Steps(u8),
    Run(Duration),
    Stall {
        shard: u8,
        stall: Duration,
    },
    Leap(Duration),
    Hold {
        shard: u8,
        holds: bool,
    },
    Kill(u8),
    /// A shutdown, whose report is dropped unless a task waits for it.
    Shutdown {
        policy: ShutdownPolicy,
        waits: bool,
    },
}

/// A command on the containers of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContainerCommand {
    /// Commands on the delay queue of the shard.
    QueueInsert {
        due: Due,
        temper: Temper,
    },
    QueueTake {
        max: u8,
    },
    QueueRemove {
        value: u8,
    },
    QueueReset {
        value: u8,
        due: Due,
    },
    QueueClear,
    /// Commands on the keyed timers of the shard.
    KeyedInsert {
        key: u8,
        due: Due,
        temper: Temper,
    },
    KeyedReset {
        key: u8,
        due: Due,
    },
    KeyedRemove {
        key: u8,
    },
    KeyedClear,
    /// Commands on the scaled timeouts of the shard.
    ScaledStart {
        temper: Temper,
    },
    ScaledReset {
        timeout: u8,
    },
    ScaledCancel {
        timeout: u8,
    },
    ScaledClear,
    SetScale {
        quarters: u8,
        is_remote: bool,
    },
    /// Commands on the purgatory of the shard. `keys` has a bit for each key.
    Watch {
        due: Due,
        temper: Temper,
        keys: u8,
        times: u32,
    },
    Check {
        key: u8,
    },
    CancelForKey {
        key: u8,
    },
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

    fn work(&mut self) -> Work {
        match self.rng.u8(..8) {
            0 => Work::Sleeps(self.due()),
            1 => Work::Ticks(self.rng.u8(..9), self.duration()),
            2 => Work::Waits(self.due()),
            3 => Work::TimesOut(self.due(), self.due()),
            4..6 => Work::Takes { count: self.rng.u8(..20), all: self.rng.bool() },
            6 => Work::Commands,
            _ => Work::Panics,
        }
    }

    fn container_command(&mut self, kind: usize, number: u8) -> ContainerCommand {
        match kind {
            23 => ContainerCommand::QueueInsert { due: self.due(), temper: self.temper() },
            24 => ContainerCommand::QueueTake { max: self.rng.u8(..9) },
            25 => ContainerCommand::QueueRemove { value: number },
            26 => ContainerCommand::QueueClear,
            27 => ContainerCommand::QueueReset { value: number, due: self.due() },
            28 => {
                let (due, temper) = (self.due(), self.temper());
                ContainerCommand::KeyedInsert { key: number % 16, due, temper }
            }
            29 => ContainerCommand::KeyedReset { key: number % 16, due: self.due() },
            30 => ContainerCommand::KeyedRemove { key: number % 16 },
            31 => ContainerCommand::KeyedClear,
            32 => ContainerCommand::ScaledStart { temper: self.temper() },
            33 => ContainerCommand::ScaledReset { timeout: number },
            34 => ContainerCommand::ScaledCancel { timeout: number },
            35 => ContainerCommand::ScaledClear,
            36 => ContainerCommand::SetScale {
                quarters: number % 5,
                is_remote: self.rng.u8(..4) == 0,
            },
            37 => {
                let (due, temper) = (self.due(), self.temper());
                let (keys, times) = (self.rng.u8(..1 << KEYS), self.rng.u32(..4));
                ContainerCommand::Watch { due, temper, keys, times }
            }
            38 => ContainerCommand::Check { key: number % KEYS },
            39 | 40 => ContainerCommand::CancelForKey { key: number % KEYS },
            _ => ContainerCommand::ClearOperations,
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

    #[allow(clippy::too_many_lines, reason = "a table of the commands")]
    fn command(&mut self, kind: usize) -> Command {
        let (client, shard, timer) =
            (self.rng.u8(..), self.rng.u8(..), self.rng.u16(..self.timers));
        match kind {
            0 => Command::NewClient,
            1 => Command::DropClient(client),
            2 => Command::ForgetClient(client),
            3 => {
                let (due, temper) = (self.due(), self.temper());
                Command::Schedule { client, shard, due, temper, is_call: self.rng.bool() }
            }
            4..=5 => {
                let count = self.rng.u8(..20);
                Command::ScheduleMany { client, shard, count, due: self.due() }
            }
            6 => Command::Cancel { client, timer, mode: self.mode() },
            7 => {
                let due = self.due_of_reset();
                Command::Reset { client, timer, due, mode: self.mode() }
            }
            8 => {
                let count = self.rng.u8(..40);
                Command::CancelMany { client, timer, count, mode: self.mode() }
            }
            9 => Command::Remaining { client, timer },
            10 => Command::Timeout { client, shard, due: self.due(), work: self.due() },
            11 => {
                let (due, temper) = (self.due(), self.temper());
                Command::LocalSchedule { shard, due, temper, is_call: self.rng.bool() }
            }
            12 => Command::LocalMany { shard, count: self.rng.u8(..20), due: self.due() },
            13 => Command::LocalCancel { shard, timer },
            14 => Command::LocalCancelMany { shard, timer, count: self.rng.u8(..40) },
            15 => Command::LocalReset { shard, timer, due: self.due_of_reset() },
            16 => Command::Spawn { shard, work: self.work() },
            17 => Command::Foreign { client, shard, detached: self.rng.bool() },
            18 if self.load != Load::Any => Command::Steps(self.rng.u8(..4)),
            18 => Command::Steps(self.rng.u8(..)),
            19 => Command::Run(self.duration()),
            20 => Command::Stall { shard, stall: self.duration() },
            21 => Command::Leap(self.duration()),
            22 => Command::Hold { shard, holds: self.rng.bool() },
            23..42 => Command::Contain { shard, command: self.container_command(kind, client) },
            42 => Command::ReplaceContainers { shard },
            43 => {
                let (due, count) = (self.due(), self.rng.u8(..5));
                Command::Tangle { shard, due, count, panics: !self.calm && self.rng.bool() }
            }
            44 => Command::SharedSleep(self.shared_plan(shard)),
            45 => {
                let shard = self.rng.bool().then_some(shard);
                Command::SharedTimeout { shard, due: self.due(), work: self.due() }
            }
            46 => Command::Kill(shard),
            _ => {
                let all = [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];
                Command::Shutdown { policy: all[self.rng.usize(..3)], waits: self.rng.bool() }
            }
        }
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
