//! The requests of a queue that have not ended, as slices.
//!
//! Requests of a queue overlap, and slices of a track must nest. So a queue has several tracks of
//! one name, its *lanes*, and a request has a lane to itself until it ends. A queue of hundreds of
//! receives would fill the screen: a request that finds no lane gets one when it is among the first
//! again.

use std::collections::VecDeque;

use perfetto::{Kind, Trace};

use super::names::{Arg, Category};

/// The most lanes of a queue.
const MAX_LANES: u64 = 32;

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// The number by which its events are known to belong together.
    pub(super) flow: u64,
    pub(super) wr_id: u64,
    pub(super) name: u64,
    pub(super) bytes: u64,
    pub(super) posted: u64,
    /// Its track, if it has a lane.
    pub(super) lane: Option<u64>,
}

/// A queue. Those that have lanes come first.
#[derive(Debug)]
pub(super) struct Queue {
    track: u64,
    name: &'static str,
    open: VecDeque<Open>,
    in_lanes: usize,
    free: Vec<u64>,
    lanes: u64,
}

impl Queue {
    /// An empty queue below a track.
    pub(super) fn new(track: u64, name: &'static str) -> Self {
        Self { track, name, open: VecDeque::new(), in_lanes: 0, free: Vec::new(), lanes: 0 }
    }

    /// A request was posted.
    pub(super) fn post(&mut self, trace: &mut Trace, request: Open) {
        self.open.push_back(request);
        self.fill(trace, request.posted);
    }

    /// Gives lanes to requests that have none, as far as there are any.
    fn fill(&mut self, trace: &mut Trace, now: u64) {
        while self.in_lanes < self.open.len() {
            let lane = match self.free.pop() {
                Some(lane) => lane,
                None if self.lanes < MAX_LANES => {
                    self.lanes += 1;
                    trace.track(self.track, self.name, self.lanes)
                }
                None => return,
            };
            let request = &mut self.open[self.in_lanes];
            self.in_lanes += 1;
            request.lane = Some(lane);
            let mut event = trace.event(now, Kind::Begin, lane, request.name);
            event
                .category(Category::Request as u64)
                .flow(request.flow)
                .correlation(request.flow)
                .hex(Arg::WrId as u64, request.wr_id)
                .number(Arg::Bytes as u64, request.bytes);
            if now > request.posted {
                event.number(Arg::Waited as u64, now - request.posted);
            }
        }
    }

    /// The `behind`-th request from the end, from 1.
    pub(super) fn behind(&self, behind: usize) -> Option<&Open> {
        self.open.get(self.open.len().checked_sub(behind)?)
    }

    /// The oldest request of this `wr_id` ended, with a status by its number as an argument.
    pub(super) fn end(
        &mut self,
        trace: &mut Trace,
        wr_id: u64,
        now: u64,
        status: u64,
    ) -> Option<Open> {
        let index = self.open.iter().position(|open| open.wr_id == wr_id)?;
        self.end_at(index, trace, now, status)
    }

    /// The oldest request ended.
    pub(super) fn end_first(&mut self, trace: &mut Trace, now: u64, status: u64) {
        self.end_at(0, trace, now, status);
    }

    fn end_at(&mut self, index: usize, trace: &mut Trace, now: u64, status: u64) -> Option<Open> {
        let request = self.open.remove(index)?;
        if let Some(lane) = request.lane {
            trace.event(now, Kind::End, lane, 0).word(Arg::Status as u64, status);
            self.in_lanes -= 1;
            self.free.push(lane);
            self.fill(trace, now);
        }
        Some(request)
    }

    /// Every request ended, without a completion.
    pub(super) fn end_all(self, trace: &mut Trace, now: u64, why: &str) {
        for request in self.open {
            if let Some(lane) = request.lane {
                trace.event(now, Kind::End, lane, 0).text(Arg::Status as u64, why);
            }
        }
    }
}
