// SPDX-License-Identifier: Apache-2.0
//! Views of the caller's memory.

use crate::element::Element;
use crate::error::{Error, Result};
use annulus_sys as sys;
use std::marker::PhantomData;

/// An input: a view of numbers that somebody else owns, with shape and strides.
///
/// Q, K, V, O and their gradients have the shape \[B, N, heads, D\], and the stride of D is 1; LSE and its gradient have
/// \[B, H, N\]. Strides count elements; a stride of 0 repeats.
#[derive(Debug)]
pub struct TensorRef<'a, T: Element> {
    raw: sys::annulus_tensor,
    numbers: PhantomData<&'a [T]>,
}

/// An output: as [`TensorRef`], of memory that the call overwrites. Its elements must be distinct.
#[derive(Debug)]
pub struct TensorMut<'a, T: Element> {
    raw: sys::annulus_tensor,
    numbers: PhantomData<&'a mut [T]>,
}

// A view is a reference to a slice.
unsafe impl<T: Element> Send for TensorRef<'_, T> {}
unsafe impl<T: Element> Sync for TensorRef<'_, T> {}
unsafe impl<T: Element> Send for TensorMut<'_, T> {}
unsafe impl<T: Element> Sync for TensorMut<'_, T> {}

impl<T: Element> Clone for TensorRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for TensorRef<'_, T> {}

/// The strides of a tensor whose rows lie one behind the other; saturated where they do not fit.
fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

/// How many elements from the first to the last, or None where that does not fit.
fn span(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .zip(strides)
        .try_fold(1_usize, |sum, (&length, &stride)| sum.checked_add((length - 1).checked_mul(stride)?))
}

fn describe<T: Element>(data: *mut T, shape: &[usize], strides: &[usize]) -> Result<sys::annulus_tensor> {
    if shape.len() != strides.len() || shape.is_empty() || shape.len() > 4 {
        return Err(Error::argument(format!(
            "a tensor has 1 to 4 dimensions and as many strides; shape is {shape:?} and strides are {strides:?}"
        )));
    }
    let mut raw = sys::annulus_tensor {
        data: data.cast(),
        dtype: T::DTYPE.0,
        ndim: shape.len() as i32,
        shape: [0; 4],
        stride: [0; 4],
    };
    for (i, (&length, &stride)) in shape.iter().zip(strides).enumerate() {
        raw.shape[i] = i64::try_from(length).map_err(|_| too_large(shape, strides))?;
        raw.stride[i] = i64::try_from(stride).map_err(|_| too_large(shape, strides))?;
    }
    Ok(raw)
}

fn too_large(shape: &[usize], strides: &[usize]) -> Error {
    Error::argument(format!("shape {shape:?} with strides {strides:?} is larger than memory can be"))
}

/// Describes a tensor that must lie within `available` elements.
fn describe_within<T: Element>(
    data: *mut T,
    available: usize,
    shape: &[usize],
    strides: &[usize],
) -> Result<sys::annulus_tensor> {
    let raw = describe(data, shape, strides)?;
    let needed = span(shape, strides).ok_or_else(|| too_large(shape, strides))?;
    if needed > available {
        return Err(Error::argument(format!(
            "shape {shape:?} with strides {strides:?} needs a slice of {needed} elements, and this one has {available}"
        )));
    }
    Ok(raw)
}

impl<'a, T: Element> TensorRef<'a, T> {
    /// Numbers that lie one behind the other, the last dimension fastest. Fails where the slice is too short.
    ///
    /// ```
    /// # fn main() -> annulus::Result<()> {
    /// let numbers = vec![0.0_f32; 2 * 100 * 4 * 16];
    /// let q = annulus::TensorRef::new(&numbers, &[2, 100, 4, 16])?;
    /// # Ok(()) }
    /// ```
    ///
    /// An array of the crate `ndarray` in its standard layout is a slice and a shape:
    ///
    /// ```text
    /// let x: ndarray::Array4<f32> = load();
    /// let q = TensorRef::new(x.as_slice().expect("standard layout"), x.shape())?;
    /// ```
    pub fn new(data: &'a [T], shape: &[usize]) -> Result<Self> {
        Self::with_strides(data, shape, &row_major(shape))
    }

    /// Numbers with any strides, counted in elements. Fails where the slice is too short.
    ///
    /// K of a buffer that holds Q, K and V of every position side by side, \[B, N, 3, H, D\]:
    ///
    /// ```
    /// # fn main() -> annulus::Result<()> {
    /// let (b, n, h, d) = (2, 100, 4, 16);
    /// let packed = vec![0.0_f32; b * n * 3 * h * d];
    /// let k = annulus::TensorRef::with_strides(&packed[h * d..], &[b, n, h, d], &[n * 3 * h * d, 3 * h * d, d, 1])?;
    /// # Ok(()) }
    /// ```
    pub fn with_strides(data: &'a [T], shape: &[usize], strides: &[usize]) -> Result<Self> {
        let raw = describe_within(data.as_ptr() as *mut T, data.len(), shape, strides)?;
        Ok(TensorRef { raw, numbers: PhantomData })
    }

    /// Numbers by their address, such as those in a GPU's memory.
    ///
    /// # Safety
    /// All elements that shape and strides describe are there, in memory of the device of the context they are given
    /// to, and nobody changes them for the lifetime `'a`; on a GPU also not before the context's stream has come past
    /// the calls that they were given to.
    pub unsafe fn from_raw_parts(data: *const T, shape: &[usize], strides: &[usize]) -> Result<Self> {
        Ok(TensorRef { raw: describe(data as *mut T, shape, strides)?, numbers: PhantomData })
    }

    pub(crate) fn as_raw(&self) -> *const sys::annulus_tensor {
        &self.raw
    }

    /// As an element of an array of the C API's.
    pub(crate) fn describe(&self) -> sys::annulus_tensor {
        self.raw
    }

    /// The lengths of the dimensions.
    pub fn shape(&self) -> Vec<usize> {
        shape(&self.raw)
    }
}

impl<'a, T: Element> TensorMut<'a, T> {
    /// Memory that lies in one piece, the last dimension fastest. Fails where the slice is too short.
    pub fn new(data: &'a mut [T], shape: &[usize]) -> Result<Self> {
        Self::with_strides(data, shape, &row_major(shape))
    }

    /// Memory with any strides, counted in elements. Fails where the slice is too short.
    pub fn with_strides(data: &'a mut [T], shape: &[usize], strides: &[usize]) -> Result<Self> {
        let raw = describe_within(data.as_mut_ptr(), data.len(), shape, strides)?;
        Ok(TensorMut { raw, numbers: PhantomData })
    }

    /// Memory by its address: a GPU's, or several outputs that interleave in one buffer.
    ///
    /// # Safety
    /// All elements that shape and strides describe are there, in memory of the device of the context they are given
    /// to, and nobody else reads or changes them for the lifetime `'a`; on a GPU also not before the context's stream
    /// has come past the calls that they were given to.
    pub unsafe fn from_raw_parts(data: *mut T, shape: &[usize], strides: &[usize]) -> Result<Self> {
        Ok(TensorMut { raw: describe(data, shape, strides)?, numbers: PhantomData })
    }

    /// The same memory as an input, as long as it is not written.
    pub fn as_ref(&self) -> TensorRef<'_, T> {
        TensorRef { raw: self.raw, numbers: PhantomData }
    }

    pub(crate) fn as_raw(&mut self) -> *const sys::annulus_tensor {
        &self.raw
    }

    /// The lengths of the dimensions.
    pub fn shape(&self) -> Vec<usize> {
        shape(&self.raw)
    }
}

fn shape(raw: &sys::annulus_tensor) -> Vec<usize> {
    raw.shape[..raw.ndim as usize].iter().map(|&length| length as usize).collect()
}
