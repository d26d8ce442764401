/*
 * Answers as libnvidia-ml.so.1 does on a machine whose GPUs stand in FAIRLEAD_TEST_GPUS ("UUID=MINOR,..."), so that
 * NVIDIA's own programs can be run where there is no GPU. What is not here, a caller finds missing at its first call.
 * Source: NVIDIA NVML API reference guide, device queries and event handling; nvml.h, nvmlPciInfo_t.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, MOST = 16 };

typedef struct { char uuid[96]; unsigned int minor; } gpu_t;
typedef struct {
    char legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char id[32];
} pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static gpu_t gpus[MOST];
static unsigned int count;

int nvmlInit_v2(void) {
    char *rest, *word, text[MOST * 112];
    const char *given = getenv("FAIRLEAD_TEST_GPUS");

    count = 0;
    snprintf(text, sizeof text, "%s", given ? given : "");
    for (word = strtok_r(text, ",", &rest); word && count < MOST; word = strtok_r(NULL, ",", &rest))
        if (sscanf(word, "%95[^=]=%u", gpus[count].uuid, &gpus[count].minor) == 2)
            count++;
    return SUCCESS;
}
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "an error of the double" : "success"; }

static int say(char *to, unsigned int size, const char *text) {
    snprintf(to, size, "%s", text);
    return SUCCESS;
}
int nvmlSystemGetDriverVersion(char *to, unsigned int size) { return say(to, size, "550.54.15"); }
int nvmlSystemGetNVMLVersion(char *to, unsigned int size) { return say(to, size, "12.550.54.15"); }
int nvmlSystemGetCudaDriverVersion(int *to) { *to = 12040; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = 12040; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned int *to) { *to = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu_t **to) {
    if (index >= count)
        return INVALID_ARGUMENT;
    *to = &gpus[index];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **to) {
    for (unsigned int i = 0; i < count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) {
            *to = &gpus[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetName(gpu_t *gpu, char *to, unsigned int size) { (void)gpu; return say(to, size, "NVIDIA H100 80GB HBM3"); }
int nvmlDeviceGetUUID(gpu_t *gpu, char *to, unsigned int size) { return say(to, size, gpu->uuid); }
int nvmlDeviceGetMinorNumber(gpu_t *gpu, unsigned int *to) { *to = gpu->minor; return SUCCESS; }
int nvmlDeviceGetIndex(gpu_t *gpu, unsigned int *to) { *to = (unsigned int)(gpu - gpus); return SUCCESS; }
int nvmlDeviceGetArchitecture(gpu_t *gpu, unsigned int *to) { (void)gpu; *to = 9; return SUCCESS; }
int nvmlDeviceGetBrand(gpu_t *gpu, unsigned int *to) { (void)gpu; *to = 2; return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(gpu_t *gpu, int *major, int *minor) {
    (void)gpu;
    *major = 9, *minor = 0;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *to) {
    (void)gpu;
    to->total = to->free = 80ULL << 30, to->used = 0;
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *to) {
    memset(to, 0, sizeof *to);
    to->bus = 0x10 + gpu->minor, to->device_id = 0x233010de;
    snprintf(to->legacy, sizeof to->legacy, "0000:%02X:00.0", to->bus);
    snprintf(to->id, sizeof to->id, "00000000:%02X:00.0", to->bus);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned int *now, unsigned int *next) {
    (void)gpu, (void)now, (void)next;
    return NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, unsigned int *to) { (void)gpu; *to = 0; return SUCCESS; }
int nvmlDeviceGetTopologyCommonAncestor(gpu_t *one, gpu_t *other, unsigned int *to) {
    (void)one, (void)other;
    *to = 40; /* one NUMA node */
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned int link, unsigned int *to) {
    (void)gpu, (void)link, (void)to;
    return NOT_SUPPORTED;
}

int nvmlEventSetCreate(gpu_t **set) { *set = gpus; return SUCCESS; }
int nvmlEventSetFree(gpu_t *set) { (void)set; return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(gpu_t *gpu, unsigned long long *to) { (void)gpu; *to = 8; return SUCCESS; }
int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, gpu_t *set) {
    (void)gpu, (void)types, (void)set;
    return SUCCESS;
}
int nvmlEventSetWait_v2(gpu_t *set, void *event, unsigned int milliseconds) {
    (void)set, (void)event;
    usleep(milliseconds * 1000);
    return TIMEOUT;
}
