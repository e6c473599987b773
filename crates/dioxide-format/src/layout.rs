//! The declarative table that drives parse and encode of every fixed-size structure.
//!
//! For: one place per structure that states offset, disk name and width of each field. Not for:
//! meaning, validation or variable-length parts; those live above.
//!
//! Invariant, checked when the crate is compiled: the fields of a table are in order and cover
//! every byte exactly once, reserved bytes being fields too. Hence `encode(parse(x)) == x`.
//!
//! Rejected: `#[repr(C)]` structures with a cast (zerocopy). It would save a copy of at most
//! 1 KiB per structure, and would let byte order, padding and alignment leak into the types.

/// How one field is read and written. Implemented by the width markers below and by arrays of them.
pub trait Field {
    /// What the field is in memory.
    type Value;
    /// Bytes on disk.
    const SIZE: usize;
    /// Reads the field. `bytes` has exactly `SIZE` bytes.
    fn get(bytes: &[u8]) -> Self::Value;
    /// Writes the field. `bytes` has exactly `SIZE` bytes.
    fn put(value: &Self::Value, bytes: &mut [u8]);
}

macro_rules! scalar_field {
    ($marker:ident, $value:ty, $from:ident, $to:ident) => {
        #[doc = concat!("Marker of a `", stringify!($value), "`; `", stringify!($from), "` gives its byte order.")]
        #[allow(non_camel_case_types)]
        pub struct $marker;
        impl Field for $marker {
            type Value = $value;
            const SIZE: usize = size_of::<$value>();
            #[inline]
            fn get(bytes: &[u8]) -> $value {
                let mut raw = [0; size_of::<$value>()];
                raw.copy_from_slice(bytes);
                <$value>::$from(raw)
            }
            #[inline]
            fn put(value: &$value, bytes: &mut [u8]) {
                bytes.copy_from_slice(&value.$to());
            }
        }
    };
}

scalar_field!(byte, u8, from_le_bytes, to_le_bytes);
scalar_field!(le16, u16, from_le_bytes, to_le_bytes);
scalar_field!(le32, u32, from_le_bytes, to_le_bytes);
scalar_field!(le64, u64, from_le_bytes, to_le_bytes);
scalar_field!(be16, u16, from_be_bytes, to_be_bytes);
scalar_field!(be32, u32, from_be_bytes, to_be_bytes);
scalar_field!(be64, u64, from_be_bytes, to_be_bytes);

impl<T: Field, const N: usize> Field for [T; N] {
    type Value = [T::Value; N];
    const SIZE: usize = T::SIZE * N;
    fn get(bytes: &[u8]) -> Self::Value {
        std::array::from_fn(|i| T::get(&bytes[i * T::SIZE..(i + 1) * T::SIZE]))
    }
    fn put(value: &Self::Value, bytes: &mut [u8]) {
        for (value, bytes) in value.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            T::put(value, bytes);
        }
    }
}

/// Defines a structure from its layout table; see the module documentation.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$size:literal] = $structure:literal {
            $( $off:literal $field:ident : $kind:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $(
                #[doc = concat!("At byte ", stringify!($off), ": `", stringify!($kind), "`.")]
                pub $field: <$kind as $crate::layout::Field>::Value,
            )*
        }

        const _: () = {
            let mut at = 0;
            $(
                assert!(at == $off, concat!(stringify!($name), ".", stringify!($field)));
                at += <$kind as $crate::layout::Field>::SIZE;
            )*
            assert!(at == $size, concat!(stringify!($name), " is not covered to its end"));
        };

        #[allow(dead_code)]
        impl $name {
            /// Bytes on disk.
            pub const SIZE: usize = $size;

            /// The structure whose every byte is zero.
            pub fn zeroed() -> Self {
                Self::from_array(&[0; $size])
            }

            /// Reads the structure from its exact bytes.
            #[inline]
            pub fn from_array(bytes: &[u8; $size]) -> Self {
                Self {
                    $( $field: <$kind as $crate::layout::Field>::get(
                        &bytes[$off..$off + <$kind as $crate::layout::Field>::SIZE]), )*
                }
            }

            /// Reads the structure from the start of `bytes`; nothing is judged but the length.
            ///
            /// # Errors
            /// `TooShort` when `bytes` is shorter than the structure.
            #[inline]
            pub fn parse(bytes: &[u8]) -> $crate::Result<Self> {
                match bytes.first_chunk::<$size>() {
                    Some(chunk) => Ok(Self::from_array(chunk)),
                    None => Err($crate::Error::TooShort {
                        structure: $structure,
                        need: $size,
                        have: bytes.len(),
                    }),
                }
            }

            /// The bytes of the structure.
            #[inline]
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $( <$kind as $crate::layout::Field>::put(
                    &self.$field,
                    &mut bytes[$off..$off + <$kind as $crate::layout::Field>::SIZE]); )*
                bytes
            }
        }
    };
}

pub(crate) use layout;

#[cfg(test)]
mod tests {
    use super::{be32, byte, le16, le32};

    layout! {
        /// A structure with one field of each kind.
        pub struct Sample[16] = "sample" {
            0x00 a: le16,
            0x02 b: [byte; 2],
            0x04 c: be32,
            0x08 d: [le32; 2],
        }
    }

    #[test]
    fn layout_round_trip_keeps_every_byte() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
        let sample = Sample::from_array(&bytes);
        assert_eq!(sample.a, 0x0201);
        assert_eq!(sample.c, 0x0506_0708);
        assert_eq!(sample.d, [0x0c0b_0a09, 0x100f_0e0d]);
        assert_eq!(sample.encode(), bytes);
    }

    #[test]
    fn layout_short_input_names_the_structure() {
        let error = Sample::parse(&[0; 15]).unwrap_err();
        assert_eq!(error.to_string(), "sample: 16 bytes needed, 15 present");
    }
}
