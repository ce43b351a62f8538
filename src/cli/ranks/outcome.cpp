// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/outcome.hpp"

#include "cli/report/failure.hpp"

#include <exception>
#include <new>

namespace annulus::cli {

Outcome outcome_of(const std::function<void()> &work) {
    try {
        work();
    } catch (const ConnectionFailure &failure) {
        return {Outcome::Kind::lost_connection, failure.exit_code(), failure.what()};
    } catch (const Failure &failure) {
        return {Outcome::Kind::failed, failure.exit_code(), failure.what()};
    } catch (const std::bad_alloc &) {
        return {Outcome::Kind::failed, exit_failed, "out of memory"};
    } catch (const std::exception &error) {
        return {Outcome::Kind::failed, exit_failed, error.what()};
    }
    return {};
}

const Outcome &cause_of(const std::vector<Outcome> &outcomes) {
    for (const Outcome::Kind kind : {Outcome::Kind::failed, Outcome::Kind::lost_connection})
        for (const Outcome &outcome : outcomes)
            if (outcome.kind == kind)
                return outcome;
    return outcomes.front();
}

} // namespace annulus::cli
