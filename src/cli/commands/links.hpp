// SPDX-License-Identifier: Apache-2.0
// How fast ranks agree and exchange rows: measured by `annulus bench --links`, saved in a small JSON file, read by
// `annulus plan --links`. Without a file `plan` takes what tuning.hpp and data sheets say.
#pragma once

#include "cli/devices/gpu_models.hpp"
#include "cli/report/report.hpp"

#include <optional>
#include <string>

namespace annulus::cli {

// A link from one rank to another.
struct Link {
    double exchange_seconds; // of an exchange beside its bytes
    double bytes_per_second; // in each direction
};

struct Links {
    std::string source;      // who says so, for the reader
    bool are_of_gpus = true; // else of CPUs
    double agreement_seconds = 0;
    std::optional<Link> same_host, other_hosts; // none if no two ranks were on one host, or on different hosts
};

// Returns the links of `hosts` hosts of GPUs, each with 400 Gb/s to other hosts.
Links known_links(const GpuModel &model, int hosts);

// Reads the file that --links names. Throws Failure if it is not such a file, or if it tells of links between CPUs.
Links read_links(const std::string &path);
// Returns the contents of such a file.
std::string links_text(const Links &links);

Facts link_facts(const Links &links);

} // namespace annulus::cli
