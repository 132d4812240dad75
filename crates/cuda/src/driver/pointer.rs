//! Attributes of pointers.

use std::ffi::c_int;

use crate::boundary::calls;
use crate::c::{In, Out};
use crate::pointer::{self, SYNC_MEMOPS};
use crate::process;
use crate::status::{Refusal, Status, invalid};
use std::sync::atomic::Ordering;

calls! { CALLS:
    fn cuPointerGetAttribute(data: Out<u8>, attribute: c_int, addr: u64) {
        data.check()?;
        let process = process::get()?;
        let region = process.space.find(addr);
        let region = region.ok_or_else(|| invalid(format!("{addr:#x} is not known to CUDA")))?;
        let value = pointer::attribute(process, &region, attribute, addr)?;
        value.put(data);
        Ok(())
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<c_int>, data: In<Out<u8>>, addr: u64) {
        let process = process::get()?;
        let region = process.space.find(addr);
        for index in 0..count as usize {
            let (attribute, data) = (attributes.get_at(index)?, data.get_at(index)?);
            data.check()?;
            let value = match &region {
                Some(region) => pointer::attribute(process, region, attribute, addr)
                    .or_else(|_| pointer::unknown(attribute))?,
                None => pointer::unknown(attribute)?,
            };
            value.put(data);
        }
        Ok(())
    }

    fn cuPointerSetAttribute(data: In<u8>, attribute: c_int, addr: u64) {
        let process = process::get()?;
        let value = data.get()?;
        let region = process.space.find(addr);
        let region = region.ok_or_else(|| invalid(format!("{addr:#x} is not known to CUDA")))?;
        if attribute != SYNC_MEMOPS {
            let what = format!("attribute {attribute} of a pointer cannot be set");
            return Err(Refusal::new(Status::InvalidValue, what));
        }
        region.sync_memops.store(value != 0, Ordering::Relaxed);
        Ok(())
    }
}
