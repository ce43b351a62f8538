// SPDX-License-Identifier: Apache-2.0
//! Exact dilated attention over sequences of any length, forward and backward: safe Rust over the C library libannulus.
//!
//! ```
//! use annulus::{attention, Config, TensorRef};
//!
//! fn main() -> annulus::Result<()> {
//!     let numbers: Vec<f32> = (0..10_000 * 8 * 64).map(|i| (i as f32).sin()).collect();
//!     let x = TensorRef::new(&numbers, &[1, 10_000, 8, 64])?; // borrows: B, N, H, D
//!     let config = Config::builder().branch(2048, 1).branch(8192, 4).causal(true).build()?;
//!     let result = attention(&x, &x, &x, &config)?;
//!     println!("{} numbers, lse[0] = {:.3}", result.out.len(), result.lse[0]);
//!     Ok(())
//! }
//! ```
//!
//! A [`Context`] computes gradients, works on GPUs, and keeps plans and threads for repeated calls. Tensors
//! ([`TensorRef`], [`TensorMut`]) borrow the caller's slices, or name a GPU's memory by its address. Letters in shapes:
//! B batch, N sequence length, H query heads, G key/value heads (G divides H), D head dimension (a multiple of 8 up to
//! 256).
//!
//! The crate depends only on libannulus. The loader must find libannulus at run time: set `LD_LIBRARY_PATH` if it is
//! not in a directory of the system.

#![warn(missing_debug_implementations)]

mod comm;
mod config;
mod context;
mod element;
mod error;
mod estimate;
mod shards;
mod tensor;

pub use comm::{AbortHandle, Comm, CommOptions, NcclId};
pub use config::{
    Branch, BranchKind, Config, ConfigBuilder, Engine, Exchange, KeyRule, Order, Padding, Phase, QueryRule,
};
pub use context::{CallOptions, Context, Device, Traffic};
pub use element::{Bf16, Dtype, Element, GradientOf, F16};
pub use error::{Error, Result, Status};
pub use estimate::{Estimate, Pass, Problem};
pub use shards::Shards;
pub use tensor::{TensorMut, TensorRef};

use annulus_sys as sys;

/// The result of [`attention`]: contiguous arrays.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attention<T: Element> {
    /// \[B, N, H, D\]
    pub out: Vec<T>,
    /// \[B, H, N\], natural logarithms
    pub lse: Vec<T::Lse>,
}

/// Computes attention on the CPU, in one call. `q` is \[B, N, H, D\], `k` and `v` are \[B, N, G, D\].
pub fn attention<T: Element>(
    q: &TensorRef<'_, T>,
    k: &TensorRef<'_, T>,
    v: &TensorRef<'_, T>,
    config: &Config,
) -> Result<Attention<T>> {
    let shape = q.shape();
    let [b, n, h, d] = <[usize; 4]>::try_from(shape.as_slice())
        .map_err(|_| Error::argument(format!("q has the shape {shape:?}, not [B, N, H, D]")))?;
    let mut out = zeros::<T>(&[b, n, h, d])?;
    let mut lse = zeros::<T::Lse>(&[b, h, n])?;
    Context::cpu(config)?.forward(
        q,
        k,
        v,
        &mut TensorMut::new(&mut out, &[b, n, h, d])?,
        Some(&mut TensorMut::new(&mut lse, &[b, h, n])?),
        &CallOptions::new(),
    )?;
    Ok(Attention { out, lse })
}

fn zeros<T: Element>(shape: &[usize]) -> Result<Vec<T>> {
    // An input with strides of 0 may be larger than memory.
    let count = shape.iter().try_fold(1_usize, |count, &length| count.checked_mul(length));
    let mut numbers = Vec::new();
    count
        .and_then(|count| numbers.try_reserve_exact(count).ok().map(|()| numbers.resize(count, T::default())))
        .ok_or_else(|| Error::argument(format!("a result of the shape {shape:?} does not fit into memory")))?;
    Ok(numbers)
}

/// Returns the order of the positions in a segment with [`Order::Hilbert`]: element p is the p-th position along the
/// curve, from 0. The `length` positions fill a grid of `width` columns, row by row. `width` 0: the smallest divisor of
/// `length` that is at least its square root.
///
/// ```
/// assert_eq!(annulus::hilbert_curve(4, 2).unwrap(), [0, 2, 3, 1]);
/// ```
pub fn hilbert_curve(length: usize, width: usize) -> Result<Vec<i64>> {
    let too_large = |name, number| Error::argument(format!("{name} is {number}, more than memory holds"));
    let c_length = i64::try_from(length).map_err(|_| too_large("length", length))?;
    let c_width = i64::try_from(width).map_err(|_| too_large("width", width))?;
    let mut positions: Vec<i64> = Vec::new();
    positions.try_reserve_exact(length).map_err(|_| too_large("length", length))?;
    positions.resize(length, 0);
    error::check(unsafe { sys::annulus_hilbert_curve(c_length, c_width, positions.as_mut_ptr()) })?;
    Ok(positions)
}

/// Returns the loaded library's version, such as "1.0.0".
pub fn version() -> &'static str {
    unsafe { error::static_text(sys::annulus_version_string()) }
}

/// Returns one line for bug reports: versions of the library, its compiler and CUDA.
pub fn build_info() -> &'static str {
    unsafe { error::static_text(sys::annulus_build_info()) }
}
