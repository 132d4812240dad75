//! Fields that share a word with others.

/// `word` with the bits of `mask` all set or all clear.
pub(crate) const fn with_bit(word: u32, mask: u32, set: bool) -> u32 {
    if set { word | mask } else { word & !mask }
}

/// `word` with its low 24 bits replaced by those of `value`.
pub(crate) const fn with_low_24(word: u32, value: u32) -> u32 {
    word & 0xff00_0000 | value & 0x00ff_ffff
}

/// A property test over a raw header: each setter stores what its getter returns, does not change
/// what any other getter returns, and leaves alone every bit that is not its own, reserved ones
/// included.
#[cfg(test)]
macro_rules! setters_keep_their_neighbours {
    ($raw:ident, $len:expr; $($get:ident / $set:ident: $arg:ty => $make:expr;)*) => {
        proptest::proptest! {
            #[test]
            fn setters_keep_their_neighbours(
                bytes: [u8; $len],
                $($get in proptest::prelude::any::<$arg>(),)*
            ) {
                let before: $raw = zerocopy::transmute!(bytes);
                let fields = |raw: &$raw| {
                    vec![$((stringify!($get), format!("{:?}", raw.$get()))),*]
                };
                $({
                    let value = ($make)($get);
                    let mut raw = before;
                    raw.$set(value);
                    proptest::prop_assert_eq!(raw.$get(), value);
                    for (now, then) in fields(&raw).into_iter().zip(fields(&before)) {
                        if now.0 != stringify!($get) {
                            proptest::prop_assert_eq!(now, then);
                        }
                    }
                    // A lost bit that no getter returns would not come back with the old value.
                    raw.$set(before.$get());
                    proptest::prop_assert_eq!(raw, before);
                })*
            }
        }
    };
}

#[cfg(test)]
pub(crate) use setters_keep_their_neighbours;
