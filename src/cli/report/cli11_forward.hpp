// SPDX-License-Identifier: Apache-2.0
// Declares the classes of CLI11 that headers name. Only sources include CLI/CLI.hpp, which takes seconds to compile.
#pragma once

namespace CLI {
class App;
class Option;
} // namespace CLI
