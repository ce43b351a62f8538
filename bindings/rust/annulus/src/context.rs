// SPDX-License-Identifier: Apache-2.0
//! Where to compute: a device with a config.

use crate::comm::Comm;
use crate::config::{Config, Engine};
use crate::element::{Element, GradientOf};
use crate::error::{check, Error, Result};
use crate::shards::Shards;
use crate::tensor::{TensorMut, TensorRef};
use annulus_sys as sys;
use std::os::raw::c_void;
use std::ptr;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    Cpu,
    Cuda,
}

impl Device {
    fn code(self) -> sys::annulus_device {
        match self {
            Device::Cpu => sys::ANNULUS_DEVICE_CPU,
            Device::Cuda => sys::ANNULUS_DEVICE_CUDA,
        }
    }

    /// Returns how many devices of this kind the library can use on this machine.
    pub fn count(self) -> Result<usize> {
        let mut count = 0;
        check(unsafe { sys::annulus_device_count(self.code(), &mut count) })?;
        Ok(count as usize)
    }
}

/// A device with a config, on which forward and backward compute.
///
/// One thread at a time uses a context (it may be sent to another thread); several contexts work at the same time.
#[derive(Debug)]
pub struct Context {
    pub(crate) handle: *mut sys::annulus_context,
    comm: Option<Comm>, // lives longer than the handle: see drop
}

// The C library ties a context to no thread.
unsafe impl Send for Context {}

fn raw<T: Element>(tensor: Option<&TensorRef<'_, T>>) -> *const sys::annulus_tensor {
    tensor.map_or(ptr::null(), TensorRef::as_raw)
}

fn raw_mut<T: Element>(tensor: Option<&mut TensorMut<'_, T>>) -> *const sys::annulus_tensor {
    tensor.map_or(ptr::null(), TensorMut::as_raw)
}

/// Options of a call. By default there are none.
///
/// ```
/// let decode = annulus::CallOptions::new().query_start(41);
/// let two_texts = annulus::CallOptions::new().sequence_starts(&[0, 70, 100]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions<'a> {
    query_start: Option<i64>,
    sequence_starts: Option<&'a [i64]>,
    sequence_lengths: Option<&'a [i64]>,
    add_flags: u64,
}

impl<'a> CallOptions<'a> {
    /// Makes options without any set: the query rows are all rows, Nq = N, and each batch entry is one sequence.
    pub fn new() -> CallOptions<'a> {
        CallOptions::default()
    }

    /// The query rows are the positions `position` … `position` + Nq − 1 of the N.
    pub fn query_start(mut self, position: i64) -> CallOptions<'a> {
        self.query_start = Some(position);
        self
    }

    /// Says that the rows are packed sequences, one fewer than `starts` has numbers. Sequence i has the rows
    /// `starts[i]` … `starts[i + 1]` − 1 of every batch entry. Segments are counted inside each sequence. Rows outside
    /// every sequence have O = 0 and LSE = −∞.
    pub fn sequence_starts(mut self, starts: &'a [i64]) -> CallOptions<'a> {
        self.sequence_starts = Some(starts);
        self
    }

    /// With starts: sequence i has only the first `lengths[i]` of its rows. Without starts: batch entries are padded,
    /// and batch entry b is a sequence of its first `lengths[b]` rows.
    pub fn sequence_lengths(mut self, lengths: &'a [i64]) -> CallOptions<'a> {
        self.sequence_lengths = Some(lengths);
        self
    }

    /// Makes backward add dQ to `d_q`, with one rounding, instead of overwriting it. An error in forward.
    pub fn add_d_q(mut self) -> CallOptions<'a> {
        self.add_flags |= sys::ANNULUS_CALL_ADD_D_Q as u64;
        self
    }

    /// Makes backward add dK to `d_k`, as [`add_d_q`](CallOptions::add_d_q) does for `d_q`.
    pub fn add_d_k(mut self) -> CallOptions<'a> {
        self.add_flags |= sys::ANNULUS_CALL_ADD_D_K as u64;
        self
    }

    /// Makes backward add dV to `d_v`, as [`add_d_q`](CallOptions::add_d_q) does for `d_q`.
    pub fn add_d_v(mut self) -> CallOptions<'a> {
        self.add_flags |= sys::ANNULUS_CALL_ADD_D_V as u64;
        self
    }

    pub(crate) fn raw(&self) -> Result<sys::annulus_call_options> {
        let mut raw = sys::ANNULUS_CALL_OPTIONS_INIT;
        raw.flags = self.add_flags;
        if let Some(position) = self.query_start {
            raw.flags |= sys::ANNULUS_CALL_QUERY_WINDOW as u64;
            raw.query_start = position;
        }
        if let Some(lengths) = self.sequence_lengths {
            raw.sequence_lengths = lengths.as_ptr();
            raw.sequence_count = lengths.len() as i64;
        }
        if let Some(starts) = self.sequence_starts {
            let count = starts.len() as i64 - 1;
            if self.sequence_lengths.is_some() && raw.sequence_count != count {
                return Err(Error::argument(format!(
                    "sequence_starts has {} numbers and sequence_lengths {}; it must have one more, where the last \
                     sequence ends",
                    starts.len(),
                    raw.sequence_count
                )));
            }
            raw.sequence_starts = starts.as_ptr();
            raw.sequence_count = count;
        }
        Ok(raw)
    }
}

impl Context {
    /// Makes a context on the CPU.
    pub fn cpu(config: &Config) -> Result<Context> {
        Context::new(Device::Cpu, 0, config)
    }

    /// Makes a context on device number `index`, counted from 0 as the CUDA runtime does.
    pub fn new(device: Device, index: i32, config: &Config) -> Result<Context> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::annulus_context_create(&mut handle, device.code(), index) })?;
        let mut context = Context { handle, comm: None };
        context.set_config(config)?;
        Ok(context)
    }

    /// Gives the context a copy of another config.
    pub fn set_config(&mut self, config: &Config) -> Result<()> {
        check(unsafe { sys::annulus_context_set_config(self.handle, config.as_ptr()) })
    }

    /// Returns a copy of the context's config.
    pub fn config(&self) -> Result<Config> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::annulus_context_copy_config(&mut handle, self.handle) })?;
        Ok(Config::from_handle(handle))
    }

    /// Sets how many CPU threads a call may use; 0: the number in `ANNULUS_NUM_THREADS`, or one for each CPU that the
    /// process may use. Results do not depend on it.
    pub fn set_threads(&mut self, threads: i32) -> Result<()> {
        check(unsafe { sys::annulus_context_set_threads(self.handle, threads) })
    }

    /// Returns how many CPU threads a call may use now: the number that was set, or the default. 1 on a CUDA device.
    pub fn threads(&self) -> Result<i32> {
        let mut threads = 0;
        check(unsafe { sys::annulus_context_get_threads(self.handle, &mut threads) })?;
        Ok(threads)
    }

    /// Sets the stream on which work on a CUDA device is ordered; null: the default stream.
    ///
    /// # Safety
    /// `stream` is null or a `cudaStream_t` of the context's device that lives as long as the context uses it.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<()> {
        check(sys::annulus_context_set_stream(self.handle, stream))
    }

    /// Makes calls use this memory of the context's device instead of allocating; null with 0 bytes: they allocate
    /// again.
    ///
    /// # Safety
    /// The `bytes` bytes exist, and no one else uses them, as long as the context has them; on a GPU until the
    /// context's stream has passed the last call.
    pub unsafe fn set_workspace(&mut self, workspace: *mut c_void, bytes: usize) -> Result<()> {
        check(sys::annulus_context_set_workspace(self.handle, workspace, bytes))
    }

    /// Computes O and, if `lse` is given, LSE.
    ///
    /// | tensor | shape | |
    /// |---|---|---|
    /// | `q`, `out` | \[B, Nq, H, D\] | |
    /// | `k`, `v` | \[B, N, G, D\] | G divides H |
    /// | `lse` | \[B, H, Nq\] | float32, float64 if `q` is |
    ///
    /// Without a query window in `options` Nq = N. On a GPU the call does not wait for the device. After
    /// [`Status::ARGUMENT`](crate::Status::ARGUMENT) nothing was written.
    ///
    /// ```
    /// use annulus::{CallOptions, Config, Context, TensorMut, TensorRef};
    /// # fn main() -> annulus::Result<()> {
    /// let shape = [1, 100, 4, 16];
    /// let (q, k, v) = (vec![0.5_f32; 6400], vec![0.25_f32; 6400], vec![2.0_f32; 6400]);
    /// let (mut out, mut lse) = (vec![0.0_f32; 6400], vec![0.0_f32; 400]);
    /// let config = Config::builder().branch(32, 1).branch(100, 4).causal(true).build()?;
    /// let mut context = Context::cpu(&config)?;
    /// context.forward(
    ///     &TensorRef::new(&q, &shape)?,
    ///     &TensorRef::new(&k, &shape)?,
    ///     &TensorRef::new(&v, &shape)?,
    ///     &mut TensorMut::new(&mut out, &shape)?,
    ///     Some(&mut TensorMut::new(&mut lse, &[1, 4, 100])?),
    ///     &CallOptions::new(),
    /// )?;
    /// assert!(out.iter().all(|x| (x - 2.0).abs() < 1e-5));
    /// # Ok(()) }
    /// ```
    pub fn forward<T: Element>(
        &mut self,
        q: &TensorRef<'_, T>,
        k: &TensorRef<'_, T>,
        v: &TensorRef<'_, T>,
        out: &mut TensorMut<'_, T>,
        lse: Option<&mut TensorMut<'_, T::Lse>>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let (q, k, v, out, lse) = (q.as_raw(), k.as_raw(), v.as_raw(), out.as_raw(), raw_mut(lse));
        let _guard = self.comm.as_ref().map(Comm::lock);
        check(unsafe { sys::annulus_forward(self.handle, q, k, v, out, lse, &options.raw()?) })
    }

    /// Computes the gradients dQ, dK and dV of a forward call with the same config and `options`, from dO and, unless
    /// it is None, dLSE.
    ///
    /// `d_q`, `d_k` and `d_v` have the shapes of `q`, `k` and `v`. Each has the element type of `q`, or `f32` if that is
    /// [`Bf16`](crate::Bf16) or [`F16`](crate::F16). `options` says which of them are added to; all others are
    /// overwritten.
    #[allow(clippy::too_many_arguments)] // the formula has this number of arrays
    pub fn backward<T: Element, Q: GradientOf<T>, K: GradientOf<T>, V: GradientOf<T>>(
        &mut self,
        q: &TensorRef<'_, T>,
        k: &TensorRef<'_, T>,
        v: &TensorRef<'_, T>,
        out: &TensorRef<'_, T>,
        lse: &TensorRef<'_, T::Lse>,
        d_out: &TensorRef<'_, T>,
        d_lse: Option<&TensorRef<'_, T::Lse>>,
        d_q: &mut TensorMut<'_, Q>,
        d_k: &mut TensorMut<'_, K>,
        d_v: &mut TensorMut<'_, V>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let (q, k, v, out, lse) = (q.as_raw(), k.as_raw(), v.as_raw(), out.as_raw(), lse.as_raw());
        let (d_out, d_lse) = (d_out.as_raw(), raw(d_lse));
        let (d_q, d_k, d_v) = (d_q.as_raw(), d_k.as_raw(), d_v.as_raw());
        let options = options.raw()?;
        let _guard = self.comm.as_ref().map(Comm::lock);
        check(unsafe { sys::annulus_backward(self.handle, q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v, &options) })
    }

    /// Computes how much each key is attended to: `mass` \[B, H, N\], the sum over the queries of their probabilities.
    ///
    /// `q`, `k`, `lse` and `options` are those of a forward call with the same config. The masses of a head add up to the
    /// number of queries that attend to any key, less the probabilities that zero_keys padding takes. It costs about as
    /// much as forward.
    ///
    /// With a query window the sum is over the queries of the window. With a communicator it is over the queries of all
    /// ranks, and the rank gets the mass of its own keys.
    ///
    /// ```
    /// use annulus::{CallOptions, Config, Context, TensorMut, TensorRef};
    /// # fn main() -> annulus::Result<()> {
    /// let (rows, numbers) = ([1, 100, 4, 16], [1, 4, 100]);
    /// let (q, k) = (vec![0.5_f32; 6400], vec![0.25_f32; 6400]);
    /// let (mut out, mut lse, mut mass) = (vec![0.0_f32; 6400], vec![0.0_f32; 400], vec![0.0_f32; 400]);
    /// let mut context = Context::cpu(&Config::builder().branch(0, 1).build()?)?;
    /// let (q, k) = (TensorRef::new(&q, &rows)?, TensorRef::new(&k, &rows)?);
    /// let mut all_lse = TensorMut::new(&mut lse, &numbers)?;
    /// context.forward(&q, &k, &k, &mut TensorMut::new(&mut out, &rows)?, Some(&mut all_lse), &CallOptions::new())?;
    /// let mut masses = TensorMut::new(&mut mass, &numbers)?;
    /// context.attention_mass(&q, &k, &all_lse.as_ref(), &mut masses, &CallOptions::new())?;
    /// assert!(mass.iter().all(|x| (x - 1.0).abs() < 1e-4)); // all keys are alike
    /// # Ok(()) }
    /// ```
    pub fn attention_mass<T: Element>(
        &mut self,
        q: &TensorRef<'_, T>,
        k: &TensorRef<'_, T>,
        lse: &TensorRef<'_, T::Lse>,
        mass: &mut TensorMut<'_, T::Lse>,
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let (q, k, lse, mass) = (q.as_raw(), k.as_raw(), lse.as_raw(), mass.as_raw());
        let _guard = self.comm.as_ref().map(Comm::lock);
        check(unsafe { sys::annulus_attention_mass(self.handle, q, k, lse, mass, &options.raw()?) })
    }

    /// Merges results over different keys, for the same queries, into the result of one softmax over all keys.
    ///
    /// Computes O \[B, Nq, H, D\] and, if `lse` is given, LSE \[B, H, Nq\]. `parts` are from 1 to 48 pairs of both.
    /// Logarithms are natural. If a row's LSE is -infinity, the part counts for nothing in that row. A key that is in
    /// two parts counts twice. The config is not read. With a communicator the rank merges its own rows alone.
    ///
    /// Gradients: [`Context::backward`] on a part, with the merged `out` and `lse`, gives the gradients of the part's
    /// keys and values and its summand of `d_q`.
    ///
    /// ```
    /// use annulus::{Config, Context, TensorMut, TensorRef};
    /// # fn main() -> annulus::Result<()> {
    /// let (rows, numbers) = ([1, 1, 1, 8], [1, 1, 1]);
    /// let (ones, fours, lse) = ([1.0_f32; 8], [4.0_f32; 8], [0.0_f32, 2.0_f32.ln()]);
    /// let mut context = Context::cpu(&Config::builder().branch(0, 1).build()?)?;
    /// let (mut out, mut merged_lse) = ([0.0_f32; 8], [0.0_f32]);
    /// context.merge(
    ///     &[
    ///         (TensorRef::new(&ones, &rows)?, TensorRef::new(&lse[..1], &numbers)?),
    ///         (TensorRef::new(&fours, &rows)?, TensorRef::new(&lse[1..], &numbers)?),
    ///     ],
    ///     &mut TensorMut::new(&mut out, &rows)?,
    ///     Some(&mut TensorMut::new(&mut merged_lse, &numbers)?),
    /// )?;
    /// assert!(out.iter().all(|x| (x - 3.0).abs() < 1e-6)); // 1 / 3 of 1, 2 / 3 of 4
    /// assert!((merged_lse[0] - 3.0_f32.ln()).abs() < 1e-6);
    /// # Ok(()) }
    /// ```
    pub fn merge<T: Element>(
        &mut self,
        parts: &[(TensorRef<'_, T>, TensorRef<'_, T::Lse>)],
        out: &mut TensorMut<'_, T>,
        lse: Option<&mut TensorMut<'_, T::Lse>>,
    ) -> Result<()> {
        let outs: Vec<sys::annulus_tensor> = parts.iter().map(|(out, _)| out.describe()).collect();
        let lses: Vec<sys::annulus_tensor> = parts.iter().map(|(_, lse)| lse.describe()).collect();
        let count = i32::try_from(parts.len()).unwrap_or(i32::MAX);
        let (out, lse) = (out.as_raw(), raw_mut(lse));
        check(unsafe { sys::annulus_merge(self.handle, count, outs.as_ptr(), lses.as_ptr(), out, lse, ptr::null()) })
    }

    /// Returns the engine that computed the last successful call; [`Engine::AUTO`] before the first.
    pub fn last_engine(&self) -> Result<Engine> {
        let mut engine = sys::ANNULUS_ENGINE_AUTO;
        check(unsafe { sys::annulus_context_last_engine(self.handle, &mut engine) })?;
        Ok(Engine(engine))
    }

    /// Makes the calls collective over the ranks of a communicator, which the context keeps alive; None: the context
    /// computes alone again. Other contexts may have clones. Removes the shards. Returns the communicator before.
    pub fn set_comm(&mut self, comm: Option<Comm>) -> Result<Option<Comm>> {
        let handle = comm.as_ref().map_or(ptr::null_mut(), Comm::handle);
        check(unsafe { sys::annulus_context_set_comm(self.handle, handle) })?;
        Ok(std::mem::replace(&mut self.comm, comm))
    }

    /// Returns the communicator.
    pub fn comm(&self) -> Option<&Comm> {
        self.comm.as_ref()
    }

    /// Says which rank holds which positions; calls check it. None: each rank has one shard, the positions that its
    /// tensors hold.
    pub fn set_shards(&mut self, shards: Option<Shards<'_>>) -> Result<()> {
        let raw = shards.map(|shards| Shards::raw(Some(shards), 0)).transpose()?;
        let pointer = raw.as_ref().map_or(ptr::null(), |raw| raw as *const _);
        check(unsafe { sys::annulus_context_set_shards(self.handle, pointer) })
    }

    /// Returns the bytes of rows that the last successful call sent to and received from other ranks.
    pub fn last_traffic(&self) -> Result<Traffic> {
        let mut traffic = sys::ANNULUS_TRAFFIC_INIT;
        check(unsafe { sys::annulus_context_last_traffic(self.handle, &mut traffic) })?;
        Ok(Traffic { sent_bytes: traffic.sent_bytes, received_bytes: traffic.received_bytes })
    }

    /// Returns the C API's handle, for functions of `annulus-sys`. The context still owns it.
    pub fn as_ptr(&self) -> *mut sys::annulus_context {
        self.handle
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Before the communicator: Rust drops fields after this.
        unsafe { sys::annulus_context_destroy(self.handle) }
    }
}

/// The bytes that a call sent to and received from other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    pub sent_bytes: u64,
    pub received_bytes: u64,
}
