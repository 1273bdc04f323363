//! A kept container on every host, used by the tasks of a multi-thread runtime.

use super::*;

const TASKS: u32 = 4;
const EACH: u32 = 200;

#[test]
fn keyed_jobs_of_many_threads_expire_or_are_removed_exactly_once() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(TASKS as usize).build().unwrap();
    for (host, running) in Running::<u32>::each(Host::all(), 2) {
        let (sender, due) = mpsc::channel();
        let make = move |timers: &Timers<u32>| {
            KeyedTimers::<u32, u32>::new(timers, move |job, _| sender.send(job.value).unwrap())
        };
        let jobs = running.service.handle().on(SHARD).keep(make).unwrap().wait().unwrap();
        let work = |task: u32| {
            let jobs = jobs.clone();
            async move {
                let mut removed = 0;
                for number in task * EACH..(task + 1) * EACH {
                    let delay = if number % 2 == 0 { ms(2) } else { FAR };
                    let insert = jobs.run(move |jobs| jobs.insert(number, number, delay).is_ok());
                    assert_eq!(insert.await, Ok(true), "{host:?}");
                    if number % 4 == 1 {
                        let remove = jobs.run(move |jobs| jobs.remove(&number).is_some());
                        removed += u32::from(remove.await.unwrap());
                    } else if number % 4 == 3 {
                        let reset = jobs.run(move |jobs| jobs.reset(&number, ms(1)));
                        assert_eq!(reset.await, Ok(true), "{host:?}");
                    }
                }
                removed
            }
        };
        let tasks: Vec<_> = (0..TASKS).map(|task| runtime.spawn(work(task))).collect();
        let removed: u32 = tasks.into_iter().map(|task| block_on(task).unwrap()).sum();
        assert_eq!(removed, TASKS * EACH / 4, "{host:?}");
        let all = 0..TASKS * EACH - removed;
        let fired = sorted(all.map(|_| due.recv_timeout(PATIENCE).unwrap()));
        let expected = (0..TASKS * EACH).filter(|number| number % 4 != 1);
        assert!(fired.into_iter().eq(expected), "{host:?}");
        assert_eq!(block_on(jobs.run(KeyedTimers::len)), Ok(0), "{host:?}");
    }
}
