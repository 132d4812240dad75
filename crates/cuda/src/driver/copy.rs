//! Copies and fills.

use std::ffi::c_int;

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::context;
use crate::process::{self, Process};
use crate::status::{Result, invalid, unsupported};
use crate::stream::{LEGACY, Progress, When};

/// Queues work in a stream.
pub(crate) fn in_stream(
    stream: u64,
    mut work: impl FnMut(&'static Process) -> Result<()> + Send + 'static,
) -> Result<()> {
    let process = process::get()?;
    let stream = process.stream(stream)?;
    process.submit(&stream, When::Now, move || work(process).map(|()| Progress::Done))
}

/// Queues work in a stream, and waits until it is done.
pub(crate) fn and_wait(
    work: impl FnMut(&'static Process) -> Result<()> + Send + 'static,
) -> Result<()> {
    in_stream(LEGACY, work)?;
    process::get()?.stream(LEGACY)?.synchronize()
}

fn copy(dst: u64, src: u64, len: usize) -> Result<()> {
    and_wait(move |process| process.copy(dst, src, len as u64))
}

fn copy_in(stream: u64, dst: u64, src: u64, len: usize) -> Result<()> {
    in_stream(stream, move |process| process.copy(dst, src, len as u64))
}

/// A rectangle of bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2d {
    src_x: usize,
    src_y: usize,
    src_kind: c_int,
    src_host: u64,
    src_device: u64,
    src_array: u64,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_kind: c_int,
    dst_host: u64,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

/// Kinds of memory: host, device, array, and unified (the address tells).
pub(crate) const HOST: c_int = 1;
pub(crate) const DEVICE: c_int = 2;
pub(crate) const UNIFIED: c_int = 4;

/// Rows: the first address of each side, the pitches, the bytes of a row, and the number of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) dst: u64,
    pub(crate) dst_pitch: u64,
    pub(crate) src: u64,
    pub(crate) src_pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Copy2d {
    fn rows(&self) -> Result<Rows> {
        let side = |kind, host, device, x: usize, y: usize, pitch: usize| {
            let base = match kind {
                HOST => host,
                DEVICE | UNIFIED => device,
                _ => return Err(unsupported("arrays")),
            };
            let pitch = if pitch == 0 { self.width } else { pitch };
            if x.checked_add(self.width).is_none_or(|end| end > pitch) {
                return Err(invalid(format!("rows of {} bytes, {pitch} apart", self.width)));
            }
            let skip =
                (y as u64).checked_mul(pitch as u64).and_then(|skip| skip.checked_add(x as u64));
            let start = skip.and_then(|skip| skip.checked_add(base));
            Ok((
                start.ok_or_else(|| invalid("rows beyond the end of the address space"))?,
                pitch as u64,
            ))
        };
        let (dst, dst_pitch) = side(
            self.dst_kind,
            self.dst_host,
            self.dst_device,
            self.dst_x,
            self.dst_y,
            self.dst_pitch,
        )?;
        let (src, src_pitch) = side(
            self.src_kind,
            self.src_host,
            self.src_device,
            self.src_x,
            self.src_y,
            self.src_pitch,
        )?;
        let (width, height) = (self.width as u64, self.height as u64);
        Ok(Rows { dst, dst_pitch, src, src_pitch, width, height })
    }
}

impl Process {
    /// Copies rows.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    pub(crate) fn copy_rows(&self, rows: &Rows) -> Result<()> {
        // All rows are copied, or none.
        self.check_steps(rows.dst, &[(rows.dst_pitch, rows.height)], rows.width)?;
        self.check_steps(rows.src, &[(rows.src_pitch, rows.height)], rows.width)?;
        for row in 0..rows.height {
            let at = |start: u64, pitch: u64| {
                let skip = pitch.checked_mul(row).and_then(|skip| start.checked_add(skip));
                skip.ok_or_else(|| invalid("rows beyond the end of the address space"))
            };
            self.copy(at(rows.dst, rows.dst_pitch)?, at(rows.src, rows.src_pitch)?, rows.width)?;
        }
        Ok(())
    }

    /// Checks that a shape is inside one range. The shape is `len` bytes, repeated for each pair of
    /// a stride and a count in `steps`.
    ///
    /// # Errors
    ///
    /// The shape extends beyond an allocation.
    pub(crate) fn check_steps(&self, start: u64, steps: &[(u64, u64)], len: u64) -> Result<()> {
        if len == 0 || steps.iter().any(|(_, times)| *times == 0) {
            return Ok(());
        }
        let skip = steps
            .iter()
            .try_fold(0_u64, |all, (step, times)| all.checked_add(step.checked_mul(times - 1)?));
        let span = skip.and_then(|skip| skip.checked_add(len));
        self.pieces(start, span.ok_or_else(|| invalid("rows beyond the end of the address space"))?)
            .map(drop)
    }

    /// Fills rows of values of `size` bytes.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub(crate) fn fill_rows(
        &self,
        dst: u64,
        pitch: usize,
        value: u32,
        size: u64,
        shape: [usize; 2],
    ) -> Result<()> {
        let [width, height] = shape.map(|side| side as u64);
        let pitch = pitch as u64;
        if width.checked_mul(size).is_none_or(|row| row > pitch && height > 1) {
            return Err(invalid(format!("rows of {width} values, {pitch} bytes apart")));
        }
        for row in 0..height {
            let at = pitch.checked_mul(row).and_then(|skip| dst.checked_add(skip));
            self.fill(
                at.ok_or_else(|| invalid("rows beyond the end of the address space"))?,
                value,
                size,
                width,
            )?;
        }
        Ok(())
    }
}

fn fill(dst: u64, value: u32, size: u64, count: usize) -> Result<()> {
    and_wait(move |process| process.fill(dst, value, size, count as u64))
}

fn fill_in(stream: u64, dst: u64, value: u32, size: u64, count: usize) -> Result<()> {
    in_stream(stream, move |process| process.fill(dst, value, size, count as u64))
}

fn fill_2d(dst: u64, pitch: usize, value: u32, size: u64, shape: [usize; 2]) -> Result<()> {
    and_wait(move |process| process.fill_rows(dst, pitch, value, size, shape))
}

fn fill_2d_in(
    stream: u64,
    dst: u64,
    pitch: usize,
    value: u32,
    size: u64,
    shape: [usize; 2],
) -> Result<()> {
    in_stream(stream, move |process| process.fill_rows(dst, pitch, value, size, shape))
}

fn batch(
    dsts: In<u64>,
    srcs: In<u64>,
    sizes: In<usize>,
    count: usize,
    failed: Out<usize>,
    stream: u64,
) -> Result<()> {
    if count == 0 || stream == 0 {
        return Err(invalid("a batch needs copies, and a stream with a handle"));
    }
    let (dsts, srcs, sizes) = (dsts.list(count)?, srcs.list(count)?, sizes.list(count)?);
    for (index, ((dst, src), size)) in dsts.into_iter().zip(srcs).zip(sizes).enumerate() {
        copy_in(stream, dst, src, size).inspect_err(|_| failed.put_if(index))?;
    }
    Ok(())
}

calls! { CALLS:
    fn cuMemcpy(dst: u64, src: u64, len: usize) {
        context::current()?;
        copy(dst, src, len)
    }

    fn cuMemcpyAsync(dst: u64, src: u64, len: usize, stream: u64) { copy_in(stream, dst, src, len) }

    fn cuMemcpyHtoD_v2(dst: u64, src: u64, len: usize) { copy(dst, src, len) }

    fn cuMemcpyDtoH_v2(dst: u64, src: u64, len: usize) { copy(dst, src, len) }

    fn cuMemcpyDtoD_v2(dst: u64, src: u64, len: usize) { copy(dst, src, len) }

    fn cuMemcpyHtoDAsync_v2(dst: u64, src: u64, len: usize, stream: u64) {
        copy_in(stream, dst, src, len)
    }

    fn cuMemcpyDtoHAsync_v2(dst: u64, src: u64, len: usize, stream: u64) {
        copy_in(stream, dst, src, len)
    }

    fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, stream: u64) {
        copy_in(stream, dst, src, len)
    }

    fn cuMemcpyPeer(dst: u64, to: u64, src: u64, from: u64, len: usize) {
        let process = process::get()?;
        process.contexts.find(to)?;
        process.contexts.find(from)?;
        copy(dst, src, len)
    }

    fn cuMemcpyPeerAsync(dst: u64, to: u64, src: u64, from: u64, len: usize, stream: u64) {
        let process = process::get()?;
        process.contexts.find(to)?;
        process.contexts.find(from)?;
        copy_in(stream, dst, src, len)
    }

    fn cuMemcpy2D_v2(what: In<Copy2d>) {
        let rows = what.get()?.rows()?;
        and_wait(move |process| process.copy_rows(&rows))
    }

    fn cuMemcpy2DUnaligned_v2(what: In<Copy2d>) {
        let rows = what.get()?.rows()?;
        and_wait(move |process| process.copy_rows(&rows))
    }

    fn cuMemcpy2DAsync_v2(what: In<Copy2d>, stream: u64) {
        let rows = what.get()?.rows()?;
        in_stream(stream, move |process| process.copy_rows(&rows))
    }

    fn cuMemcpyBatchAsync(
        dsts: In<u64>,
        srcs: In<u64>,
        sizes: In<usize>,
        count: usize,
        _attributes: In<u8>,
        _indices: In<usize>,
        _attribute_count: usize,
        failed: Out<usize>,
        stream: u64,
    ) {
        batch(dsts, srcs, sizes, count, failed, stream)
    }

    fn cuMemcpyBatchAsync_v2(
        dsts: In<u64>,
        srcs: In<u64>,
        sizes: In<usize>,
        count: usize,
        _attributes: In<u8>,
        _indices: In<usize>,
        _attribute_count: usize,
        stream: u64,
    ) {
        batch(dsts, srcs, sizes, count, Out::null(), stream)
    }

    fn cuMemcpyWithAttributesAsync(dst: u64, src: u64, len: usize, _attributes: In<u8>, stream: u64) {
        copy_in(stream, dst, src, len)
    }

    fn cuMemsetD8_v2(dst: u64, value: u8, count: usize) { fill(dst, value.into(), 1, count) }

    fn cuMemsetD16_v2(dst: u64, value: u16, count: usize) { fill(dst, value.into(), 2, count) }

    fn cuMemsetD32_v2(dst: u64, value: u32, count: usize) { fill(dst, value, 4, count) }

    fn cuMemsetD8Async(dst: u64, value: u8, count: usize, stream: u64) {
        fill_in(stream, dst, value.into(), 1, count)
    }

    fn cuMemsetD16Async(dst: u64, value: u16, count: usize, stream: u64) {
        fill_in(stream, dst, value.into(), 2, count)
    }

    fn cuMemsetD32Async(dst: u64, value: u32, count: usize, stream: u64) {
        fill_in(stream, dst, value, 4, count)
    }

    fn cuMemsetD2D8_v2(dst: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill_2d(dst, pitch, value.into(), 1, [width, height])
    }

    fn cuMemsetD2D16_v2(dst: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill_2d(dst, pitch, value.into(), 2, [width, height])
    }

    fn cuMemsetD2D32_v2(dst: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill_2d(dst, pitch, value, 4, [width, height])
    }

    fn cuMemsetD2D8Async(
        dst: u64,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: u64,
    ) {
        fill_2d_in(stream, dst, pitch, value.into(), 1, [width, height])
    }

    fn cuMemsetD2D16Async(
        dst: u64,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
        stream: u64,
    ) {
        fill_2d_in(stream, dst, pitch, value.into(), 2, [width, height])
    }

    fn cuMemsetD2D32Async(
        dst: u64,
        pitch: usize,
        value: u32,
        width: usize,
        height: usize,
        stream: u64,
    ) {
        fill_2d_in(stream, dst, pitch, value, 4, [width, height])
    }
}
