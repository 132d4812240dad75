//! Streams.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::boundary::calls;
use crate::c::Out;
use crate::context;
use crate::process;
use crate::status::{Refusal, Result, Status, invalid};
use crate::stream::{LEGACY, NON_BLOCKING, PER_THREAD, Progress, Stream, When};

/// Priorities go from 0 to this.
pub(crate) const GREATEST_PRIORITY: c_int = -5;

/// A callback of a stream, which gets the status.
pub(crate) type Callback = Option<extern "C" fn(stream: u64, status: c_int, data: *mut c_void)>;

/// A host function that a stream calls.
pub(crate) type HostFunction = Option<extern "C" fn(data: *mut c_void)>;

/// The program's argument for a callback.
#[derive(Clone, Copy)]
struct Data(*mut c_void);

// SAFETY: it is not dereferenced here, and the program passed it for use on another thread.
unsafe impl Send for Data {}

impl Data {
    fn get(self) -> *mut c_void {
        self.0
    }
}

fn create(out: Out<u64>, flags: u32, priority: c_int) -> Result<()> {
    out.check()?;
    let process = process::get()?;
    let context = context::current()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(invalid(format!("flags {flags:#x} of a stream")));
    }
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let new = process.streams.add(|handle| Stream::new(handle, context.handle, flags, priority));
    out.put(new.handle)
}

fn is_fixed(stream: u64) -> bool {
    [0, LEGACY, PER_THREAD].contains(&stream)
}

calls! { CALLS:
    fn cuStreamCreate(out: Out<u64>, flags: u32) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: c_int) {
        create(out, flags, priority)
    }

    // Queued work still runs.
    fn cuStreamDestroy_v2(stream: u64) {
        let process = process::get()?;
        if is_fixed(stream) {
            return Err(Refusal::new(Status::InvalidHandle, "the program did not create this stream"));
        }
        process.stream(stream)?;
        process.streams.remove(stream);
        Ok(())
    }

    fn cuStreamQuery(stream: u64) {
        let process = process::get()?;
        if process.stream(stream)?.is_idle() {
            Ok(())
        } else {
            Err(Refusal::new(Status::NotReady, "the stream has work to do"))
        }
    }

    fn cuStreamSynchronize(stream: u64) {
        process::get()?.stream(stream)?.synchronize()
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) {
        let process = process::get()?;
        if flags & !1 != 0 {
            return Err(invalid(format!("flags {flags:#x}")));
        }
        process.delay(&process.event(event)?, &process.stream(stream)?)
    }

    fn cuStreamAddCallback(stream: u64, callback: Callback, data: *mut c_void, flags: u32) {
        let process = process::get()?;
        let callback = callback.ok_or_else(|| invalid("no callback"))?;
        if flags != 0 {
            return Err(invalid(format!("flags {flags:#x}: must be 0")));
        }
        let (data, handle) = (Data(data), stream);
        process.submit(&process.stream(stream)?, When::Later, move || {
            callback(handle, 0, data.get());
            Ok(Progress::Done)
        })
    }

    fn cuLaunchHostFunc(stream: u64, function: HostFunction, data: *mut c_void) {
        let process = process::get()?;
        let function = function.ok_or_else(|| invalid("no function"))?;
        let data = Data(data);
        process.submit(&process.stream(stream)?, When::Later, move || {
            function(data.get());
            Ok(Progress::Done)
        })
    }

    fn cuStreamGetFlags(stream: u64, flags: Out<u32>) {
        flags.put(process::get()?.stream(stream)?.flags)
    }

    fn cuStreamGetPriority(stream: u64, priority: Out<c_int>) {
        priority.put(process::get()?.stream(stream)?.priority)
    }

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) {
        context.put(process::get()?.stream(stream)?.context)
    }

    fn cuStreamGetId(stream: u64, id: Out<u64>) {
        let found = process::get()?.stream(stream)?;
        // Each context has its own legacy default stream.
        id.put(if found.handle == LEGACY { found.context | 1 } else { found.handle })
    }

    fn cuStreamGetDevice(stream: u64, device: Out<c_int>) {
        let process = process::get()?;
        let context = process.contexts.find(process.stream(stream)?.context)?;
        // CAST: there are few GPUs.
        device.put(context.device as c_int)
    }

    fn cuStreamIsCapturing(stream: u64, status: Out<c_int>) {
        process::get()?.stream(stream)?;
        status.put(0)
    }

    fn cuStreamGetCaptureInfo(stream: u64, status: Out<c_int>, _id: Out<u64>) {
        process::get()?.stream(stream)?;
        status.put(0)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: u64,
        status: Out<c_int>,
        _id: Out<u64>,
        _graph: Out<u64>,
        _nodes: Out<u64>,
        _count: Out<usize>,
    ) {
        process::get()?.stream(stream)?;
        status.put(0)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: u64,
        status: Out<c_int>,
        _id: Out<u64>,
        _graph: Out<u64>,
        _nodes: Out<u64>,
        _edges: Out<u64>,
        _count: Out<usize>,
    ) {
        process::get()?.stream(stream)?;
        status.put(0)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        process::get()?;
        mode.check()
    }

    fn cuStreamCopyAttributes(to: u64, from: u64) {
        let process = process::get()?;
        process.stream(to)?;
        process.stream(from).map(|_: Arc<Stream>| ())
    }
}
