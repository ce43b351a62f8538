// SPDX-License-Identifier: Apache-2.0
//! What a problem costs, without its data.

use crate::config::Exchange;
use crate::context::{CallOptions, Context};
use crate::element::Dtype;
use crate::error::{check, Result};
use crate::shards::Shards;
use annulus_sys as sys;

const WHOLE: i64 = sys::ANNULUS_WHOLE as i64;

/// The sizes of a problem. [`Problem::new`] fills in the whole sequence, or of several ranks the rank's shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem<'a> {
    pub dtype: Dtype,
    /// H
    pub heads: i32,
    /// G
    pub kv_heads: i32,
    /// D
    pub head_dim: i32,
    /// B
    pub batch: i64,
    pub sequence_length: i64,
    /// The first position of the query rows.
    pub query_start: i64,
    /// None: to the end of the sequence; where a context has a communicator and both starts are 0, the rank's shard.
    pub query_length: Option<i64>,
    /// The first position of the key rows held here.
    pub key_start: i64,
    /// As `query_length`.
    pub key_length: Option<i64>,
    /// Those that the call will have.
    pub options: CallOptions<'a>,
    /// Every row of the call's tensors begins at a multiple of so many bytes, a power of two up to 4096, and no stride
    /// is 0 or 2^40 bytes or more; 0: nothing is known of the tensors. Workspace is told for all that are so.
    pub row_alignment: i64,
    /// That of the gradients that backward writes; None: `dtype`. Else, where one of them is `f32`, that.
    pub gradient_dtype: Option<Dtype>,
}

impl<'a> Problem<'a> {
    /// Query and key rows are the whole sequence; as many key/value heads as heads.
    pub fn new(dtype: Dtype, batch: i64, sequence_length: i64, heads: i32, head_dim: i32) -> Problem<'a> {
        Problem {
            dtype,
            heads,
            kv_heads: heads,
            head_dim,
            batch,
            sequence_length,
            query_start: 0,
            query_length: None,
            key_start: 0,
            key_length: None,
            options: CallOptions::new(),
            row_alignment: 0,
            gradient_dtype: None,
        }
    }

    /// Calls `f` with the C API's.
    fn with_raw<R>(&self, f: impl FnOnce(&sys::annulus_problem) -> Result<R>) -> Result<R> {
        let options = self.options.raw()?;
        f(&sys::annulus_problem {
            size: sys::ANNULUS_PROBLEM_INIT.size,
            dtype: self.dtype.0,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            batch: self.batch,
            sequence_length: self.sequence_length,
            query_start: self.query_start,
            query_length: self.query_length.unwrap_or(WHOLE),
            key_start: self.key_start,
            key_length: self.key_length.unwrap_or(WHOLE),
            options: &options,
            row_alignment: self.row_alignment,
            gradient_dtype: self.gradient_dtype.map_or(0, |dtype| dtype.0),
        })
    }
}

/// What a problem costs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// (Query, key) pairs over batch, heads and branches.
    pub pairs: f64,
    pub forward_flops: f64,
    pub backward_flops: f64,
    /// Q, K, V, O and LSE.
    pub tensor_bytes: u64,
    /// dO, dQ, dK and dV.
    pub gradient_bytes: u64,
    /// Memory that a forward call needs besides its tensors.
    pub forward_workspace_bytes: u64,
    /// The same for a backward call.
    pub backward_workspace_bytes: u64,
    /// K and V rows outside the key window that the queries attend to.
    pub remote_bytes: u64,
    /// Host memory of the plan itself.
    pub plan_bytes: u64,
}

/// What a problem costs one of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankEstimate {
    /// What [`Exchange::AUTO`] comes to.
    pub exchange: Exchange,
    /// Memory that a forward call needs besides its tensors, received rows included.
    pub forward_workspace_bytes: u64,
    /// The same for a backward call.
    pub backward_workspace_bytes: u64,
    pub forward_sent_bytes: u64,
    pub forward_received_bytes: u64,
    pub backward_sent_bytes: u64,
    pub backward_received_bytes: u64,
}

/// A call of [`Context::forward`], [`Context::backward`] or [`Context::attention_mass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pass {
    Forward,
    Backward,
    Mass,
}

impl Context {
    /// What a problem costs under the context's config. Takes no time or memory that grows with the sequence.
    ///
    /// ```
    /// use annulus::{Config, Context, Dtype, Problem};
    /// # fn main() -> annulus::Result<()> {
    /// let context = Context::cpu(&Config::gigapath().build()?)?;
    /// let estimate = context.estimate(&Problem::new(Dtype::FLOAT32, 1, 70_001, 16, 48))?;
    /// assert!(estimate.forward_flops > 1e12);
    /// # Ok(()) }
    /// ```
    pub fn estimate(&self, problem: &Problem<'_>) -> Result<Estimate> {
        self.estimate_part(problem, sys::ANNULUS_ALL_BRANCHES)
    }

    /// The same, with pairs, FLOPs and remote bytes those of one branch.
    pub fn estimate_branch(&self, problem: &Problem<'_>, branch: usize) -> Result<Estimate> {
        // An index that does not fit is no branch of any config either.
        self.estimate_part(problem, i32::try_from(branch).unwrap_or(i32::MAX))
    }

    fn estimate_part(&self, problem: &Problem<'_>, branch: i32) -> Result<Estimate> {
        let mut raw = sys::ANNULUS_ESTIMATE_INIT;
        problem.with_raw(|problem| {
            check(unsafe { sys::annulus_estimate_problem(self.handle, problem, branch, &mut raw) })
        })?;
        Ok(Estimate {
            pairs: raw.pairs,
            forward_flops: raw.forward_flops,
            backward_flops: raw.backward_flops,
            tensor_bytes: raw.tensor_bytes,
            gradient_bytes: raw.gradient_bytes,
            forward_workspace_bytes: raw.forward_workspace_bytes,
            backward_workspace_bytes: raw.backward_workspace_bytes,
            remote_bytes: raw.remote_bytes,
            plan_bytes: raw.plan_bytes,
        })
    }

    /// The part of rank `rank` of `ranks`. `shards`: None is one a rank, as equal as can be, the first longer.
    pub fn estimate_rank(
        &self,
        problem: &Problem<'_>,
        shards: Option<Shards<'_>>,
        ranks: i32,
        rank: i32,
    ) -> Result<RankEstimate> {
        let (lengths, owners, count) = Shards::raw(shards)?;
        let mut raw = sys::ANNULUS_RANK_ESTIMATE_INIT;
        problem.with_raw(|problem| {
            check(unsafe {
                sys::annulus_estimate_rank(self.handle, problem, lengths, owners, count, ranks, rank, &mut raw)
            })
        })?;
        Ok(RankEstimate {
            exchange: Exchange(raw.exchange),
            forward_workspace_bytes: raw.forward_workspace_bytes,
            backward_workspace_bytes: raw.backward_workspace_bytes,
            forward_sent_bytes: raw.forward_sent_bytes,
            forward_received_bytes: raw.forward_received_bytes,
            backward_sent_bytes: raw.backward_sent_bytes,
            backward_received_bytes: raw.backward_received_bytes,
        })
    }

    /// The bytes of workspace that a call on `problem` needs.
    pub fn workspace_size(&self, problem: &Problem<'_>, pass: Pass) -> Result<u64> {
        let pass = match pass {
            Pass::Forward => sys::ANNULUS_PASS_FORWARD,
            Pass::Backward => sys::ANNULUS_PASS_BACKWARD,
            Pass::Mass => sys::ANNULUS_PASS_MASS,
        };
        let mut bytes = 0;
        problem.with_raw(|problem| {
            check(unsafe { sys::annulus_workspace_size(self.handle, problem, pass, &mut bytes) })
        })?;
        Ok(bytes)
    }
}
