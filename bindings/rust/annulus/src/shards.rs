// SPDX-License-Identifier: Apache-2.0
use crate::error::{Error, Result};
use annulus_sys as sys;
use std::ptr;

/// How the ranks share a sequence: it is cut into shards, one behind the other.
///
/// A rank with several shards has their rows one behind the other in its tensors, in the order of their positions.
#[derive(Clone, Copy, Debug)]
pub struct Shards<'a> {
    lengths: &'a [i64],
    owners: Option<&'a [i32]>,
}

impl<'a> Shards<'a> {
    /// One shard a rank, in the order of the ranks, of so many positions each.
    pub fn new(lengths: &'a [i64]) -> Shards<'a> {
        Shards { lengths, owners: None }
    }

    /// Shard i has `lengths[i]` positions and belongs to rank `owners[i]`. Under a causal mask P ranks have as much to do
    /// as each other where, of 2P equal shards, shard i belongs to rank min(i, 2P - 1 - i).
    pub fn with_owners(lengths: &'a [i64], owners: &'a [i32]) -> Shards<'a> {
        Shards { lengths, owners: Some(owners) }
    }

    /// The C API's struct for `ranks` ranks, which points to these arrays. None: even shards.
    pub(crate) fn raw(shards: Option<Shards<'a>>, ranks: i32) -> Result<sys::annulus_shards> {
        let even = sys::annulus_shards { ranks, ..sys::ANNULUS_SHARDS_INIT };
        let (lengths, owners) = match shards {
            Some(shards) => (shards.lengths, shards.owners),
            None => return Ok(even),
        };
        if let Some(owners) = owners.filter(|owners| owners.len() != lengths.len()) {
            return Err(Error::argument(format!(
                "owners has {} ranks; there are {} lengths",
                owners.len(),
                lengths.len()
            )));
        }
        Ok(sys::annulus_shards {
            count: i32::try_from(lengths.len()).unwrap_or(i32::MAX),
            lengths: lengths.as_ptr(),
            owners: owners.map_or(ptr::null(), <[i32]>::as_ptr),
            ..even
        })
    }
}
