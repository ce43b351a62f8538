// SPDX-License-Identifier: Apache-2.0
// Runs work that may hang or crash in a process of its own.
#pragma once

#include <functional>
#include <string>

namespace annulus::test {

// Calls `work` in a forked child and returns its result: "" if all is well, otherwise what is wrong. If `work` throws,
// returns the exception's message. If the child gives no answer, returns how it ended: by a signal, or not within
// `seconds`.
std::string in_child(const std::function<std::string()> &work, unsigned seconds = 20);

// Calls `work` in a forked child that then calls exit(0), like a program whose main() returns. Returns "" if the child
// ended by exit(0), otherwise what is wrong, as above.
std::string in_child_that_exits(const std::function<void()> &work, unsigned seconds = 20);

} // namespace annulus::test
