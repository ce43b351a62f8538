// SPDX-License-Identifier: Apache-2.0
// A program that is linked with allocations.cpp has an operator new, which serves the library too, that fails when it
// is asked to and counts what is alive.
#pragma once

namespace annulus::test {

// Lets the allocation of this thread that comes after `served` others fail, once.
void fail_allocation_after(long served);
// Takes that back.
void fail_no_allocation();

// By this thread so far.
long allocations_made();

// Of all threads.
long live_allocations();

} // namespace annulus::test
