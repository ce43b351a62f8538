// SPDX-License-Identifier: Apache-2.0
// The exceptions that end the program early, and the exit codes.
#pragma once

#include <stdexcept>
#include <string>

namespace annulus::cli {

inline constexpr int exit_failed = 1;
inline constexpr int exit_bad_input = 2;

// Ends the program with one line for the user and an exit code.
class Failure : public std::runtime_error {
  public:
    Failure(int exit_code, const std::string &message) : std::runtime_error(message), exit_code_(exit_code) {}
    int exit_code() const noexcept { return exit_code_; }

  private:
    int exit_code_;
};

// A failure of the connection between ranks. Its cause may be a failure of another rank, whose message says more.
class ConnectionFailure : public Failure {
  public:
    explicit ConnectionFailure(const std::string &message) : Failure(exit_failed, message) {}
};

inline Failure bad_input(const std::string &message) {
    return Failure(exit_bad_input, message);
}

} // namespace annulus::cli
