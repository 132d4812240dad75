//! The thread that acts on GPUs from outside the program. It starts with its first job.

use std::collections::VecDeque;
use std::thread::{Builder, Thread, park, park_timeout};
use std::time::Instant;

use threads::whole::Mutex;

/// The most jobs that may be queued, and the most that may wait for their time.
const MOST: usize = 1 << 10;

/// Something to do.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

struct Queue {
    jobs: VecDeque<Job>,
    /// Jobs that wait for their time.
    timed: Vec<(Instant, Job)>,
    /// The thread, and the process that has it: a forked child has no thread.
    thread: Option<(u32, Thread)>,
}

static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { jobs: VecDeque::new(), timed: Vec::new(), thread: None });

/// Queues a job for the thread, after earlier ones. False if it cannot: too many jobs wait, or
/// there is no thread.
pub(crate) fn submit(job: Job) -> bool {
    give(|queue| queue.jobs.len() < MOST, |queue| queue.jobs.push_back(job))
}

/// The same, but not before a certain time. `must`: however many jobs wait.
pub(crate) fn submit_at(time: Instant, job: Job, must: bool) -> bool {
    give(|queue| must || queue.timed.len() < MOST, |queue| queue.timed.push((time, job)))
}

fn give(has_room: impl FnOnce(&Queue) -> bool, add: impl FnOnce(&mut Queue)) -> bool {
    let mut queue = QUEUE.lock();
    if !has_room(&queue) {
        return false;
    }
    let Some(thread) = thread(&mut queue) else { return false };
    add(&mut queue);
    drop(queue);
    thread.unpark();
    true
}

/// The thread, which starts if this process has none.
fn thread(queue: &mut Queue) -> Option<Thread> {
    let here = std::process::id();
    if let Some((pid, thread)) = &queue.thread
        && *pid == here
    {
        return Some(thread.clone());
    }
    // A child does not take over the remaining jobs of its parent.
    std::mem::take(&mut queue.jobs).into_iter().for_each(std::mem::forget);
    std::mem::take(&mut queue.timed).into_iter().for_each(std::mem::forget);
    let builder = Builder::new().name("peerdma-weather".to_owned()).stack_size(256 << 10);
    let started = threads::start(builder, run).inspect_err(|error| {
        tracing::error!(target: "peerdma::gpu", "no thread to act on GPUs: {error}");
    });
    let thread = started.ok()?.thread().clone();
    queue.thread = Some((here, thread.clone()));
    Some(thread)
}

fn run() {
    let mut was_timed = false;
    loop {
        let mut queue = QUEUE.lock();
        let now = Instant::now();
        let next = (0..queue.timed.len()).min_by_key(|place| queue.timed[*place].0);
        let wait = next.map(|place| queue.timed[place].0 - now);
        // The two kinds take turns: if acts take longer than the time between them, a timed job is
        // always due, and a call would wait forever.
        let is_others_turn = was_timed && !queue.jobs.is_empty();
        let due = next.filter(|place| !is_others_turn && queue.timed[*place].0 <= now);
        was_timed = due.is_some();
        let job =
            due.map(|place| queue.timed.swap_remove(place).1).or_else(|| queue.jobs.pop_front());
        drop(queue);
        // A job that is added from here on ends the wait.
        match (job, wait) {
            (Some(job), _) => job(),
            (None, Some(wait)) => park_timeout(wait),
            (None, None) => park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    static IS_OVER: AtomicBool = AtomicBool::new(false);

    fn always_due() {
        if !IS_OVER.load(Ordering::Relaxed) {
            submit_at(Instant::now(), Box::new(always_due), true);
        }
    }

    #[test]
    fn jobs_that_are_always_due_delay_no_call_and_calls_delay_no_job() {
        submit_at(Instant::now(), Box::new(always_due), true);
        let (done, wait) = mpsc::channel();
        for _ in 0..100 {
            let done = done.clone();
            assert!(submit(Box::new(move || done.send("call").expect("somebody waits"))));
        }
        let timed = done.clone();
        let timed = move || timed.send("time").expect("somebody waits");
        submit_at(Instant::now(), Box::new(timed), true);
        let mut heard: Vec<_> = (0..101)
            .map(|_| wait.recv_timeout(Duration::from_secs(20)).expect("each has its turn"))
            .collect();
        IS_OVER.store(true, Ordering::Relaxed);
        heard.retain(|said| *said == "time");
        assert_eq!(heard.len(), 1);
    }
}
