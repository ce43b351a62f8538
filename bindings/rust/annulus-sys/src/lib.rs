// SPDX-License-Identifier: Apache-2.0
//! The C API of libannulus, dilated attention over sequences of any length. The crate `annulus` is the safe one.
//!
//! Statuses and enums are integers with constants: a library newer than these declarations may return values that have
//! no name here. Link with libannulus as the environment variable `ANNULUS_LIB_DIR` or `pkg-config` says.

#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod generated;

pub use generated::*;
