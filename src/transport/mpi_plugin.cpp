// SPDX-License-Identifier: Apache-2.0
#include "transport/mpi_plugin.hpp"

#include "core/error.hpp"
#include "engine/plugin.hpp"

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <vector>

namespace annulus {

namespace {

constexpr PluginFile file{
    ANNULUS_MPI_PLUGIN,
    "annulus_mpi_plugin",
    "MPI",
#ifdef ANNULUS_HAVE_MPI
    true,
#else
    false,
#endif
};

using Initialized = decltype(MpiPlugin::initialized);

// Returns the function that identifies an MPI library. `library` is that library or one that is linked with it.
Initialized initialized_of(void *library) {
    return reinterpret_cast<Initialized>(dlsym(library, "PMPI_Initialized"));
}

const char *file_of(Initialized function) {
    Dl_info found{};
    return dladdr(reinterpret_cast<void *>(function), &found) != 0 && found.dli_fname ? found.dli_fname : "the program";
}

const MpiPlugin &table_of(const Plugin &plugin) {
    return *static_cast<const MpiPlugin *>(plugin.table);
}

Plugin load() {
    Plugin loaded = load_plugin(file);
    if (!loaded.table)
        return loaded;
    const Initialized own = initialized_of(loaded.library), reached = table_of(loaded).initialized;
    if (own != reached) {
        loaded.table = nullptr;
        loaded.failure.emplace(ANNULUS_ERROR_UNSUPPORTED,
                               "%s is for the MPI of %.150s, and in this process it meets that of %.150s", file.name,
                               file_of(own), file_of(reached));
    }
    return loaded;
}

const Plugin &plugin() {
    static const Plugin once = load();
    return once;
}

std::vector<std::string> loaded_files() {
    std::vector<std::string> files;
    dl_iterate_phdr(
        [](dl_phdr_info *info, std::size_t, void *list) {
            static_cast<std::vector<std::string> *>(list)->emplace_back(info->dlpi_name);
            return 0;
        },
        &files);
    return files;
}

// Throws if MPI is initialised in another library than the one that contains `own`.
void check_no_other_runs(Initialized own) {
    for (const std::string &loaded : loaded_files()) {
        void *const library = dlopen(loaded.empty() ? nullptr : loaded.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        if (!library)
            continue;
        const Initialized other = initialized_of(library);
        int runs = 0;
        if (other && other != own)
            other(&runs);
        dlclose(library);
        if (runs)
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "mpi_comm may be of another MPI library: MPI is initialised in %.150s, and %s uses that of "
                        "%.150s",
                        file_of(other), file.name, file_of(own));
    }
}

} // namespace

std::unique_ptr<Transport> make_transport_of_mpi_plugin(const void *mpi_comm) {
    plugin().required("MPI");
    const MpiPlugin &mpi = table_of(plugin());
    check_no_other_runs(mpi.initialized);
    return mpi.make_transport(mpi_comm);
}

const char *mpi_description() noexcept {
    return plugin().table ? table_of(plugin()).library_version() : "none";
}

} // namespace annulus
