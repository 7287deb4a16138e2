// The application of the rFaaS paper (IPDPS'23, Listing 2): one half of the work there, one half here.
#include <cstdio>
#include <string>

#include <sublet.hpp>

struct options {
    std::string manager;
    std::string lib;
    int size;
};

static void local_task(const double *in, double *out, int size) {
    for (int i = 0; i < size; i++) {
        out[i] = 2.0 * in[i];
    }
}

static bool compute(int size, options &opts) {
    sublet::invoker invoker{opts.manager};
    invoker.allocate(opts.lib, opts.size * sizeof(double), sublet::invoker::ALWAYS_WARM_INVOCATIONS);
    auto alloc = invoker.allocator<double>();
    sublet::buffer<double> in = alloc.input(2 * size);
    sublet::buffer<double> out = alloc.output(2 * size);
    for (int i = 0; i < 2 * size; i++) {
        in[i] = i;
    }
    // Offload part of the computation.
    auto f = invoker.submit("task", in, size, out);
    local_task(in.data() + size, out.data() + size, size);
    f.get();
    invoker.deallocate(); // Release computing resources.
    for (int i = 0; i < 2 * size; i++) {
        if (out[i] != 2.0 * i) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: listing2 MANAGER PACKAGE\n");
        return 2;
    }
    options opts{argv[1], argv[2], 1000};
    return compute(opts.size, opts) ? 0 : 1;
}
