// SPDX-License-Identifier: Apache-2.0
//! Communicators: several ranks share one sequence.

use crate::error::{check, failure, Error, Result};
use annulus_sys as sys;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One rank's end of a communicator. [`Context::set_comm`](crate::Context::set_comm) makes forward and backward calls
/// collective: every rank makes the same calls, in the same order, with its own shard of the sequence.
///
/// A clone is the same end, for another context of the rank; calls on both wait for each other. Dropping the last clone
/// destroys the end.
#[derive(Clone, Debug)]
pub struct Comm(Arc<End>);

#[derive(Debug)]
struct End {
    handle: *mut sys::annulus_comm,
    lock: Mutex<()>,
    shared: Arc<Shared>,
}

/// The handle for aborting the communicator and asking for its state; null once the communicator is destroyed.
#[derive(Debug)]
struct Shared(Mutex<*mut sys::annulus_comm>);

// One thread at a time uses an end: the thread that holds `lock`. Any thread may abort it or ask for its state, through
// Shared.
unsafe impl Send for End {}
unsafe impl Sync for End {}
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

/// The id of an NCCL communicator. One rank creates it and passes the bytes to all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclId(pub [u8; 128]);

impl NcclId {
    /// Creates a new id.
    pub fn create() -> Result<NcclId> {
        let mut id = sys::annulus_nccl_id { bytes: [0; 128] };
        check(unsafe { sys::annulus_nccl_id_generate(&mut id) })?;
        Ok(NcclId(id.bytes.map(|byte| byte as u8)))
    }
}

/// Options for making a communicator; usually `CommOptions::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommOptions {
    creation_timeout: Duration,
    only_nccl: bool,
}

impl CommOptions {
    /// Sets how long to wait for the other ranks while the communicator is made. The default, and zero, are 5 minutes.
    pub fn creation_timeout(mut self, timeout: Duration) -> CommOptions {
        self.creation_timeout = timeout;
        self
    }

    /// Says whether the ranks agree and exchange rows by NCCL alone, as between hosts, also where they could use memory
    /// of one host. One rank that says so is enough.
    pub fn only_nccl(mut self, only_nccl: bool) -> CommOptions {
        self.only_nccl = only_nccl;
        self
    }

    fn as_c(&self) -> sys::annulus_comm_options {
        sys::annulus_comm_options {
            creation_timeout: self.creation_timeout.as_secs_f64(),
            flags: if self.only_nccl { sys::ANNULUS_COMM_ONLY_NCCL as u64 } else { 0 },
            ..sys::ANNULUS_COMM_OPTIONS_INIT
        }
    }
}

impl Comm {
    fn from_handle(handle: *mut sys::annulus_comm) -> Comm {
        Comm(Arc::new(End { handle, lock: Mutex::new(()), shared: Arc::new(Shared(Mutex::new(handle))) }))
    }

    pub(crate) fn handle(&self) -> *mut sys::annulus_comm {
        self.0.handle
    }

    /// Locks the end. A call holds the guard while it uses the end.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the ends of a communicator between `ranks` threads of this process, one for each.
    ///
    /// ```
    /// use annulus::{CallOptions, Comm, Config, Context, TensorMut, TensorRef};
    /// # fn main() -> annulus::Result<()> {
    /// let config = Config::builder().branch(16, 1).branch(0, 4).causal(true).build()?;
    /// let work = |comm| {
    ///     let shape = [1, 32, 4, 16]; // half of 64 positions
    ///     let rows = vec![0.5_f32; 32 * 4 * 16];
    ///     let mut out = vec![0.0_f32; 32 * 4 * 16];
    ///     let x = TensorRef::new(&rows, &shape)?;
    ///     let mut context = Context::cpu(&config)?;
    ///     context.set_comm(Some(comm))?;
    ///     context.forward(&x, &x, &x, &mut TensorMut::new(&mut out, &shape)?, None, &CallOptions::new())
    /// };
    /// let comms = Comm::local(2)?;
    /// std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
    ///     ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
    /// })
    /// # }
    /// ```
    pub fn local(ranks: i32) -> Result<Vec<Comm>> {
        create_several(ranks, |handles| unsafe { sys::annulus_comm_create_local(handles, ranks, ptr::null()) })
    }

    /// Makes the end of rank `rank` of `ranks` over NCCL, on a CUDA device. Collective: waits for the other ranks,
    /// which pass the same id.
    pub fn nccl(id: &NcclId, ranks: i32, rank: i32, device: i32, options: CommOptions) -> Result<Comm> {
        let id = sys::annulus_nccl_id { bytes: id.0.map(|byte| byte as _) };
        let mut handle = ptr::null_mut();
        check(unsafe { sys::annulus_comm_create_nccl(&mut handle, &id, ranks, rank, device, &options.as_c()) })?;
        Ok(Comm::from_handle(handle))
    }

    /// Makes the ends of an NCCL communicator over CUDA devices of this process. End i is for a context on
    /// `devices[i]`.
    pub fn nccl_devices(devices: &[i32], options: CommOptions) -> Result<Vec<Comm>> {
        let ranks = i32::try_from(devices.len()).unwrap_or(i32::MAX);
        create_several(ranks, |handles| unsafe {
            sys::annulus_comm_create_nccl_devices(handles, ranks, devices.as_ptr(), &options.as_c())
        })
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> Result<i32> {
        let mut size = 0;
        check(unsafe { sys::annulus_comm_size(self.handle(), &mut size) })?;
        Ok(size)
    }

    /// Returns the rank of this end, from 0.
    pub fn rank(&self) -> Result<i32> {
        let mut rank = 0;
        check(unsafe { sys::annulus_comm_rank(self.handle(), &mut rank) })?;
        Ok(rank)
    }

    /// Sets how long a call waits for another rank before it fails; 5 minutes by default.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let _guard = self.lock();
        check(unsafe { sys::annulus_comm_set_timeout(self.handle(), timeout.as_secs_f64()) })
    }

    /// Returns why the communicator broke; `None` if it is usable as far as this rank knows. Over NCCL it may break
    /// after a call has returned. Never waits. A broken communicator stays broken: make a new one.
    pub fn failure(&self) -> Option<Error> {
        state(self.handle())
    }

    /// Returns a handle by which another thread may break this end or ask for its state.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.0.shared))
    }
}

/// Returns why a communicator broke, or why the library cannot say; `None` if it is usable.
fn state(handle: *const sys::annulus_comm) -> Option<Error> {
    let mut status = sys::ANNULUS_OK;
    failure(unsafe { sys::annulus_comm_status(handle, &mut status) }).or_else(|| failure(status))
}

/// Makes the ends of a communicator. Checks `ranks` first, since `create` writes that many handles.
fn create_several(
    ranks: i32,
    create: impl FnOnce(*mut *mut sys::annulus_comm) -> sys::annulus_status,
) -> Result<Vec<Comm>> {
    const MOST: i32 = 4096;
    if !(1..=MOST).contains(&ranks) {
        return Err(Error::argument(format!("ranks is {ranks}; it may be 1 to {MOST}")));
    }
    let mut handles = vec![ptr::null_mut(); ranks as usize];
    check(create(handles.as_mut_ptr()))?;
    Ok(handles.into_iter().map(Comm::from_handle).collect())
}

impl Drop for End {
    fn drop(&mut self) {
        // With the lock, since another thread may be aborting.
        let mut handle = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        unsafe { sys::annulus_comm_destroy(*handle) };
        *handle = ptr::null_mut();
    }
}

/// Breaks a communicator from any thread, or asks whether it is broken.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<Shared>);

impl AbortHandle {
    /// Breaks the communicator: calls that wait in it return an error, and other ranks' calls fail when they wait for
    /// this rank. Does nothing if the communicator has been dropped.
    pub fn abort(&self) -> Result<()> {
        let handle = self.0 .0.lock().unwrap_or_else(PoisonError::into_inner);
        if handle.is_null() {
            return Ok(());
        }
        check(unsafe { sys::annulus_comm_abort(*handle) })
    }

    /// Returns the same as [`Comm::failure`]; also `None` if the communicator has been dropped.
    pub fn failure(&self) -> Option<Error> {
        let handle = self.0 .0.lock().unwrap_or_else(PoisonError::into_inner);
        if handle.is_null() {
            return None;
        }
        state(*handle)
    }
}
