// SPDX-License-Identifier: Apache-2.0
// The CPU quota of cgroups, for the file layouts of several systems, as files below a made-up root.
#include "cpu/thread_count.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace annulus::test {
namespace {

namespace fs = std::filesystem;

// A root directory with these files, during the lifetime of the object.
class Root {
  public:
    Root(std::initializer_list<std::pair<std::string, std::string>> files) {
        std::string name = fs::temp_directory_path() / "annulus-XXXXXX";
        if (!mkdtemp(name.data()))
            throw std::runtime_error("no temporary directory");
        path_ = name;
        for (const auto &[file, text] : files) {
            fs::create_directories((path_ / file).parent_path());
            std::ofstream(path_ / file) << text;
        }
    }
    ~Root() { fs::remove_all(path_); }
    Root(const Root &) = delete;
    Root &operator=(const Root &) = delete;

    int quota() const { return cpu_quota(path_); }

  private:
    fs::path path_;
};

const std::string own = "proc/self/cgroup", mounts = "proc/self/mountinfo";
const std::string disk = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n",
                  v2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
                  v1 = "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n",
                  v1_sets = "34 31 0:30 / /sys/fs/cgroup/cpuset rw shared:10 - cgroup cgroup rw,cpuset\n";

TEST(CpuQuota, OfVersion2) {
    // On the host: the quota of the service itself, and the lowest of the service and its parents.
    const std::string service = "0::/system.slice/job.service\n";
    EXPECT_EQ(Root({{own, service},
                    {mounts, disk + v2},
                    {"sys/fs/cgroup/system.slice/cpu.max", "max 100000\n"},
                    {"sys/fs/cgroup/system.slice/job.service/cpu.max", "350000 100000\n"}})
                  .quota(),
              4);
    EXPECT_EQ(Root({{own, service},
                    {mounts, disk + v2},
                    {"sys/fs/cgroup/system.slice/cpu.max", "40000 20000\n"},
                    {"sys/fs/cgroup/system.slice/job.service/cpu.max", "350000 100000\n"},
                    {"sys/fs/cgroup/other.slice/cpu.max", "1000 100000\n"}})
                  .quota(),
              2);
    // In a container whose namespace makes its own cgroup the root.
    EXPECT_EQ(Root({{own, "0::/\n"}, {mounts, disk + v2}, {"sys/fs/cgroup/cpu.max", "150000 100000\n"}}).quota(), 2);
}

TEST(CpuQuota, OfVersion1) {
    const std::string directory = "sys/fs/cgroup/cpu,cpuacct/";
    EXPECT_EQ(Root({{own, "5:cpuset:/a\n4:cpu,cpuacct:/user/job\n0::/\n"},
                    {mounts, disk + v1_sets + v1 + v2},
                    {directory + "cpu.cfs_quota_us", "-1\n"},
                    {directory + "cpu.cfs_period_us", "100000\n"},
                    {directory + "user/cpu.cfs_quota_us", "800000\n"},
                    {directory + "user/cpu.cfs_period_us", "100000\n"},
                    {directory + "user/job/cpu.cfs_quota_us", "250000\n"},
                    {directory + "user/job/cpu.cfs_period_us", "50000\n"}})
                  .quota(),
              5);
    // In a container without a namespace of its own: the mount begins at its cgroup.
    EXPECT_EQ(
        Root({{own, "4:cpu,cpuacct:/docker/c0ffee\n"},
              {mounts, "33 31 0:29 /docker/c0ffee /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"},
              {directory + "cpu.cfs_quota_us", "300000\n"},
              {directory + "cpu.cfs_period_us", "100000\n"}})
            .quota(),
        3);
    // The mount of another container, whose name begins in the same way.
    EXPECT_EQ(Root({{own, "4:cpu,cpuacct:/docker/c0ffee\n"},
                    {mounts, "33 31 0:29 /docker/c0 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"},
                    {directory + "cpu.cfs_quota_us", "300000\n"},
                    {directory + "cpu.cfs_period_us", "100000\n"}})
                  .quota(),
              max_threads);
}

TEST(CpuQuota, IsFromOneToTheMost) {
    const std::pair<std::string, int> quotas[] = {{"1 100000", 1},
                                                  {"99999 100000", 1},
                                                  {"100000 100000", 1},
                                                  {"100001 100000", 2},
                                                  {"102400000 100000", 1024},
                                                  {"999999999999 100000", max_threads},
                                                  {"max 100000", max_threads},
                                                  {"", max_threads},
                                                  {"many 100000", max_threads},
                                                  {"100000", max_threads},
                                                  {"100000 0", max_threads},
                                                  {"-5 100000", max_threads}};
    for (const auto &[text, wanted] : quotas)
        EXPECT_EQ(Root({{own, "0::/\n"}, {mounts, v2}, {"sys/fs/cgroup/cpu.max", text + "\n"}}).quota(), wanted)
            << text;
}

TEST(CpuQuota, IsNoneWithoutCgroups) {
    EXPECT_EQ(Root({}).quota(), max_threads);
    EXPECT_EQ(Root({{own, "0::/a\n"}, {mounts, disk}}).quota(), max_threads);
    EXPECT_EQ(Root({{own, "what is this\n"}, {mounts, "and this -\n"}}).quota(), max_threads);
}

} // namespace
} // namespace annulus::test
