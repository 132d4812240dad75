//! `cudaDeviceProp`: all attributes of a GPU in one structure, whose layout differs between
//! versions of the library.

use std::ffi::c_int;

use super::call::{Result, initialized};
use crate::attribute;
use crate::boundary::calls;
use crate::c::Out;
use crate::machine::Device;
use crate::process;

/// A member of the structure.
#[derive(Clone, Copy)]
enum Field {
    Name,
    Uuid,
    /// The LUID of another operating system: eight bytes, and a mask.
    Luid,
    Memory,
    /// An attribute in four bytes.
    Int(c_int),
    /// An attribute in eight bytes.
    Size(c_int),
    /// This many zeros, for textures and surfaces, which do not exist.
    None(usize),
}

/// The structures that have a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Both,
    Twelve,
    Thirteen,
    /// All but the first structure of version 12, which is shorter.
    NotFirst,
}

/// The structures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    First,
    Twelve,
    Thirteen,
}

use Field::{Int, Luid, Memory, Name, None, Size, Uuid};
use In::{Both, NotFirst, Thirteen, Twelve};

/// The members in order. The numbers are those of attributes.
const FIELDS: &[(In, &[Field])] = &[
    (Both, &[Name, Uuid, Luid, Memory, Size(8), Int(12), Int(10), Size(11), Int(1)]),
    (Both, &[Int(2), Int(3), Int(4), Int(5), Int(6), Int(7)]),
    (Twelve, &[Int(13)]),
    (Both, &[Size(9), Int(75), Int(76), Size(14), Size(51)]),
    (Twelve, &[Int(15)]),
    (Both, &[Int(16)]),
    (Twelve, &[Int(17)]),
    (Both, &[Int(18), Int(19)]),
    (Twelve, &[Int(20), None(1)]),
    (Both, &[None(39), Size(30), Int(31), Int(32), Int(33), Int(34), Int(50), Int(35)]),
    (Both, &[Int(40), Int(41)]),
    (Twelve, &[Int(36)]),
    (Both, &[Int(37), Int(38), Int(108), Int(39), Int(78), Int(79), Int(80), Size(81)]),
    (Both, &[Int(82), Int(83), Int(84), Int(85), Int(86)]),
    (Twelve, &[Int(87)]),
    (Both, &[Int(88), Int(89), Int(90), Int(91), Int(95)]),
    (Twelve, &[Int(96)]),
    (Both, &[Size(97), Int(100), Int(101), Int(106), Int(109), Size(111)]),
    (NotFirst, &[Int(99), Int(112), Int(113), Int(114), Int(115), Int(116), Int(117)]),
    (NotFirst, &[Int(118), Int(119), Int(121), Int(125), Int(120), Int(129)]),
    (Thirteen, &[Int(130), Int(131), Int(133), Int(134), Int(139), Int(140), None(1)]),
];

impl Form {
    fn has(self, which: In) -> bool {
        match which {
            Both => true,
            Twelve => self != Self::Thirteen,
            NotFirst => self != Self::First,
            Thirteen => self == Self::Thirteen,
        }
    }

    /// The size of the structure.
    fn size(self) -> usize {
        match self {
            Self::First => 728,
            Self::Twelve => 1032,
            Self::Thirteen => 1008,
        }
    }
}

/// The bytes of a structure.
fn bytes(device: &Device, form: Form) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(form.size());
    let fields = FIELDS.iter().filter(|(which, _)| form.has(*which));
    for field in fields.flat_map(|(_, fields)| *fields) {
        match *field {
            Name => {
                let title = device.title();
                bytes.extend(&title.as_bytes()[..title.len().min(255)]);
                bytes.resize(256, 0);
            }
            Uuid => bytes.extend(device.uuid),
            Luid => bytes.extend([0; 12]),
            Memory => put(&mut bytes, &device.config.vram.to_ne_bytes()),
            Int(number) => put(&mut bytes, &attribute::of(device, number)?.to_ne_bytes()),
            Size(number) => {
                let value = i64::from(attribute::of(device, number)?);
                put(&mut bytes, &value.to_ne_bytes());
            }
            None(count) => bytes.resize(bytes.len() + 4 * count, 0),
        }
    }
    // The reserved fields.
    bytes.resize(form.size(), 0);
    Ok(bytes)
}

/// Adds a number, aligned as in C.
fn put(bytes: &mut Vec<u8>, number: &[u8]) {
    bytes.resize(bytes.len().next_multiple_of(number.len()), 0);
    bytes.extend(number);
}

fn fill(out: Out<u8>, device: c_int, form: Form) -> Result<()> {
    out.check()?;
    let bytes = bytes(process::get()?.device(device)?, form)?;
    for (index, byte) in bytes.into_iter().enumerate() {
        out.put_at(index, byte);
    }
    Ok(())
}

calls! { ONLY_12 by initialized:
    fn cudaGetDeviceProperties(out: Out<u8>, device: c_int) { fill(out, device, Form::First) }

    fn cudaGetDeviceProperties_v2(out: Out<u8>, device: c_int) { fill(out, device, Form::Twelve) }
}

mod thirteen {
    use crate::runtime::properties::{Form, Out, c_int, calls, fill, initialized};

    calls! { ONLY_13 by initialized:
        fn cudaGetDeviceProperties(out: Out<u8>, device: c_int) {
            fill(out, device, Form::Thirteen)
        }
    }
}
pub(super) use thirteen::ONLY_13;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine;

    #[test]
    fn members_have_the_offsets_of_the_headers() {
        let device = &machine::devices()[0];
        let int = |form: Form, at: usize| {
            let bytes = bytes(device, form).ok().expect("all attributes are known");
            assert_eq!(bytes.len(), form.size());
            i32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"))
        };
        let bus = i32::from(device.bdf.bus());
        // major, pciBusID, reservedSharedMemPerBlock, and hostRegisterSupported or the end.
        for (form, at) in [
            (Form::First, [360, 584, 720, 0]),
            (Form::Twelve, [360, 584, 720, 728]),
            (Form::Thirteen, [360, 568, 696, 704]),
        ] {
            assert_eq!((int(form, at[0]), int(form, at[1]), int(form, at[2])), (9, bus, 1024));
            assert!(at[3] == 0 || int(form, at[3]) == 1);
        }
        // gpuPciDeviceID
        assert_eq!(int(Form::Thirteen, 772).cast_unsigned(), machine::PCI_ID);
    }
}
