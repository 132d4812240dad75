//! A plan at work on the GPUs of one process: actions that the time and functions of a runtime
//! trigger.

use std::time::Duration;

use crate::gpu::GpuStrike;
use crate::injector::State;
use crate::plan::Plan;
use crate::report::Fired;

/// A plan at work on the GPUs of one process.
#[derive(Clone, Debug)]
pub struct Weather {
    seed: u64,
    states: Vec<State>,
    /// Rules that packets triggered, which belong to a NIC, by the number of the rule.
    of_packets: Vec<(u64, Fired)>,
}

impl Weather {
    /// Selects the rules of the plan that are for GPUs, not triggered by packets, and for this
    /// program, by its name in `/proc/PID/comm`.
    pub fn new(plan: &Plan, program: &str) -> Self {
        let rules = (0..).zip(&plan.rules).filter(|(_, rule)| {
            rule.is_of_gpus() && !rule.is_of_packets() && rule.is_for_program(program)
        });
        let states = rules.map(|(index, rule)| State::new(index, rule));
        Self { seed: plan.seed, states: states.collect(), of_packets: Vec::new() }
    }

    /// Whether no rule is left for this process.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Whether some rule names functions of a runtime.
    pub fn has_operations(&self) -> bool {
        self.states.iter().any(|state| state.rule.is_of_operations())
    }

    /// The actions before a function of a runtime runs, `now` after the first GPU was opened. Call
    /// this once for each call.
    pub fn operation(&mut self, now: Duration, name: &str) -> Vec<GpuStrike> {
        let seed = self.seed;
        let met = self
            .states
            .iter_mut()
            .filter(|state| state.rule.operation.include(name) && state.is_in_time(now));
        let hit = met.filter_map(|state| {
            // Every rule counts every call.
            state.is_chosen(seed, 0).then(|| state.strike_gpu(now, Some(name.to_owned())))?
        });
        hit.collect()
    }

    /// When the time triggers something next.
    pub fn deadline(&self) -> Option<Duration> {
        self.states.iter().filter_map(State::next_time).min()
    }

    /// The actions that are due now. Times that were missed count, but their action is done once.
    pub fn due(&mut self, now: Duration) -> Vec<GpuStrike> {
        let seed = self.seed;
        let due = self.states.iter_mut().filter_map(|state| {
            let is_due = |state: &State| state.next_time().is_some_and(|next| next <= now);
            let mut is_hit = state.rule.period().is_none() && is_due(state);
            while state.rule.period().is_some() && is_due(state) {
                is_hit |= state.is_chosen(seed, 0);
            }
            is_hit.then(|| state.strike_gpu(now, None))?
        });
        due.collect()
    }

    /// Notes that a packet triggered a rule on a NIC.
    pub fn struck(&mut self, now: Duration, strike: &GpuStrike) {
        let found = self
            .of_packets
            .iter()
            .position(|(rule, fired)| *rule == strike.rule && fired.name == strike.name);
        let place = found.unwrap_or_else(|| {
            self.of_packets.push((strike.rule, Fired::of_packet_elsewhere(strike)));
            self.of_packets.len() - 1
        });
        self.of_packets[place].1.fire(now, None);
    }

    /// Notes the effect of a rule so far.
    pub fn note(&mut self, strike: &GpuStrike, came: String) {
        let own = self
            .states
            .iter_mut()
            .find(|state| state.index + 1 == strike.rule && state.rule.name == strike.name);
        let others = self.of_packets.iter_mut();
        let fired = own.map(|state| &mut state.fired).or_else(|| {
            let mut fits =
                others.filter(|(rule, fired)| *rule == strike.rule && fired.name == strike.name);
            fits.next().map(|(_, fired)| fired)
        });
        if let Some(fired) = fired {
            fired.came = Some(came);
        }
    }

    /// What fired, rule by rule, and with what effect.
    pub fn report(&self) -> impl Iterator<Item = &Fired> {
        let own = self.states.iter().map(|state| &state.fired);
        own.chain(self.of_packets.iter().map(|(_, fired)| fired))
    }
}

impl State {
    /// When the time triggers it next.
    fn next_time(&self) -> Option<Duration> {
        if self.rule.is_of_operations() || self.is_used_up() {
            return None;
        }
        let from = self.rule.from.unwrap_or_default();
        match self.rule.period() {
            None => (self.fired.times == 0).then_some(from),
            Some(period) => {
                let next = from + period.checked_mul(u32::try_from(self.fired.met).ok()?)?;
                self.rule.until.is_none_or(|until| next <= until).then_some(next)
            }
        }
    }

    fn strike_gpu(&mut self, now: Duration, on: Option<String>) -> Option<GpuStrike> {
        self.fired.fire(now, on);
        self.rule.gpu_strike(self.index)
    }
}

#[cfg(test)]
mod tests;
