/* Lists a Manager's partitions as fmctl prints them, through the library: what `fairlead fabric list` is measured against. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "abi.h"

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* client LIBRARY ADDRESS KIND RUNS: prints the median of RUNS listings in microseconds; with 0 the table itself. */
int main(int count, char **words) {
    if (count != 5) return 2;
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) return 3;
    int (*init)(void) = (int (*)(void))dlsym(library, "fmLibInit");
    int (*join)(void *, void **) = (int (*)(void *, void **))dlsym(library, "fmConnect");
    int (*list)(void *, void *) = (int (*)(void *, void *))dlsym(library, "fmGetSupportedFabricPartitions");
    struct ConnectParamsV2 params = {.version = CONNECT_V2, .timeout_ms = 1000};
    strncpy(params.address, words[2], sizeof params.address - 1);
    params.address_type = (uint32_t)atoi(words[3]);
    params.is_unix_socket = params.address_type == 2;
    void *handle;
    if (init() || join(&params, &handle)) return 4;
    int runs = atoi(words[4]), rounds = runs ? runs : 1;
    double *took = calloc((size_t)rounds, sizeof *took);
    char *text = malloc(1 << 16);
    size_t length = 0;
    for (int run = 0; run < rounds; run++) {
        double began = now_us();
        struct PartitionList *found = calloc(1, sizeof *found);
        found->version = PARTITIONS;
        if (list(handle, found)) return 5;
        length = 0;
        for (uint32_t at = 0; at < found->count; at++) {
            struct PartitionInfo *one = &found->partitions[at];
            uint32_t links = 0;
            char ids[64] = "";
            for (uint32_t gpu = 0; gpu < one->gpu_count; gpu++) {
                links += one->gpus[gpu].links;
                snprintf(ids + strlen(ids), sizeof ids - strlen(ids), gpu ? ",%u" : "%u", one->gpus[gpu].physical_id);
            }
            length += (size_t)snprintf(text + length, (1 << 16) - length, "%-12u  %-8s  %-4u  %-7u  %s\n", one->id,
                                       one->is_active ? "Active" : "Inactive", one->gpu_count, links, ids);
        }
        free(found);
        took[run] = now_us() - began;
    }
    if (!runs) fwrite(text, 1, length, stdout);
    qsort(took, (size_t)rounds, sizeof *took, ascending);
    if (runs) printf("%.3f\n", took[rounds / 2]);
    return 0;
}
