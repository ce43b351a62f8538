// SPDX-License-Identifier: Apache-2.0
//! The C API of libannulus, dilated attention over sequences of any length. The crate `annulus` is a safe interface to
//! it.
//!
//! Statuses and enums are integers with constants, since a newer library may return values that have no name here. The
//! environment variable `ANNULUS_LIB_DIR` or `pkg-config` says where libannulus is.

#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod generated;

pub use generated::*;
