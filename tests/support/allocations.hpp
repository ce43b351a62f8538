// SPDX-License-Identifier: Apache-2.0
// A program that is linked with allocations.cpp has its own operator new, which the library uses, too. It fails on
// request and counts live allocations.
#pragma once

namespace annulus::test {

// Lets one allocation of this thread fail, after `served` others have succeeded.
void fail_allocation_after(long served);
// Cancels fail_allocation_after().
void fail_no_allocation();

// Returns the number of allocations of this thread up to now.
long allocations_made();

// Returns the number of live allocations of all threads.
long live_allocations();

} // namespace annulus::test
