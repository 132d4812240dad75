//! The list of open devices.

use std::ffi::c_int;
use std::ptr;

use super::nic::Nic;
use crate::abi::boundary::control;
use crate::abi::errno;
use crate::abi::types::context::Context;

pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut Context {
    let report = |count: usize| {
        if !num_devices.is_null() {
            // SAFETY: contract: it is NULL or points to an int.
            unsafe { num_devices.write(count as c_int) };
        }
    };
    report(0);
    control("rdma_get_devices", ptr::null_mut(), || match Nic::all() {
        Ok(nics) => {
            let mut list: Vec<_> = nics.iter().map(|nic| nic.context).collect();
            report(list.len());
            list.push(ptr::null_mut());
            Box::into_raw(list.into_boxed_slice()).cast()
        }
        Err(failure) => {
            errno::set(failure.errno());
            ptr::null_mut()
        }
    })
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut Context) {
    if list.is_null() {
        return;
    }
    let mut length = 1;
    let mut end = list;
    // SAFETY: contract: the list is one of ours, and ends with NULL.
    while !unsafe { end.read() }.is_null() {
        length += 1;
        end = end.wrapping_add(1);
    }
    // SAFETY: it is the boxed slice of this length that `rdma_get_devices` gave away.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, length)) });
}
