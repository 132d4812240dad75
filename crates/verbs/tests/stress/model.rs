//! The values that the bytes of a buffer may have.

/// The values that one byte may have: up to three, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Byte {
    values: [u8; 3],
    /// How many of them; 0 stands for any value at all.
    count: u8,
}

impl Byte {
    const ANY: Self = Self { values: [0; 3], count: 0 };

    const fn sure(value: u8) -> Self {
        Self { values: [value; 3], count: 1 }
    }

    fn known(&self) -> &[u8] {
        &self.values[..usize::from(self.count)]
    }

    fn may_be(&self, value: u8) -> bool {
        self.count == 0 || self.known().contains(&value)
    }

    fn or(self, other: Self) -> Self {
        if self.count == 0 || other.count == 0 {
            return Self::ANY;
        }
        let mut all = self;
        for value in other.known() {
            if all.may_be(*value) {
                continue;
            }
            if all.count == 3 {
                return Self::ANY;
            }
            all.values[usize::from(all.count)] = *value;
            all.count += 1;
        }
        all
    }
}

/// A buffer's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Model(Vec<Byte>);

impl Model {
    /// Memory that was never written.
    pub(crate) fn zeros(size: u64) -> Self {
        Self(vec![Byte::sure(0); size as usize])
    }

    pub(crate) fn part(&self, at: u64, len: u64) -> Vec<Byte> {
        self.0[at as usize..][..len as usize].to_vec()
    }

    /// These bytes were written there.
    pub(crate) fn put(&mut self, at: u64, bytes: &[Byte]) {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn put_sure(&mut self, at: u64, bytes: &[u8]) {
        for (model, byte) in self.0[at as usize..].iter_mut().zip(bytes) {
            *model = Byte::sure(*byte);
        }
    }

    /// Each of these bytes may or may not have been written there.
    pub(crate) fn may_put(&mut self, at: u64, bytes: &[Byte]) {
        for (model, byte) in self.0[at as usize..].iter_mut().zip(bytes) {
            *model = model.or(*byte);
        }
    }

    /// Nothing is known about some bytes.
    pub(crate) fn lose(&mut self, at: u64, len: u64) {
        self.0[at as usize..][..len as usize].fill(Byte::ANY);
    }

    /// Everything may have been cleared.
    pub(crate) fn may_clear(&mut self) {
        self.0.iter_mut().for_each(|byte| *byte = byte.or(Byte::sure(0)));
    }

    /// The eight bytes at `at`, if they are known.
    pub(crate) fn word(&self, at: u64) -> Option<u64> {
        let bytes = &self.0[at as usize..][..8];
        let sure = bytes.iter().all(|byte| byte.count == 1);
        sure.then(|| u64::from_ne_bytes(std::array::from_fn(|n| bytes[n].values[0])))
    }

    /// Compares, and takes the bytes as known from then on. Returns the first byte that has a wrong
    /// value.
    pub(crate) fn settle(&mut self, seen: &[u8]) -> Result<(), String> {
        let wrong = self.0.iter().zip(seen).position(|(byte, seen)| !byte.may_be(*seen));
        if let Some(at) = wrong {
            let count = self.0.iter().zip(seen).filter(|(byte, seen)| !byte.may_be(**seen)).count();
            let model = self.0[at].known();
            return Err(format!(
                "byte {at} is {}, not one of {model:?}; {count} are wrong",
                seen[at]
            ));
        }
        self.put_sure(0, seen);
        Ok(())
    }
}
