// SPDX-License-Identifier: Apache-2.0
// What headers name of CLI11. CLI/CLI.hpp, which takes seconds to compile, is for the sources behind them.
#pragma once

namespace CLI {
class App;
class Option;
} // namespace CLI
