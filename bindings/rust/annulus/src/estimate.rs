// SPDX-License-Identifier: Apache-2.0
//! The costs of a problem, without its data.

use crate::config::{Engine, Exchange};
use crate::context::{CallOptions, Context};
use crate::element::Dtype;
use crate::error::{check, Result};
use crate::shards::Shards;
use annulus_sys as sys;

/// The sizes of a problem. With several ranks they are the sizes of all ranks together.
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
    /// The number of query rows if the options have a query window; else 0.
    pub query_length: i64,
    /// The options of the call.
    pub options: CallOptions<'a>,
    /// Every row of the call's tensors begins at a multiple of this number of bytes, a power of two up to 4096, and no
    /// stride is 0 or 2^40 bytes or more; 0: nothing is known of the tensors. Workspace sizes are enough for all such
    /// tensors.
    pub row_alignment: i64,
    /// The dtype of the gradients that backward writes: float32 if one of them is; None: `dtype`.
    pub gradient_dtype: Option<Dtype>,
}

impl<'a> Problem<'a> {
    /// Makes a problem whose queries are the whole sequence, with `heads` query heads and `heads` key/value heads.
    pub fn new(dtype: Dtype, batch: i64, sequence_length: i64, heads: i32, head_dim: i32) -> Problem<'a> {
        Problem {
            dtype,
            heads,
            kv_heads: heads,
            head_dim,
            batch,
            sequence_length,
            query_length: 0,
            options: CallOptions::new(),
            row_alignment: 0,
            gradient_dtype: None,
        }
    }

    /// Calls `f` with the C API's annulus_problem.
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
            query_length: self.query_length,
            options: &options,
            row_alignment: self.row_alignment,
            gradient_dtype: self.gradient_dtype.map_or(0, |dtype| dtype.0),
        })
    }
}

/// What one pass of a problem costs one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// (Query, key) pairs over batch, heads and branches.
    pub pairs: f64,
    /// Floating-point operations of the pass's matrix products.
    pub flops: f64,
    /// All tensors that the pass reads and writes.
    pub tensor_bytes: u64,
    /// Memory that the call needs besides its tensors.
    pub workspace_bytes: u64,
    /// To all other ranks together.
    pub sent_bytes: u64,
    /// From all other ranks together.
    pub received_bytes: u64,
    /// Host memory of the plan itself.
    pub plan_bytes: u64,
    /// How the ranks exchange rows if the config says [`Exchange::AUTO`]; `AUTO` for one rank.
    pub exchange: Exchange,
    /// Messages of rows of K and V that the rank's shards receive.
    pub received_messages: i64,
}

impl Estimate {
    fn from_raw(raw: &sys::annulus_estimate) -> Estimate {
        Estimate {
            pairs: raw.pairs,
            flops: raw.flops,
            tensor_bytes: raw.tensor_bytes,
            workspace_bytes: raw.workspace_bytes,
            sent_bytes: raw.sent_bytes,
            received_bytes: raw.received_bytes,
            plan_bytes: raw.plan_bytes,
            exchange: Exchange(raw.exchange),
            received_messages: raw.received_messages,
        }
    }
}

/// A call of [`Context::forward`], [`Context::backward`] or [`Context::attention_mass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pass {
    Forward,
    Backward,
    Mass,
}

impl Pass {
    fn raw(self) -> sys::annulus_pass {
        match self {
            Pass::Forward => sys::ANNULUS_PASS_FORWARD,
            Pass::Backward => sys::ANNULUS_PASS_BACKWARD,
            Pass::Mass => sys::ANNULUS_PASS_MASS,
        }
    }
}

impl Context {
    /// Estimates the costs of a pass under the context's config. Its own time and memory do not grow with the sequence.
    ///
    /// ```
    /// use annulus::{Config, Context, Dtype, Pass, Problem};
    /// # fn main() -> annulus::Result<()> {
    /// let context = Context::cpu(&Config::gigapath().build()?)?;
    /// let estimate = context.estimate(&Problem::new(Dtype::FLOAT32, 1, 70_001, 16, 48), Pass::Forward)?;
    /// assert!(estimate.flops > 1e12);
    /// # Ok(()) }
    /// ```
    pub fn estimate(&self, problem: &Problem<'_>, pass: Pass) -> Result<Estimate> {
        self.estimate_part(problem, pass, sys::ANNULUS_ALL_BRANCHES)
    }

    /// Estimates the same as [`estimate`](Context::estimate), but counts only the pairs and FLOPs of one branch.
    pub fn estimate_branch(&self, problem: &Problem<'_>, pass: Pass, branch: usize) -> Result<Estimate> {
        // No config has a branch with an index that does not fit.
        self.estimate_part(problem, pass, i32::try_from(branch).unwrap_or(i32::MAX))
    }

    fn estimate_part(&self, problem: &Problem<'_>, pass: Pass, branch: i32) -> Result<Estimate> {
        let mut raw = sys::ANNULUS_ESTIMATE_INIT;
        problem.with_raw(|problem| {
            check(unsafe { sys::annulus_estimate_problem(self.handle, problem, pass.raw(), branch, &mut raw) })
        })?;
        Ok(Estimate::from_raw(&raw))
    }

    /// Estimates the costs of rank `rank` of `ranks`. `shards`: None is one for each rank, with lengths that differ by
    /// at most 1, the longer shards first.
    pub fn estimate_rank(
        &self,
        problem: &Problem<'_>,
        pass: Pass,
        shards: Option<Shards<'_>>,
        ranks: i32,
        rank: i32,
    ) -> Result<Estimate> {
        let shards = Shards::raw(shards, ranks)?;
        let mut raw = sys::ANNULUS_ESTIMATE_INIT;
        problem.with_raw(|problem| {
            check(unsafe { sys::annulus_estimate_rank(self.handle, problem, pass.raw(), &shards, rank, &mut raw) })
        })?;
        Ok(Estimate::from_raw(&raw))
    }

    /// Returns the bytes of workspace that a call on `problem` needs.
    pub fn workspace_size(&self, problem: &Problem<'_>, pass: Pass) -> Result<u64> {
        let mut bytes = 0;
        problem.with_raw(|problem| {
            check(unsafe { sys::annulus_workspace_size(self.handle, problem, pass.raw(), &mut bytes) })
        })?;
        Ok(bytes)
    }

    /// Returns the engine that would compute a call on `problem` whose rows have the problem's row alignment and no
    /// better; 0: whose rows suit every engine.
    pub fn select_engine(&self, problem: &Problem<'_>, pass: Pass) -> Result<Engine> {
        let mut engine = sys::ANNULUS_ENGINE_AUTO;
        problem.with_raw(|problem| {
            check(unsafe { sys::annulus_select_engine(self.handle, problem, pass.raw(), &mut engine) })
        })?;
        Ok(Engine(engine))
    }

    /// Checks whether `engine` could compute that call, with all other options as in the config. Returns
    /// [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED) with the reason if it could not.
    pub fn check_engine(&self, problem: &Problem<'_>, pass: Pass, engine: Engine) -> Result<()> {
        problem
            .with_raw(|problem| check(unsafe { sys::annulus_check_engine(self.handle, problem, pass.raw(), engine.0) }))
    }
}
