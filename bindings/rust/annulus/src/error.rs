// SPDX-License-Identifier: Apache-2.0
//! Statuses and errors.

use annulus_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::os::raw::{c_char, c_int};

/// Why a call failed. Of those below 100 nothing was written; of 100 and above outputs may be partly written. A newer
/// library may return statuses that have no name here; they are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(c_int);

impl Status {
    /// An argument is not what the function allows.
    pub const ARGUMENT: Status = Status(sys::ANNULUS_ERROR_ARGUMENT);
    /// Legal, but the chosen engine, device or build cannot do it.
    pub const UNSUPPORTED: Status = Status(sys::ANNULUS_ERROR_UNSUPPORTED);
    /// An allocation failed.
    pub const MEMORY: Status = Status(sys::ANNULUS_ERROR_MEMORY);
    /// The workspace or its limit is too small; [`Error::bytes`] says how much is needed.
    pub const WORKSPACE: Status = Status(sys::ANNULUS_ERROR_WORKSPACE);
    /// Another rank could not do its part; the communicator stays usable.
    pub const DECLINED: Status = Status(sys::ANNULUS_ERROR_DECLINED);
    /// A library or the driver of the device failed; [`Error::library`] and [`Error::code`] say which and how.
    pub const DEVICE: Status = Status(sys::ANNULUS_ERROR_DEVICE);
    /// Another rank failed, did not come in time, or the communicator was aborted.
    pub const COMM: Status = Status(sys::ANNULUS_ERROR_COMM);
    /// The library below a communicator failed; [`Error::library`] and [`Error::code`] say which and how.
    pub const COMM_LIBRARY: Status = Status(sys::ANNULUS_ERROR_COMM_LIBRARY);
    /// A defect in annulus; please report the message.
    pub const INTERNAL: Status = Status(sys::ANNULUS_ERROR_INTERNAL);

    /// The status that the C API has this number for.
    pub const fn from_code(code: c_int) -> Status {
        Status(code)
    }

    /// The C API's number.
    pub const fn code(self) -> c_int {
        self.0
    }

    /// The name in lower case, such as "argument", or "unknown".
    pub fn name(self) -> &'static str {
        unsafe { static_text(sys::annulus_status_name(self.0)) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({}: {})", self.0, self.name())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failed call: its status, and one line that names the argument, the value it had and what it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: String,
    bytes: u64,
    library: &'static str,
    code: i64,
}

/// What every call that can fail returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn argument(message: String) -> Error {
        Error { status: Status::ARGUMENT, message, bytes: 0, library: "", code: 0 }
    }

    /// What kind of failure it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The line that says what was wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The bytes of workspace that the call would have needed, where the status is [`Status::WORKSPACE`]; else 0.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The library whose failure it was, such as "cuda" or "nccl"; "" where none failed.
    pub fn library(&self) -> &'static str {
        self.library
    }

    /// What that library's function returned; 0 where none failed.
    pub fn code(&self) -> i64 {
        self.code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} error: {}", self.status, self.message)
    }
}

impl std::error::Error for Error {}

/// Turns what a C function returned into a result. To be called on the thread that made the call, before the next one.
pub(crate) fn check(status: sys::annulus_status) -> Result<()> {
    failure(status).map_or(Ok(()), Err)
}

/// What a status stands for that this thread has just got.
pub(crate) fn failure(status: sys::annulus_status) -> Option<Error> {
    if status == sys::ANNULUS_OK {
        return None;
    }
    let message = unsafe { CStr::from_ptr(sys::annulus_last_error()) }.to_string_lossy().into_owned();
    let library = unsafe { static_text(sys::annulus_last_error_library()) };
    let (bytes, code) = unsafe { (sys::annulus_last_error_bytes(), sys::annulus_last_error_code()) };
    Some(Error { status: Status(status), message, bytes, library, code })
}

/// A string that the library keeps for ever; "" for NULL.
///
/// # Safety
/// `text` is NULL or a C string that lives as long as the process.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    CStr::from_ptr(text).to_str().unwrap_or("")
}
