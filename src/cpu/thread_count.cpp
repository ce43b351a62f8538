// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_count.hpp"

#include "core/argument.hpp"
#include "core/progression.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <ranges>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace annulus {

namespace {

namespace fs = std::filesystem;

// Returns the number that the whole text is, or nothing. Independent of the process's locale.
std::optional<std::int64_t> whole_number(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

std::vector<std::string> words_of(std::istream &&text) {
    std::vector<std::string> words;
    for (std::string word; text >> word;)
        words.push_back(word);
    return words;
}

bool has_item(const std::string &list, std::string_view wanted) { // `list` is separated by commas
    std::istringstream items(list);
    for (std::string item; std::getline(items, item, ',');)
        if (item == wanted)
            return true;
    return false;
}

// Returns the quota of one cgroup directory, in CPUs rounded up, or max_threads if there is none. v2 has a file
// `cpu.max` with quota and period; v1 has a file for each. "max" or -1 means no quota.
int quota_of(const fs::path &directory) {
    std::vector<std::string> words = words_of(std::ifstream(directory / "cpu.max"));
    if (words.empty())
        for (const char *const name : {"cpu.cfs_quota_us", "cpu.cfs_period_us"})
            std::ranges::copy(words_of(std::ifstream(directory / name)), std::back_inserter(words));
    if (words.size() != 2)
        return max_threads;
    const std::optional<std::int64_t> quota = whole_number(words[0]), period = whole_number(words[1]);
    if (!quota || !period || *quota <= 0 || *period <= 0)
        return max_threads;
    return static_cast<int>(std::min<std::int64_t>(max_threads, divide_up(*quota, *period)));
}

// Returns the lowest quota of a cgroup and its parents, up to the directory where its hierarchy is mounted.
int quota_up_to(const fs::path &mount, const std::string &cgroup) {
    int lowest = quota_of(mount);
    fs::path directory = mount;
    for (const fs::path &name : fs::path(cgroup).relative_path())
        lowest = std::min(lowest, quota_of(directory /= name));
    return lowest;
}

// A hierarchy of cgroups that limits CPU time, and the process's cgroup in it.
struct Hierarchy {
    bool is_v2;
    std::string cgroup;
};

// Reads lines of /proc/self/cgroup: number:controllers:path. In v2 the controllers are empty.
std::vector<Hierarchy> hierarchies(std::istream &&lines) {
    std::vector<Hierarchy> all;
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos)
            continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (controllers.empty() || has_item(controllers, "cpu"))
            all.push_back({controllers.empty(), line.substr(second + 1)});
    }
    return all;
}

// Returns the path of a cgroup relative to the root of a mount, or nothing if it is not below that root.
std::optional<std::string> below(const std::string &root, const std::string &cgroup) {
    if (root == "/")
        return cgroup;
    if (!cgroup.starts_with(root) || (cgroup.size() > root.size() && cgroup[root.size()] != '/'))
        return std::nullopt;
    return cgroup.substr(root.size());
}

} // namespace

int allowed_cpus() {
    cpu_set_t allowed;
    const int count = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                          ? CPU_COUNT(&allowed)
                          : static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(count, 1, max_threads);
}

int cpu_quota(const fs::path &root) {
    const std::vector<Hierarchy> own = hierarchies(std::ifstream(root / "proc/self/cgroup"));
    int lowest = max_threads;
    // A line is: id, parent, device, root, mount point, options, some fields, "-", type, source, options of the type.
    std::ifstream mounts(root / "proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        const std::vector<std::string> words = words_of(std::istringstream(line));
        const auto dash = std::ranges::find(words, "-");
        if (dash - words.begin() < 6 || words.end() - dash < 4)
            continue;
        const bool is_v2 = dash[1] == "cgroup2";
        if (!is_v2 && (dash[1] != "cgroup" || !has_item(dash[3], "cpu")))
            continue;
        for (const Hierarchy &hierarchy : own)
            if (hierarchy.is_v2 == is_v2)
                if (const std::optional<std::string> cgroup = below(words[3], hierarchy.cgroup))
                    lowest = std::min(lowest, quota_up_to(root / fs::path(words[4]).relative_path(), *cgroup));
    }
    return lowest;
}

int environment_threads() {
    const char *const text = std::getenv("ANNULUS_NUM_THREADS");
    if (!text)
        return 0;
    const std::optional<std::int64_t> number = whole_number(text);
    if (!number || *number < 1 || *number > max_threads)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "the environment variable ANNULUS_NUM_THREADS is \"%s\"; it must be a number from 1 to %d",
                    shown_text(text).c_str(), max_threads);
    return static_cast<int>(*number);
}

} // namespace annulus
