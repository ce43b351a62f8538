// SPDX-License-Identifier: Apache-2.0
// What may hang or crash is tried in a process of its own.
#pragma once

#include <functional>
#include <string>

namespace annulus::test {

// Calls `work` in a forked child and returns what it returned: "" where all is well, else what is not. So is an
// exception's message, and how the child ended where it gave no answer: by a signal, or not within `seconds`.
std::string in_child(const std::function<std::string()> &work, unsigned seconds = 20);

// Calls `work` in a forked child that then calls exit(0), as a program does whose main() returns. "" where it so ended,
// else what is not well, as above.
std::string in_child_that_exits(const std::function<void()> &work, unsigned seconds = 20);

} // namespace annulus::test
