//! Signals: creation, handlers, and waits for one of several. Operations on their values are in
//! [`crate::signal`].

use std::sync::Arc;

use umd::queue::{Progress, Queue, When};
use umd::wait::{end_of, wait_until};

use crate::boundary::{Calls, Function, calls};
use crate::c::{In, Out};
use crate::process;
use crate::signal::{Condition, Signal};
use crate::status::{Refusal, Result, Status, invalid};

/// Attributes of signals: only for GPUs, and for other processes.
const IPC: u64 = 2;
const ATTRIBUTES: u64 = 3;

/// A handler of the program: gets the value of a signal, and returns whether it is to be called
/// again.
type OnValue = extern "C" fn(value: i64, data: u64) -> bool;

fn create(value: i64, count: u32, agents: In<u64>, out: Out<u64>) -> Result<()> {
    let process = process::get()?;
    out.check()?;
    if count > 0 && agents.is_null() {
        return Err(invalid(format!("{count} consumers at null")));
    }
    for agent in agents.list(count as usize)? {
        process.agent(agent)?;
    }
    out.put(process.signals.add(|handle| Signal::new(handle, value)).handle)
}

fn condition(number: u32) -> Result<Condition> {
    Condition::of(number).ok_or_else(|| invalid(format!("there is no condition {number}")))
}

calls! { CALLS:
    fn hsa_signal_create(value: i64, count: u32, agents: In<u64>, out: Out<u64>) {
        create(value, count, agents, out)
    }

    fn hsa_amd_signal_create(
        value: i64,
        count: u32,
        agents: In<u64>,
        attributes: u64,
        out: Out<u64>,
    ) {
        if attributes & !ATTRIBUTES != 0 {
            return Err(invalid(format!("attributes {attributes:#x}, of {ATTRIBUTES:#x}")));
        }
        if attributes & IPC != 0 {
            return Err(Refusal::new(Status::ERROR, "signals of other processes are not served"));
        }
        create(value, count, agents, out)
    }

    fn hsa_signal_destroy(signal: u64) {
        let process = process::get()?;
        if signal == 0 {
            return Err(invalid("no signal"));
        }
        process.signal(signal)?;
        process.signals.remove(signal);
        Ok(())
    }

    fn hsa_amd_signal_value_pointer(signal: u64, out: Out<*mut i64>) {
        let process = process::get()?;
        out.check()?;
        out.put(process.signal(signal)?.place())
    }

    // A thread of the runtime calls the handler each time it finds that the condition holds.
    fn hsa_amd_signal_async_handler(
        signal: u64,
        number: u32,
        than: i64,
        act: Option<OnValue>,
        data: u64,
    ) {
        let process = process::get()?;
        let act = act.ok_or_else(|| invalid("there is no function to call: it is null"))?;
        let (signal, condition) = (process.signal(signal)?, condition(number)?);
        Arc::new(Queue::<Refusal>::default()).submit(When::Later, move || {
            // When nothing can change the signal any more, the wait for it ends.
            if process.signals.get(signal.handle).is_none() {
                return Ok(Progress::Done);
            }
            let value = signal.load();
            if condition.holds(value, than) && !act(value, data) {
                return Ok(Progress::Done);
            }
            Ok(Progress::Waiting)
        })
    }

    fn hsa_amd_async_function(act: Option<extern "C" fn(data: u64)>, data: u64) {
        process::get()?;
        let act = act.ok_or_else(|| invalid("there is no function to call: it is null"))?;
        Arc::new(Queue::<Refusal>::default()).submit(When::Later, move || {
            act(data);
            Ok(Progress::Done)
        })
    }
}

/// Waits until one of several conditions holds: returns its number, or all ones on a timeout.
extern "C" fn wait_any(
    count: u32,
    signals: In<u64>,
    conditions: In<u32>,
    values: In<i64>,
    timeout: u64,
    _hint: u32,
    out: Out<i64>,
) -> u32 {
    gpu::weather::operation("hsa_amd_signal_wait_any");
    let all = || -> Result<Vec<_>> {
        let process = process::get()?;
        (0..count as usize)
            .map(|index| {
                let signal = process.signal(signals.get_at(index)?)?;
                Ok((signal, condition(conditions.get_at(index)?)?, values.get_at(index)?))
            })
            .collect()
    };
    let Ok(all) = all() else { return u32::MAX };
    let mut found = None;
    wait_until(
        || {
            found = all.iter().enumerate().find_map(|(index, (signal, condition, than))| {
                let value = signal.load();
                condition.holds(value, *than).then_some((index, value))
            });
            found.is_some()
        },
        end_of(timeout),
    );
    let Some((index, value)) = found else { return u32::MAX };
    out.put_if(value);
    // CAST: less than `count`.
    index as u32
}

/// Functions that return no status.
pub(super) const WAITS: Calls = &[("hsa_amd_signal_wait_any", Function(wait_any as *const ()))];
