// SPDX-License-Identifier: Apache-2.0
//! The element types of tensors.

use annulus_sys as sys;

/// A tensor's element type, as the C API numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dtype(pub(crate) sys::annulus_dtype);

impl Dtype {
    pub const FLOAT64: Dtype = Dtype(sys::ANNULUS_FLOAT64);
    pub const FLOAT32: Dtype = Dtype(sys::ANNULUS_FLOAT32);
    pub const BFLOAT16: Dtype = Dtype(sys::ANNULUS_BFLOAT16);
    pub const FLOAT16: Dtype = Dtype(sys::ANNULUS_FLOAT16);
}

mod private {
    pub trait Sealed {}
}

/// An element type of tensors: `f64`, `f32`, [`Bf16`], [`F16`].
pub trait Element: private::Sealed + Copy + Default + Send + Sync + 'static {
    const DTYPE: Dtype;

    /// The element type of LSE: `f64` for `f64`, else `f32`.
    type Lse: Element;
}

/// An element type of the gradient of a tensor of `T`: `T`, and `f32` for [`Bf16`] and [`F16`].
pub trait GradientOf<T: Element>: Element {}
impl<T: Element> GradientOf<T> for T {}
impl GradientOf<Bf16> for f32 {}
impl GradientOf<F16> for f32 {}

macro_rules! element {
    ($type:ty, $dtype:ident, $lse:ty) => {
        impl private::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            type Lse = $lse;
        }
    };
}

element!(f64, FLOAT64, f64);
element!(f32, FLOAT32, f32);
element!(Bf16, BFLOAT16, f32);
element!(F16, FLOAT16, f32);

macro_rules! sixteen_bits {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Default)]
        pub struct $name(u16);

        impl $name {
            /// Returns the number with this bit pattern.
            pub const fn from_bits(bits: u16) -> Self {
                $name(bits)
            }

            /// Returns the bit pattern.
            pub const fn to_bits(self) -> u16 {
                self.0
            }

            /// Returns bit patterns as numbers, without a copy.
            pub fn slice_from_bits(bits: &[u16]) -> &[Self] {
                // The type is transparent over u16.
                unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
            }

            /// Returns bit patterns as numbers, without a copy.
            pub fn slice_from_bits_mut(bits: &mut [u16]) -> &mut [Self] {
                unsafe { std::slice::from_raw_parts_mut(bits.as_mut_ptr().cast(), bits.len()) }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl From<$name> for f32 {
            fn from(number: $name) -> f32 {
                number.to_f32()
            }
        }
    };
}

sixteen_bits! {
    /// bfloat16: 1 sign, 8 exponent and 7 fraction bits. The type has no arithmetic.
    ///
    /// Slices of `bf16` of the crate `half` are used in place, by that crate's safe cast to bits:
    ///
    /// ```text
    /// use half::{bf16, slice::HalfFloatSliceExt};
    /// let numbers: Vec<bf16> = load();
    /// let q = TensorRef::new(Bf16::slice_from_bits(numbers.reinterpret_cast()), &[1, n, h, d])?;
    /// ```
    Bf16
}

sixteen_bits! {
    /// IEEE binary16. The type has no arithmetic. Slices of `f16` of the crate `half` are used in place, as [`Bf16`]
    /// shows.
    F16
}

impl Bf16 {
    /// Returns the nearest bfloat16, ties to even; NaN stays NaN.
    pub fn from_f32(number: f32) -> Bf16 {
        let bits = number.to_bits();
        if number.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40); // quiet, even if the fraction's upper bits are 0
        }
        let odd = (bits >> 16) & 1;
        Bf16(((bits + 0x7fff + odd) >> 16) as u16)
    }

    /// Returns the same number.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl F16 {
    /// Returns the nearest binary16, ties to even; NaN stays NaN, and numbers that are too large become infinite.
    pub fn from_f32(number: f32) -> F16 {
        let sign = ((number.to_bits() >> 16) & 0x8000) as u16;
        let magnitude = number.abs();
        let bits = magnitude.to_bits();
        if magnitude.is_nan() {
            return F16(sign | 0x7e00 | ((bits >> 13) & 0x3ff) as u16);
        }
        if magnitude >= 65520.0 {
            return F16(sign | 0x7c00); // from half a unit above the largest number on
        }
        if magnitude < 6.103_515_6e-5 {
            // Below 2^-14 the unit is 2^-24. Adding 1/2 makes float32 round to that unit.
            return F16(sign | ((magnitude + 0.5).to_bits() - 0.5_f32.to_bits()) as u16);
        }
        let odd = (bits >> 13) & 1;
        F16(sign | ((bits + 0xfff + odd - (112 << 23)) >> 13) as u16)
    }

    /// Returns the same number.
    pub fn to_f32(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let rest = u32::from(self.0 & 0x7fff);
        let magnitude = match rest >> 10 {
            0 => rest as f32 / 16_777_216.0, // units of 2^-24
            31 => f32::from_bits(0x7f80_0000 | (rest & 0x3ff) << 13),
            _ => f32::from_bits((rest << 13) + (112 << 23)),
        };
        f32::from_bits(magnitude.to_bits() | sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_sixteen_bits_survives_float32() {
        for bits in 0..=u16::MAX {
            let (b, f) = (Bf16::from_bits(bits), F16::from_bits(bits));
            if b.to_f32().is_nan() {
                assert!(Bf16::from_f32(b.to_f32()).to_f32().is_nan());
            } else {
                assert_eq!(Bf16::from_f32(b.to_f32()).to_bits(), bits);
            }
            if f.to_f32().is_nan() {
                assert!(F16::from_f32(f.to_f32()).to_f32().is_nan());
            } else {
                assert_eq!(F16::from_f32(f.to_f32()).to_bits(), bits);
            }
        }
    }

    /// A number between two neighbours becomes the nearer one; the middle becomes the even one.
    #[test]
    fn rounding_is_to_nearest_even() {
        fn between(from_f32: fn(f32) -> u16, to_f32: fn(u16) -> f32, last: u16) {
            for bits in 0..last {
                let (low, high) = (to_f32(bits), to_f32(bits + 1));
                let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32; // exact
                let even = if bits % 2 == 0 { bits } else { bits + 1 };
                assert_eq!(from_f32(middle), even);
                assert_eq!(from_f32(f32::from_bits(middle.to_bits() - 1)), bits);
                assert_eq!(from_f32(f32::from_bits(middle.to_bits() + 1)), bits + 1);
                assert_eq!(from_f32(-middle), even | 0x8000);
            }
        }
        between(|x| Bf16::from_f32(x).to_bits(), |b| Bf16::from_bits(b).to_f32(), 0x7f7f);
        between(|x| F16::from_f32(x).to_bits(), |b| F16::from_bits(b).to_f32(), 0x7bff);
        assert_eq!(F16::from_f32(65519.9).to_bits(), 0x7bff);
        assert_eq!(F16::from_f32(65520.0).to_bits(), 0x7c00);
        assert_eq!(F16::from_f32(f32::MAX).to_bits(), 0x7c00);
        assert_eq!(Bf16::from_f32(f32::MAX).to_bits(), 0x7f80);
    }
}
