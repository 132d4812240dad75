//! Copies and fills.

use std::ffi::c_int;

use super::call::{Failure, INVALID_DIRECTION, INVALID_PITCH, Result, done, in_context};
use crate::boundary::calls;
use crate::c::{In, Out};
use crate::driver;
use crate::driver::copy::{Rows, and_wait, in_stream};

/// The direction of a copy: between host and device, or default. Only its range is checked: the
/// addresses determine the direction.
const DIRECTIONS: std::ops::RangeInclusive<c_int> = 0..=4;

pub(super) fn check(direction: c_int) -> Result<()> {
    if DIRECTIONS.contains(&direction) {
        Ok(())
    } else {
        Err(Failure::new(INVALID_DIRECTION, format!("direction {direction}")))
    }
}

fn rows(
    (dst, dst_pitch): (u64, usize),
    (src, src_pitch): (u64, usize),
    (width, height): (usize, usize),
    direction: c_int,
) -> Result<Rows> {
    check(direction)?;
    if width > dst_pitch || width > src_pitch {
        let what = format!("rows of {width} bytes, {dst_pitch} and {src_pitch} apart");
        return Err(Failure::new(INVALID_PITCH, what));
    }
    let [dst_pitch, src_pitch, width, height] =
        [dst_pitch, src_pitch, width, height].map(|size| size as u64);
    Ok(Rows { dst, dst_pitch, src, src_pitch, width, height })
}

calls! { CALLS by in_context:
    fn cudaMemcpy(dst: u64, src: u64, len: usize, direction: c_int) {
        check(direction)?;
        done(driver::copy::cuMemcpy(dst, src, len))
    }

    fn cudaMemcpyAsync(dst: u64, src: u64, len: usize, direction: c_int, stream: u64) {
        check(direction)?;
        done(driver::copy::cuMemcpyAsync(dst, src, len, stream))
    }

    // Addresses are valid in all contexts.
    fn cudaMemcpyPeer(dst: u64, to: c_int, src: u64, from: c_int, len: usize) {
        let process = crate::process::get()?;
        process.ordinal(to)?;
        process.ordinal(from)?;
        done(driver::copy::cuMemcpy(dst, src, len))
    }

    fn cudaMemcpyPeerAsync(dst: u64, to: c_int, src: u64, from: c_int, len: usize, stream: u64) {
        let process = crate::process::get()?;
        process.ordinal(to)?;
        process.ordinal(from)?;
        done(driver::copy::cuMemcpyAsync(dst, src, len, stream))
    }

    fn cudaMemcpy2D(
        dst: u64,
        dst_pitch: usize,
        src: u64,
        src_pitch: usize,
        width: usize,
        height: usize,
        direction: c_int,
    ) {
        let rows = rows((dst, dst_pitch), (src, src_pitch), (width, height), direction)?;
        Ok(and_wait(move |process| process.copy_rows(&rows))?)
    }

    fn cudaMemcpy2DAsync(
        dst: u64,
        dst_pitch: usize,
        src: u64,
        src_pitch: usize,
        width: usize,
        height: usize,
        direction: c_int,
        stream: u64,
    ) {
        let rows = rows((dst, dst_pitch), (src, src_pitch), (width, height), direction)?;
        Ok(in_stream(stream, move |process| process.copy_rows(&rows))?)
    }

    // CAST: a byte, as of memset.
    fn cudaMemset(dst: u64, value: c_int, count: usize) {
        done(driver::copy::cuMemsetD8_v2(dst, value as u8, count))
    }

    // CAST: as above.
    fn cudaMemsetAsync(dst: u64, value: c_int, count: usize, stream: u64) {
        done(driver::copy::cuMemsetD8Async(dst, value as u8, count, stream))
    }

    // CAST: as above.
    fn cudaMemset2D(dst: u64, pitch: usize, value: c_int, width: usize, height: usize) {
        done(driver::copy::cuMemsetD2D8_v2(dst, pitch, value as u8, width, height))
    }

    // CAST: as above.
    fn cudaMemset2DAsync(
        dst: u64,
        pitch: usize,
        value: c_int,
        width: usize,
        height: usize,
        stream: u64,
    ) {
        done(driver::copy::cuMemsetD2D8Async(dst, pitch, value as u8, width, height, stream))
    }
}

calls! { ONLY_12 by in_context:
    fn cudaMemcpyBatchAsync(
        dsts: In<u64>,
        srcs: In<u64>,
        sizes: In<usize>,
        count: usize,
        attributes: In<u8>,
        indices: In<usize>,
        attribute_count: usize,
        failed: Out<usize>,
        stream: u64,
    ) {
        done(driver::copy::cuMemcpyBatchAsync(
            dsts, srcs, sizes, count, attributes, indices, attribute_count, failed, stream,
        ))
    }
}

mod thirteen {
    use crate::runtime::memcpy::{In, calls, done, driver, in_context};

    calls! { ONLY_13 by in_context:
        fn cudaMemcpyBatchAsync(
            dsts: In<u64>,
            srcs: In<u64>,
            sizes: In<usize>,
            count: usize,
            attributes: In<u8>,
            indices: In<usize>,
            attribute_count: usize,
            stream: u64,
        ) {
            done(driver::copy::cuMemcpyBatchAsync_v2(
                dsts, srcs, sizes, count, attributes, indices, attribute_count, stream,
            ))
        }

        fn cudaMemcpyWithAttributesAsync(
            dst: u64,
            src: u64,
            len: usize,
            attributes: In<u8>,
            stream: u64,
        ) {
            done(driver::copy::cuMemcpyWithAttributesAsync(dst, src, len, attributes, stream))
        }
    }
}
pub(super) use thirteen::ONLY_13;
