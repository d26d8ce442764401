/* A stand-in for libnvfm.so.1, compiled by the tests against a header that is written from the package's own statement
   of the interface. It forwards each call to the stub of the Manager, over the address that it is given, and copies
   what comes back: what the Manager says wrong arrives as it is. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include "abi.h"

enum { HELLO = 1, LIST, ACTIVATE, DEACTIVATE, SET, FAILED, UNSUPPORTED };
enum { CRASH = 0x7fffffff };
static int initialised;

struct connection { int fd; };

static int whole(int fd, void *data, size_t size, int writes) {
    for (char *at = data; size;) {
        ssize_t n = writes ? send(fd, at, size, MSG_NOSIGNAL) : recv(fd, at, size, 0);
        if (n <= 0) { if (n < 0 && errno == EINTR) continue; return -1; }
        at += n; size -= (size_t)n;
    }
    return 0;
}

/* One call: three words and what belongs to them there, two words and what belongs to them back. */
static int call(int fd, uint32_t what, uint32_t argument, void *out, uint32_t sent, void *in, uint32_t most) {
    uint32_t head[3] = {what, argument, sent}, back[2];
    if (whole(fd, head, sizeof head, 1) || (sent && whole(fd, out, sent, 1)) || whole(fd, back, sizeof back, 0)) return -9;
    if (back[1] > most) return -2;
    if (back[1] && whole(fd, in, back[1], 0)) return -9;
    if ((int32_t)back[0] == CRASH) raise(SIGSEGV);
    return (int32_t)back[0];
}

static int dial(const char *address, uint32_t kind) {
    char host[256]; const char *colon = strrchr(address, ':');
    if (kind == 2) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strncpy(to.sun_path, address, sizeof to.sun_path - 1);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to)) { close(fd); return -1; }
        return fd;
    }
    if (!colon) return -1;
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    if (kind == 3) {
        struct sockaddr_vm to = {.svm_family = AF_VSOCK, .svm_cid = (unsigned)strtoul(host, NULL, 10),
                                 .svm_port = (unsigned)strtoul(colon + 1, NULL, 10)};
        int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to)) { close(fd); return -1; }
        return fd;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &found)) return -1;
    int on = 1, fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen)) { close(fd); fd = -1; }
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    freeaddrinfo(found);
    return fd;
}

int fmLibInit(void) { initialised++; return 0; }
int fmLibShutdown(void) { initialised--; return 0; }

int fmConnect(void *given, void **handle) {
    if (!initialised) return -4;
    if (!given || !handle) return -1;
    struct ConnectParamsV2 params = {0};
    uint32_t version;
    memcpy(&version, given, sizeof version);
#ifndef ONLY_V1
    if (version == CONNECT_V2) memcpy(&params, given, sizeof params);
    else
#endif
    if (version == CONNECT_V1) {
        memcpy(&params, given, sizeof(struct ConnectParamsV1));
        params.address_type = params.is_unix_socket ? 2 : 1;
    } else return -6;
    if (memchr(params.address, 0, sizeof params.address) == NULL || !params.timeout_ms) return -1;
    int fd = dial(params.address, params.address_type);
    if (fd < 0) return -9;
    int code = call(fd, HELLO, version, NULL, 0, NULL, 0);
    struct connection *made = code ? NULL : malloc(sizeof *made);
    if (code) { close(fd); return code; }
    made->fd = fd;
    *handle = made;
    return 0;
}

int fmDisconnect(void *handle) {
    struct connection *made = handle;
    if (!made) return -1;
    close(made->fd);
    free(made);
    return 0;
}

static int fetch(void *handle, uint32_t what, void *out, uint32_t version, uint32_t size) {
    uint32_t given;
    if (!handle || !out) return -1;
    memcpy(&given, out, sizeof given);
    if (given != version) return -6;
    int code = call(((struct connection *)handle)->fd, what, 0, NULL, 0, out, size);
    memcpy(out, &given, sizeof given);
    return code;
}

int fmGetSupportedFabricPartitions(void *handle, void *out) {
    return fetch(handle, LIST, out, PARTITIONS, sizeof(struct PartitionList));
}
int fmGetNvlinkFailedDevices(void *handle, void *out) {
    return fetch(handle, FAILED, out, FAILED_DEVICES, sizeof(struct FailedDevices));
}
#ifndef HALF
int fmGetUnsupportedFabricPartitions(void *handle, void *out) {
    return fetch(handle, UNSUPPORTED, out, UNSUPPORTED_LIST, sizeof(struct UnsupportedList));
}
#endif
int fmActivateFabricPartition(void *handle, uint32_t id) {
    return handle ? call(((struct connection *)handle)->fd, ACTIVATE, id, NULL, 0, NULL, 0) : -1;
}
int fmDeactivateFabricPartition(void *handle, uint32_t id) {
    return handle ? call(((struct connection *)handle)->fd, DEACTIVATE, id, NULL, 0, NULL, 0) : -1;
}
int fmSetActivatedFabricPartitions(void *handle, void *given) {
    struct ActivatedList list;
    if (!handle || !given) return -1;
    memcpy(&list, given, sizeof list);
    if (list.version != ACTIVATED) return -6;
    if (list.count > 64) return -1;
    return call(((struct connection *)handle)->fd, SET, list.count, list.ids, 4 * list.count, NULL, 0);
}
