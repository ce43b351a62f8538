// SPDX-License-Identifier: Apache-2.0
//! What to compute: branches and options.

use crate::error::{check, static_text, Error, Result};
use annulus_sys as sys;
use std::fmt;
use std::ops::Range;
use std::ptr;

/// Which residue φ of the places in a segment a head uses. The head h is counted inside the branch's range of c heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// φ = h / ceil(c / r), integer division: LongNet's published code.
    #[default]
    Block,
    /// φ = h mod r: LongNet's paper.
    Interleave,
    /// φ = this mod r, for every head.
    Fixed(i64),
}

/// Which queries of a segment attend to which of its keys. A residue is the place in the segment modulo r.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueryRule {
    /// The query's and the key's residue are both φ: LongNet.
    #[default]
    Dilated,
    /// The query's residue equals the key's, whatever it is: every query attends.
    Residue,
    /// The key's residue is φ, any query.
    Every,
}

/// How the positions of a segment are numbered. A branch has every r-th of these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// 0, 1, 2, …
    #[default]
    Linear,
    /// Along the generalised Hilbert curve of a grid with this many columns; 0: the smallest divisor of the segment's
    /// length that is at least its square root.
    Hilbert(i64),
}

/// What fills the slots of a segment for which there is no position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Padding {
    /// Nothing.
    #[default]
    Exact,
    /// A key of score 0 and value 0, for weights that were trained with LongNet's published code. No effect if causal.
    ZeroKeys,
}

/// How often a key counts that several branches give to a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRule {
    /// Once for each branch that reaches it: LongNet's multiset.
    #[default]
    EachBranch,
    /// Once.
    Once,
}

/// An implementation of attention. A newer library may have more engines.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Engine(pub(crate) sys::annulus_engine);

impl Engine {
    /// The fastest engine of the device that supports the problem and the tensors of the call.
    pub const AUTO: Engine = Engine(sys::ANNULUS_ENGINE_AUTO);
    /// CPU, in float64 and O(N²) time: for tests.
    pub const REFERENCE: Engine = Engine(sys::ANNULUS_ENGINE_REFERENCE);
    /// CPU, blocked, with threads.
    pub const CPU: Engine = Engine(sys::ANNULUS_ENGINE_CPU);
    /// Any CUDA device.
    pub const GEMM: Engine = Engine(sys::ANNULUS_ENGINE_GEMM);
    /// CUDA devices of compute capability 9.0; bfloat16 and float16.
    pub const FUSED: Engine = Engine(sys::ANNULUS_ENGINE_FUSED);
    /// CUDA devices of compute capability 8.0 and newer in bfloat16, float16 and float32, and 7.5 in float16. Slower
    /// than `FUSED` on 9.0.
    pub const MMA: Engine = Engine(sys::ANNULUS_ENGINE_MMA);

    /// Returns the engine with this number of the C API.
    pub const fn from_code(code: i32) -> Engine {
        Engine(code)
    }

    /// Returns the name, such as "cpu", or "unknown".
    pub fn name(self) -> &'static str {
        unsafe { static_text(sys::annulus_engine_name(self.0)) }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({}: {})", self.0, self.name())
    }
}

/// How rows of K and V move between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exchange(pub(crate) sys::annulus_exchange);

impl Exchange {
    /// Gather if there is room for the rows that each rank receives, else ring. The room is the largest of
    ///
    /// - the memory of K and V of the rank with most rows,
    /// - four times that memory, if the ring has more than 8 hops,
    /// - eight times that memory, at most 256 MiB.
    pub const AUTO: Exchange = Exchange(sys::ANNULUS_EXCHANGE_AUTO);
    /// In up to shards − 1 hops: for each shard of a sequence memory for the rows of two other shards.
    pub const RING: Exchange = Exchange(sys::ANNULUS_EXCHANGE_RING);
    /// All at once: memory for all rows that the rank's queries attend to.
    pub const GATHER: Exchange = Exchange(sys::ANNULUS_EXCHANGE_GATHER);
}

/// What the keys of a branch are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BranchKind {
    /// Those of the query's segment.
    #[default]
    Segments,
    /// Those near the query, in steps of the dilation; -1: no limit. In a causal config none is after the query.
    Window { left: i64, right: i64 },
    /// The positions from `first` on, for every query. With `queries` they attend to every key, too.
    Global { first: i64, count: i64, queries: bool },
}

/// One branch: segments of some length, and every r-th position of a segment; or a window, or global positions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Branch {
    pub segment_length: i64,
    pub dilation: i64,
    /// The query heads; None: all. A range that ends at `i32::MAX` has all heads from its start on.
    pub heads: Option<Range<i32>>,
    pub phase: Phase,
    pub query_rule: QueryRule,
    pub order: Order,
    pub kind: BranchKind,
}

impl Branch {
    /// Makes a branch for all heads: segments of `segment_length` positions (0: the whole sequence), and every
    /// `dilation`-th position of a segment.
    pub fn new(segment_length: i64, dilation: i64) -> Branch {
        Branch {
            segment_length,
            dilation,
            heads: None,
            phase: Phase::default(),
            query_rule: QueryRule::default(),
            order: Order::default(),
            kind: BranchKind::default(),
        }
    }

    /// Makes a window for all heads and queries: a query at position n attends to the keys n + j · `dilation`, for
    /// -`left` <= j <= `right`, as far as they exist. A side of -1 has no limit.
    pub fn window(left: i64, right: i64, dilation: i64) -> Branch {
        Branch { query_rule: QueryRule::Residue, kind: BranchKind::Window { left, right }, ..Branch::new(0, dilation) }
    }

    /// Makes the positions `first` to `first` + `count` - 1 keys of every query. With `queries` they attend to every
    /// key, too.
    pub fn global(first: i64, count: i64, queries: bool) -> Branch {
        Branch { kind: BranchKind::Global { first, count, queries }, ..Branch::new(0, 1) }
    }

    /// Limits the branch to these query heads. A range that ends at `i32::MAX` has all heads from its start on.
    pub fn heads(mut self, heads: Range<i32>) -> Branch {
        self.heads = Some(heads);
        self
    }

    pub fn phase(mut self, phase: Phase) -> Branch {
        self.phase = phase;
        self
    }

    pub fn query_rule(mut self, rule: QueryRule) -> Branch {
        self.query_rule = rule;
        self
    }

    pub fn order(mut self, order: Order) -> Branch {
        self.order = order;
        self
    }

    fn from_raw(raw: &sys::annulus_branch) -> Branch {
        let end = if raw.head_count == 0 { i32::MAX } else { raw.first_head + raw.head_count };
        Branch {
            segment_length: raw.segment_length,
            dilation: raw.dilation,
            heads: (raw.first_head != 0 || raw.head_count != 0).then_some(raw.first_head..end),
            phase: match raw.phase_rule {
                sys::ANNULUS_PHASE_BLOCK => Phase::Block,
                sys::ANNULUS_PHASE_INTERLEAVE => Phase::Interleave,
                _ => Phase::Fixed(raw.residue),
            },
            query_rule: match raw.query_rule {
                sys::ANNULUS_QUERY_DILATED => QueryRule::Dilated,
                sys::ANNULUS_QUERY_RESIDUE => QueryRule::Residue,
                _ => QueryRule::Every,
            },
            order: match raw.order {
                sys::ANNULUS_ORDER_LINEAR => Order::Linear,
                _ => Order::Hilbert(raw.grid_width),
            },
            kind: match raw.kind {
                sys::ANNULUS_BRANCH_SEGMENTS => BranchKind::Segments,
                sys::ANNULUS_BRANCH_WINDOW => BranchKind::Window { left: raw.left, right: raw.right },
                _ => BranchKind::Global {
                    first: raw.first_global,
                    count: raw.global_count,
                    queries: raw.global_queries != 0,
                },
            },
        }
    }

    fn to_raw(&self) -> Result<sys::annulus_branch> {
        let mut raw = sys::ANNULUS_BRANCH_INIT(self.segment_length, self.dilation);
        if let Some(heads) = &self.heads {
            if heads.is_empty() {
                return Err(Error::argument(format!("heads is {heads:?}; it must hold a head")));
            }
            raw.first_head = heads.start;
            raw.head_count = if heads.end == i32::MAX { 0 } else { heads.end.saturating_sub(heads.start) };
        }
        (raw.phase_rule, raw.residue) = match self.phase {
            Phase::Block => (sys::ANNULUS_PHASE_BLOCK, 0),
            Phase::Interleave => (sys::ANNULUS_PHASE_INTERLEAVE, 0),
            Phase::Fixed(residue) => (sys::ANNULUS_PHASE_FIXED, residue),
        };
        raw.query_rule = match self.query_rule {
            QueryRule::Dilated => sys::ANNULUS_QUERY_DILATED,
            QueryRule::Residue => sys::ANNULUS_QUERY_RESIDUE,
            QueryRule::Every => sys::ANNULUS_QUERY_EVERY,
        };
        (raw.order, raw.grid_width) = match self.order {
            Order::Linear => (sys::ANNULUS_ORDER_LINEAR, 0),
            Order::Hilbert(width) => (sys::ANNULUS_ORDER_HILBERT, width),
        };
        match self.kind {
            BranchKind::Segments => {}
            BranchKind::Window { left, right } => {
                (raw.kind, raw.left, raw.right) = (sys::ANNULUS_BRANCH_WINDOW, left, right);
            }
            BranchKind::Global { first, count, queries } => {
                (raw.kind, raw.first_global, raw.global_count) = (sys::ANNULUS_BRANCH_GLOBAL, first, count);
                raw.global_queries = queries.into();
            }
        }
        Ok(raw)
    }
}

/// What to compute: a list of branches, and options. Made by [`Config::builder`], constant afterwards.
#[derive(Debug)]
pub struct Config {
    handle: *mut sys::annulus_config,
}

// The data does not change once it is built.
unsafe impl Send for Config {}
unsafe impl Sync for Config {}

impl Config {
    /// Begins a config: no branches yet, not causal, exact padding, scale 1/√D.
    ///
    /// ```
    /// use annulus::{Branch, Config, Order};
    /// # fn main() -> annulus::Result<()> {
    /// let longnet = Config::builder().branch(2048, 1).branch(8192, 4).causal(true).build()?;
    /// let image = Config::builder().push(Branch::new(0, 4).order(Order::Hilbert(256))).build()?;
    /// let error = Config::builder().branch(2048, 0).build().unwrap_err();
    /// assert_eq!(error.status(), annulus::Status::ARGUMENT);
    /// # Ok(()) }
    /// ```
    pub fn builder() -> ConfigBuilder {
        let mut handle = ptr::null_mut();
        let made = check(unsafe { sys::annulus_config_create(&mut handle) });
        ConfigBuilder { config: made.map(|()| Config { handle }) }
    }

    /// Begins with the config of Prov-GigaPath's slide encoder: its branches, zero-key padding, not causal.
    ///
    /// ```
    /// # use annulus::{attention, Config, TensorRef};
    /// # fn main() -> annulus::Result<()> {
    /// # let tiles = 50;
    /// # let q = vec![0.5f32; (tiles + 1) * 16 * 48];
    /// # let (k, v) = (q.clone(), q.clone());
    /// let rows = |numbers| TensorRef::new(numbers, &[1, tiles + 1, 16, 48]);
    /// let result = attention(&rows(&q)?, &rows(&k)?, &rows(&v)?, &Config::gigapath().build()?)?;
    /// # assert_eq!(result.out.len(), q.len());
    /// # Ok(()) }
    /// ```
    pub fn gigapath() -> ConfigBuilder {
        let name = b"gigapath\0".as_ptr().cast();
        Config::builder().set(|handle| unsafe { sys::annulus_config_add_preset(handle, name) })
    }

    /// Begins with a sliding window: `left` keys before each query, itself, and `right` keys after it, every
    /// `dilation`-th. It is causal if `right` is 0, as language models have it: a window of W tokens is
    /// `Config::sliding(W - 1, 0, 1)`.
    pub fn sliding(left: i64, right: i64, dilation: i64) -> ConfigBuilder {
        Config::builder().push(Branch::window(left, right, dilation)).causal(right == 0)
    }

    /// Begins with Longformer's pattern: `window` keys on each side of a query, every `dilation`-th, and the first
    /// `global_tokens` positions (0 for none), which attend to every key and which every query attends to. Each key
    /// counts once.
    pub fn longformer(window: i64, global_tokens: i64, dilation: i64) -> ConfigBuilder {
        let sliding = Config::builder().push(Branch::window(window, window, dilation)).key_rule(KeyRule::Once);
        if global_tokens == 0 {
            return sliding;
        }
        sliding.push(Branch::global(0, global_tokens, true))
    }

    /// Takes over a config of the C API.
    pub(crate) fn from_handle(handle: *mut sys::annulus_config) -> Config {
        Config { handle }
    }

    /// Returns the branches, in order.
    pub fn branches(&self) -> Result<Vec<Branch>> {
        let read = |index| {
            let mut raw = sys::ANNULUS_BRANCH_INIT(0, 1);
            check(unsafe { sys::annulus_config_get_branch(self.handle, index, &mut raw) })?;
            Ok(Branch::from_raw(&raw))
        };
        (0..self.branch_count() as i32).map(read).collect()
    }

    fn get<T>(
        &self,
        getter: unsafe extern "C" fn(*const sys::annulus_config, *mut T) -> sys::annulus_status,
        mut value: T,
    ) -> T {
        let status = unsafe { getter(self.handle, &mut value) };
        debug_assert_eq!(status, sys::ANNULUS_OK); // it fails only on null pointers
        value
    }

    /// Returns whether a query attends only to keys at its own position or before.
    pub fn causal(&self) -> bool {
        self.get(sys::annulus_config_get_causal, 0) != 0
    }

    /// Returns the factor on Q·K; None: 1/√D.
    pub fn scale(&self) -> Option<f64> {
        Some(self.get(sys::annulus_config_get_scale, f64::NAN)).filter(|scale| !scale.is_nan())
    }

    /// Returns the padding rule of all branches.
    pub fn padding(&self) -> Padding {
        match self.get(sys::annulus_config_get_padding_rule, 0) {
            sys::ANNULUS_PADDING_EXACT => Padding::Exact,
            _ => Padding::ZeroKeys,
        }
    }

    /// Returns how often a key counts that several branches give to a query.
    pub fn key_rule(&self) -> KeyRule {
        match self.get(sys::annulus_config_get_key_rule, 0) {
            sys::ANNULUS_KEY_EACH_BRANCH => KeyRule::EachBranch,
            _ => KeyRule::Once,
        }
    }

    /// Returns which heads calls have, as (first, total); None: all heads.
    pub fn head_shard(&self) -> Option<(usize, usize)> {
        let (mut first, mut total) = (0, 0);
        let status = unsafe { sys::annulus_config_get_head_shard(self.handle, &mut first, &mut total) };
        debug_assert_eq!(status, sys::ANNULUS_OK);
        Some((first as usize, total as usize)).filter(|_| total > 0)
    }

    /// Returns the engine that the config asks for.
    pub fn engine(&self) -> Engine {
        Engine(self.get(sys::annulus_config_get_engine, 0))
    }

    /// Returns whether products of float32 tensors may be computed in TF32.
    pub fn allow_tf32(&self) -> bool {
        self.get(sys::annulus_config_get_allow_tf32, 0) != 0
    }

    /// Returns the most bytes of workspace that a call may take; 0: the engine decides.
    pub fn workspace_limit(&self) -> u64 {
        self.get(sys::annulus_config_get_workspace_limit, 0)
    }

    /// Returns how rows move between ranks.
    pub fn exchange(&self) -> Exchange {
        Exchange(self.get(sys::annulus_config_get_exchange, 0))
    }

    /// Returns the number of branches.
    pub fn branch_count(&self) -> usize {
        self.get(sys::annulus_config_branch_count, 0) as usize
    }

    /// Makes an independent copy.
    pub fn try_clone(&self) -> Result<Config> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::annulus_config_copy(&mut handle, self.handle) })?;
        Ok(Config { handle })
    }

    /// Returns the C API's handle, for functions of `annulus-sys`. The config still owns it.
    pub fn as_ptr(&self) -> *const sys::annulus_config {
        self.handle
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        unsafe { sys::annulus_config_destroy(self.handle) }
    }
}

/// Builds a config. [`build`](ConfigBuilder::build) returns the error of the first call that fails.
#[derive(Debug)]
#[must_use]
pub struct ConfigBuilder {
    config: Result<Config>,
}

impl ConfigBuilder {
    fn then(mut self, step: impl FnOnce(*mut sys::annulus_config) -> Result<()>) -> ConfigBuilder {
        if let Ok(config) = &self.config {
            if let Err(error) = step(config.handle) {
                self.config = Err(error);
            }
        }
        self
    }

    fn set(self, setter: impl FnOnce(*mut sys::annulus_config) -> sys::annulus_status) -> ConfigBuilder {
        self.then(|handle| check(setter(handle)))
    }

    /// Returns the config, or the first error.
    pub fn build(self) -> Result<Config> {
        self.config
    }

    /// Appends a branch for all heads: segments of `segment_length` positions (0: the whole sequence), and every
    /// `dilation`-th position of a segment.
    pub fn branch(self, segment_length: i64, dilation: i64) -> ConfigBuilder {
        self.push(Branch::new(segment_length, dilation))
    }

    /// Appends a branch.
    pub fn push(self, branch: Branch) -> ConfigBuilder {
        self.then(|handle| {
            let raw = branch.to_raw()?;
            check(unsafe { sys::annulus_config_add_branch(handle, &raw, ptr::null_mut()) })
        })
    }

    /// Appends `count` branches with w = segment_length · segment_ratio^i and r = dilation_ratio^i, LongNet's series.
    pub fn longnet(self, segment_length: i64, segment_ratio: i64, dilation_ratio: i64, count: i32) -> ConfigBuilder {
        self.set(|handle| unsafe {
            sys::annulus_config_add_longnet(handle, segment_length, segment_ratio, dilation_ratio, count)
        })
    }

    /// Appends a branch for each (segment length, dilation), and divides the `heads` query heads among these branches.
    pub fn head_groups(self, heads: i32, branches: &[(i64, i64)]) -> ConfigBuilder {
        let (lengths, dilations): (Vec<i64>, Vec<i64>) = branches.iter().copied().unzip();
        let count = i32::try_from(branches.len()).unwrap_or(i32::MAX);
        self.set(|handle| unsafe {
            sys::annulus_config_add_head_groups(handle, heads, count, lengths.as_ptr(), dilations.as_ptr())
        })
    }

    /// Sets whether a query attends only to keys at its own position or before.
    pub fn causal(self, causal: bool) -> ConfigBuilder {
        self.set(|handle| unsafe { sys::annulus_config_set_causal(handle, causal.into()) })
    }

    /// Sets the factor on Q·K; 1/√D by default.
    pub fn scale(self, scale: f64) -> ConfigBuilder {
        self.set(|handle| unsafe { sys::annulus_config_set_scale(handle, scale) })
    }

    /// Sets the padding rule of all branches.
    pub fn padding(self, padding: Padding) -> ConfigBuilder {
        let rule = match padding {
            Padding::Exact => sys::ANNULUS_PADDING_EXACT,
            Padding::ZeroKeys => sys::ANNULUS_PADDING_ZERO_KEYS,
        };
        self.set(|handle| unsafe { sys::annulus_config_set_padding_rule(handle, rule) })
    }

    /// Sets how often a key counts that several branches give to a query.
    pub fn key_rule(self, rule: KeyRule) -> ConfigBuilder {
        let rule = match rule {
            KeyRule::EachBranch => sys::ANNULUS_KEY_EACH_BRANCH,
            KeyRule::Once => sys::ANNULUS_KEY_ONCE,
        };
        self.set(|handle| unsafe { sys::annulus_config_set_key_rule(handle, rule) })
    }

    /// Says that calls have some of `total` heads, from head `first` on, as with tensor parallelism: head ranges and
    /// phases of branches then count over all `total` heads. An error if `first` is not below `total`.
    ///
    /// ```
    /// # fn main() -> annulus::Result<()> {
    /// let config = annulus::Config::builder().branch(64, 8).head_shard(4, 8).build()?;
    /// assert_eq!(config.head_shard(), Some((4, 8)));
    /// assert!(annulus::Config::builder().branch(64, 8).head_shard(8, 8).build().is_err());
    /// # Ok(()) }
    /// ```
    pub fn head_shard(self, first: usize, total: usize) -> ConfigBuilder {
        let number = |heads: usize| i32::try_from(heads).unwrap_or(-1); // the library refuses -1
        self.set(|handle| unsafe { sys::annulus_config_set_head_shard(handle, number(first), number(total)) })
    }

    /// Sets the engine. A later call fails if the engine cannot compute it.
    pub fn engine(self, engine: Engine) -> ConfigBuilder {
        self.set(|handle| unsafe { sys::annulus_config_set_engine(handle, engine.0) })
    }

    /// Sets whether products of float32 tensors may be computed in TF32.
    pub fn allow_tf32(self, allow: bool) -> ConfigBuilder {
        self.set(|handle| unsafe { sys::annulus_config_set_allow_tf32(handle, allow.into()) })
    }

    /// Sets the most bytes of workspace that a call may take; 0: the engine decides.
    pub fn workspace_limit(self, bytes: u64) -> ConfigBuilder {
        self.set(|handle| unsafe { sys::annulus_config_set_workspace_limit(handle, bytes) })
    }

    /// Sets how rows move between ranks. All ranks must set the same.
    pub fn exchange(self, exchange: Exchange) -> ConfigBuilder {
        self.set(|handle| unsafe { sys::annulus_config_set_exchange(handle, exchange.0) })
    }
}
