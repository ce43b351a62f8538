// SPDX-License-Identifier: Apache-2.0
use crate::error::{Error, Result};
use annulus_sys as sys;
use std::ptr;

/// How the ranks share a sequence, which is cut into consecutive shards.
///
/// A rank with several shards has their rows one behind the other in its tensors, in the order of their positions.
#[derive(Clone, Copy, Debug)]
pub struct Shards<'a> {
    lengths: &'a [i64],
    owners: Option<&'a [i32]>,
}

impl<'a> Shards<'a> {
    /// Gives each rank one shard, in the order of the ranks: rank i has `lengths[i]` positions.
    pub fn new(lengths: &'a [i64]) -> Shards<'a> {
        Shards { lengths, owners: None }
    }

    /// Gives shard i, of `lengths[i]` positions, to rank `owners[i]`. Under a causal mask all P ranks have the same
    /// amount of work if there are 2P equal shards and shard i belongs to rank min(i, 2P - 1 - i).
    pub fn with_owners(lengths: &'a [i64], owners: &'a [i32]) -> Shards<'a> {
        Shards { lengths, owners: Some(owners) }
    }

    /// Makes the C API's struct for `ranks` ranks, which points to the arrays of `shards`. None: even shards.
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
