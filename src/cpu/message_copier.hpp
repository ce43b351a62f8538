// SPDX-License-Identifier: Apache-2.0
// Copies the rows of messages on a CPU.
#pragma once

#include "ranks/message_copier.hpp"

#include <memory>

namespace annulus {

std::unique_ptr<MessageCopier> make_cpu_message_copier();

} // namespace annulus
