// SPDX-License-Identifier: Apache-2.0
// The library's handles as owning pointers, its statuses as exceptions, and the program's own errors.
#pragma once

#include <annulus/annulus.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace annulus::cli {

inline constexpr int exit_failed = 1;
inline constexpr int exit_bad_input = 2;

// What ends the program: one line for the user, and the exit code.
class Failure : public std::runtime_error {
  public:
    Failure(int exit_code, const std::string &message) : std::runtime_error(message), exit_code_(exit_code) {}
    int exit_code() const noexcept { return exit_code_; }

  private:
    int exit_code_;
};

// A failure of what connects the ranks. It may have its cause in the failure of another rank, whose message says more.
class ConnectionFailure : public Failure {
  public:
    explicit ConnectionFailure(const std::string &message) : Failure(exit_failed, message) {}
};

inline Failure bad_input(const std::string &message) {
    return Failure(exit_bad_input, message);
}

// The I-th device of a kind.
struct DeviceChoice {
    annulus_device kind = ANNULUS_DEVICE_CPU;
    std::int32_t index = 0;
};

// Throws the library's message unless `status` is ANNULUS_OK. `subject`, if any, is what the user wrote.
void check(annulus_status status, const std::string &subject = {});

struct Destroy {
    void operator()(annulus_config *config) const { annulus_config_destroy(config); }
    void operator()(annulus_context *context) const { annulus_context_destroy(context); }
    void operator()(annulus_comm *comm) const { annulus_comm_destroy(comm); }
};
using Config = std::unique_ptr<annulus_config, Destroy>;
using Context = std::unique_ptr<annulus_context, Destroy>;
using Comm = std::unique_ptr<annulus_comm, Destroy>;

Config make_config();
Context create_context(const DeviceChoice &device);

} // namespace annulus::cli
