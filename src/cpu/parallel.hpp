// SPDX-License-Identifier: Apache-2.0
// The threads of one call: they are started for it and end with it. They block all signals of the program.
#pragma once

#include <cstdint>
#include <type_traits>

namespace annulus {

// A reference to a callable object, which must outlive it. It allocates nothing.
template <class Signature> class FunctionRef;
template <class R, class... Arguments> class FunctionRef<R(Arguments...)> {
  public:
    template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
        FunctionRef(F &&f) // NOLINT(bugprone-forwarding-reference-overload): excluded by the constraint
        : object_(const_cast<void *>(static_cast<const void *>(&f))),
          call_([](void *object, Arguments... arguments) -> R {
              return (*static_cast<std::remove_reference_t<F> *>(object))(arguments...);
          }) {}
    R operator()(Arguments... arguments) const { return call_(object_, arguments...); }

  private:
    void *object_;
    R (*call_)(void *, Arguments...);
};

// Runs work(phase, item, worker) for phase 0 … phases - 1 and item 0 … items(phase) - 1, with 0 <= worker < threads.
// The items of a phase run in any order and at the same time. A phase begins when the phase before it has ended. If the
// system gives fewer threads than asked for, those threads do all the work. `work` must not throw.
void parallel_phases(int threads, std::int64_t phases, FunctionRef<std::int64_t(std::int64_t)> items,
                     FunctionRef<void(std::int64_t, std::int64_t, int)> work);

// Runs work(item, worker) for the items of a single phase.
void parallel_for(int threads, std::int64_t items, FunctionRef<void(std::int64_t, int)> work);

} // namespace annulus
