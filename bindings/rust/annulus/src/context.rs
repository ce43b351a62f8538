// SPDX-License-Identifier: Apache-2.0
//! Where to compute: a device, and what calls on it have in common.

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

    /// How many devices of this kind the library can use on this machine.
    pub fn count(self) -> Result<usize> {
        let mut count = 0;
        check(unsafe { sys::annulus_device_count(self.code(), &mut count) })?;
        Ok(count as usize)
    }
}

/// A device with a config: what forward and backward calls are made on.
///
/// One thread at a time uses a context (it may be sent to another thread); several contexts work at the same time.
#[derive(Debug)]
pub struct Context {
    pub(crate) handle: *mut sys::annulus_context,
    comm: Option<Comm>, // outlives the handle: see drop
}

// The C library ties a context to no thread.
unsafe impl Send for Context {}

fn raw<T: Element>(tensor: Option<&TensorRef<'_, T>>) -> *const sys::annulus_tensor {
    tensor.map_or(ptr::null(), TensorRef::as_raw)
}

fn raw_mut<T: Element>(tensor: Option<&mut TensorMut<'_, T>>) -> *const sys::annulus_tensor {
    tensor.map_or(ptr::null(), TensorMut::as_raw)
}

/// What a call may be given beside its tensors. By default nothing.
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
    /// Nothing: the query rows are all rows, Nq = N, and each batch entry is one sequence.
    pub fn new() -> CallOptions<'a> {
        CallOptions::default()
    }

    /// The query rows are the positions `position` … `position` + Nq − 1 of the N.
    pub fn query_start(mut self, position: i64) -> CallOptions<'a> {
        self.query_start = Some(position);
        self
    }

    /// The rows are packed sequences, one number fewer than `starts` has: sequence i has the rows `starts[i]` …
    /// `starts[i + 1]` − 1 of every batch entry. Branches count inside each; rows of none have O = 0 and LSE = −∞.
    pub fn sequence_starts(mut self, starts: &'a [i64]) -> CallOptions<'a> {
        self.sequence_starts = Some(starts);
        self
    }

    /// With starts, sequence i has only the first `lengths[i]` of its rows. Without, the batch entries are padded: b is a
    /// sequence of its first `lengths[b]` rows.
    pub fn sequence_lengths(mut self, lengths: &'a [i64]) -> CallOptions<'a> {
        self.sequence_lengths = Some(lengths);
        self
    }

    /// Backward adds dQ to what `d_q` holds, with one rounding, instead of overwriting it. An error in forward.
    pub fn add_d_q(mut self) -> CallOptions<'a> {
        self.add_flags |= sys::ANNULUS_CALL_ADD_D_Q as u64;
        self
    }

    /// The same for `d_k`.
    pub fn add_d_k(mut self) -> CallOptions<'a> {
        self.add_flags |= sys::ANNULUS_CALL_ADD_D_K as u64;
        self
    }

    /// The same for `d_v`.
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
    /// A context on the CPU.
    pub fn cpu(config: &Config) -> Result<Context> {
        Context::new(Device::Cpu, 0, config)
    }

    /// A context on a device, counted from 0 as the CUDA runtime does.
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

    /// A copy of the config that the context has.
    pub fn config(&self) -> Result<Config> {
        let mut handle = ptr::null_mut();
        check(unsafe { sys::annulus_context_copy_config(&mut handle, self.handle) })?;
        Ok(Config::from_handle(handle))
    }

    /// How many CPU threads a call may use; 0: what `ANNULUS_NUM_THREADS` says, or one for each CPU that the process
    /// may use. Results do not depend on it.
    pub fn set_threads(&mut self, threads: i32) -> Result<()> {
        check(unsafe { sys::annulus_context_set_threads(self.handle, threads) })
    }

    /// How many CPU threads a call may use now: what was set, or what the default comes to. 1 on a CUDA device.
    pub fn threads(&self) -> Result<i32> {
        let mut threads = 0;
        check(unsafe { sys::annulus_context_get_threads(self.handle, &mut threads) })?;
        Ok(threads)
    }

    /// The stream that work on a CUDA device is ordered on; null: the default stream.
    ///
    /// # Safety
    /// `stream` is null or a `cudaStream_t` of the context's device that lives as long as the context uses it.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<()> {
        check(sys::annulus_context_set_stream(self.handle, stream))
    }

    /// Memory of the context's device that calls use instead of allocating; null with 0 bytes: they allocate again.
    ///
    /// # Safety
    /// The `bytes` bytes are there, and nobody else uses them, as long as the context has them; on a GPU until the
    /// context's stream has come past the last call.
    pub unsafe fn set_workspace(&mut self, workspace: *mut c_void, bytes: usize) -> Result<()> {
        check(sys::annulus_context_set_workspace(self.handle, workspace, bytes))
    }

    /// Computes O and, where `lse` is given, LSE.
    ///
    /// | tensor | shape | |
    /// |---|---|---|
    /// | `q`, `out` | \[B, Nq, H, D\] | |
    /// | `k`, `v` | \[B, N, G, D\] | G divides H |
    /// | `lse` | \[B, H, Nq\] | float32, float64 where `q` is |
    ///
    /// Without a query window in `options` Nq = N. On a GPU the call does not wait for the device. On an error of an
    /// argument nothing was written.
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
        let _turn = self.comm.as_ref().map(Comm::turn);
        check(unsafe { sys::annulus_forward(self.handle, q, k, v, out, lse, &options.raw()?) })
    }

    /// Computes the gradients dQ, dK and dV of a forward call with the same config and `options`, given dO and, where
    /// it is not None, dLSE. Gradients have the shapes of what they are gradients of, and each its element type or, where
    /// that is [`Bf16`](crate::Bf16) or [`F16`](crate::F16), `f32`. They are overwritten, but for those that `options` says
    /// are added to.
    #[allow(clippy::too_many_arguments)] // as many as the mathematics has
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
        let _turn = self.comm.as_ref().map(Comm::turn);
        check(unsafe { sys::annulus_backward(self.handle, q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v, &options) })
    }

    /// Computes how much each key is attended to: `mass` \[B, H, N\], the sum over the queries of the probabilities that they
    /// give it. `q`, `k`, `lse` and `options` are those of a forward call with the same config. The masses of a head add up to
    /// the number of queries that attend to anything, less what zero_keys padding takes. It costs about as much as forward.
    ///
    /// With a query window the queries are those of the window, of which one tells what it looks at; with a communicator
    /// they are those of all ranks, and the rank gets the mass of its own keys.
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
        let _turn = self.comm.as_ref().map(Comm::turn);
        check(unsafe { sys::annulus_attention_mass(self.handle, q, k, lse, mass, &options.raw()?) })
    }

    /// Merges results over different keys, of the same queries, into those of one softmax over all the keys: O
    /// \[B, Nq, H, D\] and, where `lse` is given, LSE \[B, H, Nq\]. `parts` are pairs of both, from 1 to 48. Logarithms are
    /// natural; a part whose LSE is -infinity counts for nothing, and a key that two parts have counts twice.
    ///
    /// Gradients: [`Context::backward`] of each part with the merged `out` and `lse` gives those of its keys, and its
    /// share of `d_q`. The config is not looked at, and with a communicator the rank merges its own rows alone.
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

    /// The engine that served the last successful call; [`Engine::AUTO`] before the first.
    pub fn last_engine(&self) -> Result<Engine> {
        let mut engine = sys::ANNULUS_ENGINE_AUTO;
        check(unsafe { sys::annulus_context_last_engine(self.handle, &mut engine) })?;
        Ok(Engine(engine))
    }

    /// Makes the calls collective over the ranks of a communicator, which the context keeps, and of which others may have
    /// clones; None: it computes alone again. Forgets the shards. What the context had before is returned.
    pub fn set_comm(&mut self, comm: Option<Comm>) -> Result<Option<Comm>> {
        let handle = comm.as_ref().map_or(ptr::null_mut(), Comm::handle);
        check(unsafe { sys::annulus_context_set_comm(self.handle, handle) })?;
        Ok(std::mem::replace(&mut self.comm, comm))
    }

    /// The communicator.
    pub fn comm(&self) -> Option<&Comm> {
        self.comm.as_ref()
    }

    /// Which rank holds which positions, which calls then check; None: one shard a rank, of what its tensors hold.
    pub fn set_shards(&mut self, shards: Option<Shards<'_>>) -> Result<()> {
        let raw = shards.map(|shards| Shards::raw(Some(shards), 0)).transpose()?;
        let pointer = raw.as_ref().map_or(ptr::null(), |raw| raw as *const _);
        check(unsafe { sys::annulus_context_set_shards(self.handle, pointer) })
    }

    /// The bytes of rows that the last successful call sent to and received from other ranks.
    pub fn last_traffic(&self) -> Result<Traffic> {
        let mut traffic = sys::ANNULUS_TRAFFIC_INIT;
        check(unsafe { sys::annulus_context_last_traffic(self.handle, &mut traffic) })?;
        Ok(Traffic { sent_bytes: traffic.sent_bytes, received_bytes: traffic.received_bytes })
    }

    /// The C API's handle, for functions of `annulus-sys`. It stays this context's.
    pub fn as_ptr(&self) -> *mut sys::annulus_context {
        self.handle
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Before the communicator, which is a field.
        unsafe { sys::annulus_context_destroy(self.handle) }
    }
}

/// What a call sent to and received from other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    pub sent_bytes: u64,
    pub received_bytes: u64,
}
