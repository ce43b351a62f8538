// SPDX-License-Identifier: Apache-2.0
//! Statuses and errors.

use annulus_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::os::raw::{c_char, c_int};

/// Why a call failed. With a status below 100 nothing was written; from 100 on outputs may be partly written. A status
/// of a newer library has no constant here, but keeps its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(c_int);

impl Status {
    /// An argument has a value that it may not have.
    pub const ARGUMENT: Status = Status(sys::ANNULUS_ERROR_ARGUMENT);
    /// The call is legal, but the engine, the device or this build cannot do it.
    pub const UNSUPPORTED: Status = Status(sys::ANNULUS_ERROR_UNSUPPORTED);
    /// An allocation failed.
    pub const MEMORY: Status = Status(sys::ANNULUS_ERROR_MEMORY);
    /// The workspace or its limit is too small; [`Error::bytes`] says how much is needed.
    pub const WORKSPACE: Status = Status(sys::ANNULUS_ERROR_WORKSPACE);
    /// Another rank could not do its part; the communicator stays usable.
    pub const DECLINED: Status = Status(sys::ANNULUS_ERROR_DECLINED);
    /// A library or the driver of the device failed; [`Error::library`] and [`Error::code`] say which and how.
    pub const DEVICE: Status = Status(sys::ANNULUS_ERROR_DEVICE);
    /// Another rank failed or did not call in time, or the communicator was aborted.
    pub const COMM: Status = Status(sys::ANNULUS_ERROR_COMM);
    /// The library below a communicator failed; [`Error::library`] and [`Error::code`] say which and how.
    pub const COMM_LIBRARY: Status = Status(sys::ANNULUS_ERROR_COMM_LIBRARY);
    /// A defect in annulus; please report the message.
    pub const INTERNAL: Status = Status(sys::ANNULUS_ERROR_INTERNAL);

    /// Returns the status with this number of the C API.
    pub const fn from_code(code: c_int) -> Status {
        Status(code)
    }

    /// Returns the C API's number.
    pub const fn code(self) -> c_int {
        self.0
    }

    /// Returns the name in lower case, such as "argument", or "unknown".
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

/// A failed call: its status, and one line that names the argument, its value and what it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: String,
    bytes: u64,
    library: &'static str,
    code: i64,
}

/// The result of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn argument(message: String) -> Error {
        Error { status: Status::ARGUMENT, message, bytes: 0, library: "", code: 0 }
    }

    /// Returns the kind of failure.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the line that says what was wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the bytes of workspace that the call needs if the status is [`Status::WORKSPACE`]; else 0.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the name of the library that failed, such as "cuda" or "nccl"; "" if none failed.
    pub fn library(&self) -> &'static str {
        self.library
    }

    /// Returns the number that the library's function returned; 0 if none failed.
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

/// Turns the status of a C function into a result. Must run on the thread of the call, before its next call.
pub(crate) fn check(status: sys::annulus_status) -> Result<()> {
    failure(status).map_or(Ok(()), Err)
}

/// Makes the error for the status of this thread's last call; None for success.
pub(crate) fn failure(status: sys::annulus_status) -> Option<Error> {
    if status == sys::ANNULUS_OK {
        return None;
    }
    let message = unsafe { CStr::from_ptr(sys::annulus_last_error()) }.to_string_lossy().into_owned();
    let library = unsafe { static_text(sys::annulus_last_error_library()) };
    let (bytes, code) = unsafe { (sys::annulus_last_error_bytes(), sys::annulus_last_error_code()) };
    Some(Error { status: Status(status), message, bytes, library, code })
}

/// Returns a string that the library keeps for ever; "" for NULL.
///
/// # Safety
/// `text` is NULL or a C string that lives as long as the process.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    CStr::from_ptr(text).to_str().unwrap_or("")
}
