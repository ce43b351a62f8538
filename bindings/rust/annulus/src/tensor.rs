// SPDX-License-Identifier: Apache-2.0
//! Views of the caller's memory.

use crate::element::Element;
use crate::error::{Error, Result};
use annulus_sys as sys;
use std::marker::PhantomData;

/// An input: a view of borrowed numbers, with shape and strides.
///
/// Q, K, V, O and their gradients have the shape \[B, N, heads, D\], and the stride of D is 1. LSE and its gradient
/// have the shape \[B, H, N\]. Strides count elements; a stride of 0 repeats.
#[derive(Debug)]
pub struct TensorRef<'a, T: Element> {
    raw: sys::annulus_tensor,
    numbers: PhantomData<&'a [T]>,
}

/// An output: like [`TensorRef`], a view of memory that a call writes. No two elements may share memory.
#[derive(Debug)]
pub struct TensorMut<'a, T: Element> {
    raw: sys::annulus_tensor,
    numbers: PhantomData<&'a mut [T]>,
}

// A view is like a reference to a slice.
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

/// Returns the strides of a contiguous tensor, saturated if they overflow.
fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

/// Returns how many elements lie from the first to the last, both included; None on overflow.
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

/// Makes the C API's tensor. Refuses a tensor that does not lie within `available` elements.
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
    /// Views contiguous numbers, the last dimension fastest. Fails if the slice is too short.
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

    /// Views numbers with any strides, counted in elements. Fails if the slice is too short.
    ///
    /// K in a buffer \[B, N, 3, H, D\] that holds Q, K and V side by side for every position:
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

    /// Views numbers at an address, such as numbers in a GPU's memory.
    ///
    /// # Safety
    /// All elements that shape and strides describe exist, in memory of the context's device. No one changes them
    /// during the lifetime `'a`, and on a GPU until the context's stream has passed the calls that use them.
    pub unsafe fn from_raw_parts(data: *const T, shape: &[usize], strides: &[usize]) -> Result<Self> {
        Ok(TensorRef { raw: describe(data as *mut T, shape, strides)?, numbers: PhantomData })
    }

    pub(crate) fn as_raw(&self) -> *const sys::annulus_tensor {
        &self.raw
    }

    /// Returns the C API's tensor, for an array of tensors.
    pub(crate) fn describe(&self) -> sys::annulus_tensor {
        self.raw
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> Vec<usize> {
        shape(&self.raw)
    }
}

impl<'a, T: Element> TensorMut<'a, T> {
    /// Views contiguous memory, the last dimension fastest. Fails if the slice is too short.
    pub fn new(data: &'a mut [T], shape: &[usize]) -> Result<Self> {
        Self::with_strides(data, shape, &row_major(shape))
    }

    /// Views memory with any strides, counted in elements. Fails if the slice is too short.
    pub fn with_strides(data: &'a mut [T], shape: &[usize], strides: &[usize]) -> Result<Self> {
        let raw = describe_within(data.as_mut_ptr(), data.len(), shape, strides)?;
        Ok(TensorMut { raw, numbers: PhantomData })
    }

    /// Views memory at an address: a GPU's memory, or several outputs that interleave in one buffer.
    ///
    /// # Safety
    /// All elements that shape and strides describe exist, in memory of the context's device. No one else reads or
    /// changes them during the lifetime `'a`, and on a GPU until the context's stream has passed the calls that use
    /// them.
    pub unsafe fn from_raw_parts(data: *mut T, shape: &[usize], strides: &[usize]) -> Result<Self> {
        Ok(TensorMut { raw: describe(data, shape, strides)?, numbers: PhantomData })
    }

    /// Returns the same memory as an input. It cannot be written while the input is in use.
    pub fn as_ref(&self) -> TensorRef<'_, T> {
        TensorRef { raw: self.raw, numbers: PhantomData }
    }

    pub(crate) fn as_raw(&mut self) -> *const sys::annulus_tensor {
        &self.raw
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> Vec<usize> {
        shape(&self.raw)
    }
}

fn shape(raw: &sys::annulus_tensor) -> Vec<usize> {
    raw.shape[..raw.ndim as usize].iter().map(|&length| length as usize).collect()
}
