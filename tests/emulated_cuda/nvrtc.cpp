// An emulated NVRTC: compiles a kernel's text with the host's compiler, and what comes out is its cubin.
//
//   EMULATED_CUDA_OPTIONS  of the host's compiler, for kernel.h and the headers that it takes from elsewhere
#include <nvrtc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "emulated.h"
#include "launch.h"

struct _nvrtcProgram {
    std::string source, log, image;
};

namespace {
std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// The text as C++ for the host, with an entry for each of its kernels.
std::string translated(const std::string& source) {
    static const std::regex dynamic(R"(extern\s+__shared__\s+(?:__align__\(\w+\)\s*)?([\w ]+?)\s+(\w+)\[\];)");
    static const std::regex entry(R"(extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\()");
    std::string text = std::regex_replace(source, dynamic, "$1* $2 = ($1*)emulated::fibers->shared;");
    const char* has_barriers = source.find("__syncthreads") == std::string::npos ? "false" : "true";
    std::string entries;
    for (std::sregex_iterator found(source.begin(), source.end(), entry), end; found != end; ++found)
        entries += "EMULATED_KERNEL(" + (*found)[1].str() + ", " + has_barriers + ")\n";
    return text + "\n" + entries;
}

bool compiles(nvrtcProgram program, int n, const char* const* options) {
    char folder[] = "/tmp/emulated-nvrtc-XXXXXX";
    if (!mkdtemp(folder)) return false;
    std::string path = folder;
    std::string command = std::string("g++ -std=c++17 -O1 -w -shared -fPIC -fno-gnu-unique -include kernel.h ") +
                          getenv("EMULATED_CUDA_OPTIONS");
    for (int i = 0; i < n; i++) {
        std::string option = options[i];
        if (option.rfind("-D", 0) == 0 || option.rfind("-I", 0) == 0) command += " '" + option + "'";
        if (option == "--fmad=false") command += " -ffp-contract=off";
    }
    std::ofstream(path + "/kernel.cpp") << translated(program->source);
    command += " " + path + "/kernel.cpp -o " + path + "/kernel.so >" + path + "/log 2>&1";
    bool is_good = system(command.c_str()) == 0;
    program->log = contents(path + "/log");
    std::string library = contents(path + "/kernel.so");
    for (const char* name : {"/kernel.cpp", "/kernel.so", "/log", ""}) remove((path + name).c_str());
    emulated::Image head{{}, sizeof head + library.size()};
    memcpy(head.magic, emulated::MAGIC, sizeof head.magic);
    program->image.assign((const char*)&head, sizeof head);
    program->image += library;
    return is_good;
}

}  // namespace

extern "C" {
const char* nvrtcGetErrorString(nvrtcResult error) {
    return error == NVRTC_ERROR_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "emulated NVRTC error";
}
nvrtcResult nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 9, NVRTC_SUCCESS; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int n_headers,
                               const char* const*, const char* const*) {
    if (n_headers) return (nvrtcResult)emulated::unsupported("headers in memory", NVRTC_ERROR_INVALID_INPUT);
    return *program = new _nvrtcProgram{source}, NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) { return delete *program, NVRTC_SUCCESS; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int n, const char* const* options) {
    return program->source.empty() || compiles(program, n, options) ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}
#define IMAGE(name) \
    nvrtcResult nvrtcGet##name##Size(nvrtcProgram program, size_t* n) { return *n = program->image.size(), NVRTC_SUCCESS; } \
    nvrtcResult nvrtcGet##name(nvrtcProgram program, char* place) { \
        return memcpy(place, program->image.data(), program->image.size()), NVRTC_SUCCESS; \
    }
IMAGE(PTX)
IMAGE(CUBIN)
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* n) {
    return *n = program->log.size() + 1, NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* place) {
    return memcpy(place, program->log.c_str(), program->log.size() + 1), NVRTC_SUCCESS;
}
}
