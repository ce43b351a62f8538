// SPDX-License-Identifier: Apache-2.0
// What headers name of CLI11. CLI/CLI.hpp, which takes seconds to compile, is for the sources that add options.
#pragma once

namespace CLI {
class App;
class Option;
} // namespace CLI
