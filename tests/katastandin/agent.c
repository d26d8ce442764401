/* Process 1 of the machines that Kata's stand-in boots: it plays the kata-agent, whose protocol is ttrpc and whose
 * runtime is a library; here a few frames do, and a changed root. It takes root file systems as tar streams, runs
 * commands in them, and sends back what they write and how they end.
 *
 * A frame is channel (u32), kind (u8), length (u32), all little-endian, then the payload; strings in it end with NUL.
 * The host asks: n(ID, path) begin a tar stream into the container's root, d(bytes) its bytes, e() its end, m(ID) mount
 * kernel file systems, r(ID, cwd, uid, gid, count, argv…, env…) run, k(ID, signal) kill what runs in the container.
 * S() say what the kernel knows of the first processor and of this process.
 * The guest answers: s(words) that, o() done, x(words) refused, p() runs, O(bytes) and E(bytes) output, q(code) ended.
 * On channel 0: R(seconds when process 1 began, seconds when it listens; both since the kernel's start).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/vm_sockets.h>

#define LARGEST (64 << 10)
#define MOST 32
#define VSOCK_PORT 1024 /* as the kata-agent's */
#define PORT_NAME "org.fairlead.katastandin"

struct run {
  uint32_t channel;
  char id[128];
  pid_t pid;
  int out, err, code; /* descriptors, -1 once at their end; code -1: it runs */
};

static struct run runs[MOST];
static int host = -1, tar = -1, tar_code = -1;
static pid_t tar_pid;
static unsigned char buffer[LARGEST + 1];

static void die(const char *what) {
  fprintf(stderr, "stand-in's agent: %s: %s\n", what, strerror(errno));
  sync();
  exit(1); /* the kernel panics, and the machine ends */
}

/* The host's process is gone, the machine is not: what runs in it runs on, as under Kata's agent. */
static void stay(void) {
  for (;;) pause();
}

static int put_all(int to, const void *data, size_t size) {
  const char *at = data;
  while (size > 0) {
    ssize_t n = write(to, at, size);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return -1;
    at += n;
    size -= (size_t)n;
  }
  return 0;
}

static int get_all(void *data, size_t size) {
  char *at = data;
  while (size > 0) {
    ssize_t n = read(host, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    at += n;
    size -= (size_t)n;
  }
  return 0;
}

static void say(uint32_t channel, char kind, const void *data, uint32_t size) {
  unsigned char head[9];
  memcpy(head, &channel, 4);
  head[4] = (unsigned char)kind;
  memcpy(head + 5, &size, 4);
  if (put_all(host, head, sizeof head) || put_all(host, data, size)) stay();
}

static void refuse(uint32_t channel, const char *what, int number) {
  char words[300];
  int size = snprintf(words, sizeof words, "%s: %s", what, strerror(number));
  say(channel, 'x', words, (uint32_t)size);
}

static double uptime(void) {
  double found = 0;
  FILE *file = fopen("/proc/uptime", "r");
  if (file) {
    if (fscanf(file, "%lf", &found) != 1) found = 0;
    fclose(file);
  }
  return found;
}

/* What the kata-agent's metrics are made of: the line of /proc/stat for processor 0, when this process began. */
static void say_times(uint32_t channel) {
  char line[512], words[1024];
  unsigned long long booted = 0, ticks = 0;
  int size = 0;
  FILE *file = fopen("/proc/stat", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (!strncmp(line, "cpu0 ", 5)) size = snprintf(words, sizeof words, "%s", line + 5);
    sscanf(line, "btime %llu", &booted);
  }
  if (file) fclose(file);
  file = fopen("/proc/self/stat", "r");
  if (file && fgets(line, sizeof line, file)) {
    char *rest = strrchr(line, ')');
    for (int field = 2; rest && field < 22; field++) rest = strchr(rest + 1, ' ');
    if (rest) ticks = strtoull(rest, NULL, 10);
  }
  if (file) fclose(file);
  size += snprintf(words + size, sizeof words - (size_t)size, "%.2f\n", (double)booted + (double)ticks / 100);
  say(channel, 's', words, (uint32_t)size);
}

static void load_modules(void) {
  char name[128], path[160];
  FILE *file = fopen("/modules/order", "r");
  if (!file) return;
  while (fscanf(file, "%127s", name) == 1) {
    snprintf(path, sizeof path, "/modules/%s", name);
    int module = open(path, O_RDONLY);
    if (syscall(SYS_finit_module, module, "", 0) && errno != EEXIST) die(path);
    close(module);
  }
  fclose(file);
}

static int listen_vsock(void) {
  struct sockaddr_vm here = {.svm_family = AF_VSOCK, .svm_port = VSOCK_PORT, .svm_cid = VMADDR_CID_ANY};
  int listening = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listening < 0 || bind(listening, (struct sockaddr *)&here, sizeof here) || listen(listening, 1)) die("vsock");
  int found = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
  close(listening);
  return found;
}

static int open_port(void) {
  char path[80], name[80];
  for (int tries = 0; tries < 100; tries++, usleep(20000))
    for (int port = 1; port < 8; port++) {
      snprintf(path, sizeof path, "/sys/class/virtio-ports/vport0p%d/name", port);
      FILE *file = fopen(path, "r");
      if (!file) continue;
      int is_ours = fscanf(file, "%79s", name) == 1 && !strcmp(name, PORT_NAME);
      fclose(file);
      snprintf(path, sizeof path, "/dev/vport0p%d", port);
      if (is_ours) return open(path, O_RDWR | O_CLOEXEC);
    }
  return -1;
}

static int has_word(const char *word) {
  char line[4096] = "";
  FILE *file = fopen("/proc/cmdline", "r");
  if (file && !fgets(line, sizeof line, file)) line[0] = 0;
  if (file) fclose(file);
  return strstr(line, word) != NULL;
}

static void make_folders(char *path) {
  for (char *at = path + 1; *at; at++)
    if (*at == '/') {
      *at = 0;
      mkdir(path, 0755);
      *at = '/';
    }
  mkdir(path, 0755);
}

static void begin_tar(uint32_t channel, const char *id, const char *inner) {
  char path[400];
  int ends[2];
  if (tar >= 0) return refuse(channel, "another stream", EBUSY);
  snprintf(path, sizeof path, "/c/%s%s", id, inner);
  make_folders(path);
  if (pipe2(ends, O_CLOEXEC)) return refuse(channel, "pipe", errno);
  tar_code = -1;
  tar_pid = fork();
  if (tar_pid == 0) {
    dup2(ends[0], 0);
    execl("/bin/busybox", "tar", "-x", "-f", "-", "-C", path, NULL);
    _exit(127);
  }
  close(ends[0]);
  tar = ends[1];
  say(channel, 'o', "", 0);
}

static void end_tar(uint32_t channel) {
  int status = 0;
  close(tar);
  tar = -1;
  if (tar_code < 0) {
    if (waitpid(tar_pid, &status, 0) != tar_pid) return refuse(channel, "tar", errno);
    tar_code = status;
  }
  tar_pid = 0;
  if (tar_code) refuse(channel, "a root file system could not be unpacked", EIO);
  else say(channel, 'o', "", 0);
}

static void mount_all(uint32_t channel, const char *id) {
  static const char *const kinds[][2] = {{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}};
  char path[200];
  for (unsigned at = 0; at < sizeof kinds / sizeof *kinds; at++) {
    snprintf(path, sizeof path, "/c/%s%s", id, kinds[at][1]);
    make_folders(path);
    if (mount(kinds[at][0], path, kinds[at][0], 0, NULL)) return refuse(channel, path, errno);
  }
  say(channel, 'o', "", 0);
}

static const char *take(unsigned char **at, unsigned char *end) {
  char *found = (char *)*at;
  unsigned char *stop = memchr(*at, 0, (size_t)(end - *at));
  if (!stop) return NULL;
  *at = stop + 1;
  return found;
}

static void run(uint32_t channel, unsigned char *at, unsigned char *end) {
  const char *fixed[5]; /* id, cwd, uid, gid, count */
  char *words[1024], path[200];
  int count = 0, out[2], err[2], told[2], problem = 0;
  struct run *made = NULL;
  for (int each = 0; each < 5; each++)
    if (!(fixed[each] = take(&at, end))) return refuse(channel, "run", EINVAL);
  int arguments = atoi(fixed[4]);
  while (at < end && count < 1022) {
    if (count == arguments) words[count++] = NULL;
    const char *word = take(&at, end);
    if (!word) return refuse(channel, "run", EINVAL);
    words[count++] = (char *)word;
  }
  if (count == arguments) words[count++] = NULL;
  words[count] = NULL;
  if (at < end || arguments < 1 || arguments >= count) return refuse(channel, "run", E2BIG);
  for (int each = 0; each < MOST && !made; each++)
    if (!runs[each].pid) made = &runs[each];
  if (!made) return refuse(channel, "run", EAGAIN);
  if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(told, O_CLOEXEC)) return refuse(channel, "pipe", errno);
  snprintf(path, sizeof path, "/c/%s", fixed[0]);
  pid_t pid = fork();
  if (pid == 0) {
    sigset_t none;
    gid_t group = (gid_t)atoi(fixed[3]);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    environ = words + arguments + 1;
    if (!chroot(path) && !chdir(fixed[1]) && !setgroups(1, &group) && !setgid(group) && !setuid((uid_t)atoi(fixed[2])))
      execvp(words[0], words);
    problem = errno;
    if (write(told[1], &problem, sizeof problem) < 0) _exit(126);
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  close(told[1]);
  if (pid > 0 && read(told[0], &problem, sizeof problem) > 0) {
    close(out[0]);
    close(err[0]);
    refuse(channel, words[0], problem);
  } else if (pid > 0) {
    *made = (struct run){.channel = channel, .pid = pid, .out = out[0], .err = err[0], .code = -1};
    snprintf(made->id, sizeof made->id, "%s", fixed[0]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    say(channel, 'p', "", 0);
  } else {
    refuse(channel, "fork", errno);
  }
  close(told[0]);
}

static void kill_all(uint32_t channel, const char *id, const char *number) {
  int found = 0;
  for (int each = 0; each < MOST; each++)
    if (runs[each].pid && runs[each].code < 0 && !strcmp(runs[each].id, id))
      /* As in a pid namespace of its own, whose processes all end with the first. */
      found += !kill(atoi(number) == SIGKILL ? -runs[each].pid : runs[each].pid, atoi(number));
  if (found) say(channel, 'o', "", 0);
  else refuse(channel, id, ESRCH);
}

static void obey(void) {
  unsigned char head[9];
  uint32_t channel, size;
  if (get_all(head, sizeof head)) stay();
  memcpy(&channel, head, 4);
  memcpy(&size, head + 5, 4);
  if (size > LARGEST) die("a frame that is too large");
  if (get_all(buffer, size)) stay();
  buffer[size] = 0;
  unsigned char *at = buffer, *end = buffer + size;
  const char *first, *second;
  switch (head[4]) {
    case 'n':
      first = take(&at, end);
      second = take(&at, end);
      if (first && second) begin_tar(channel, first, second);
      break;
    case 'd': /* what tar does not take is told at its end */
      put_all(tar, buffer, size);
      break;
    case 'e': end_tar(channel); break;
    case 'm':
      if ((first = take(&at, end))) mount_all(channel, first);
      break;
    case 'r': run(channel, at, end); break;
    case 'k':
      first = take(&at, end);
      second = take(&at, end);
      if (first && second) kill_all(channel, first, second);
      break;
    case 'S': say_times(channel); break;
    default: refuse(channel, "an unknown frame", EINVAL);
  }
}

static void reap(void) {
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    if (pid == tar_pid) tar_code = status;
    for (int each = 0; each < MOST; each++)
      if (runs[each].pid == pid) runs[each].code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
}

/* Carry what a command has written; its descriptor becomes -1 at the end. */
static void carry(struct run *one, int *from, char kind) {
  char data[16 << 10];
  ssize_t n;
  while (*from >= 0 && (n = read(*from, data, sizeof data)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    say(one->channel, kind, data, (uint32_t)n);
  }
  if (*from >= 0) close(*from);
  *from = -1;
}

int main(void) {
  char words[80];
  sigset_t children;
  struct signalfd_siginfo told;
  mkdir("/proc", 0755);
  mkdir("/sys", 0755);
  mkdir("/c", 0755);
  mount("proc", "/proc", "proc", 0, NULL);
  mount("sysfs", "/sys", "sysfs", 0, NULL);
  mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
  double began = uptime();
  load_modules();
  signal(SIGPIPE, SIG_IGN);
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_BLOCK, &children, NULL);
  int signals = signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC);
  host = has_word("agent.vsock") ? listen_vsock() : open_port();
  if (host < 0) die("no way to the host");
  int size = snprintf(words, sizeof words, "%.2f %.2f", began, uptime());
  say(0, 'R', words, (uint32_t)size);
  for (;;) {
    struct pollfd waits[2 + 2 * MOST] = {{.fd = host, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    for (int each = 0; each < MOST; each++) {
      waits[2 + 2 * each] = (struct pollfd){.fd = runs[each].pid ? runs[each].out : -1, .events = POLLIN};
      waits[3 + 2 * each] = (struct pollfd){.fd = runs[each].pid ? runs[each].err : -1, .events = POLLIN};
    }
    if (poll(waits, 2 + 2 * MOST, -1) < 0 && errno != EINTR) die("poll");
    if (waits[0].revents & (POLLERR | POLLHUP)) stay();
    while (read(signals, &told, sizeof told) > 0) {}
    reap();
    for (int each = 0; each < MOST; each++) {
      struct run *one = &runs[each];
      if (!one->pid) continue;
      int was = one->code;
      carry(one, &one->out, 'O');
      carry(one, &one->err, 'E');
      if (was < 0) continue;
      /* What goes on in the background keeps the pipes; the command itself has ended. */
      if (one->out >= 0) close(one->out);
      if (one->err >= 0) close(one->err);
      size = snprintf(words, sizeof words, "%d", was);
      say(one->channel, 'q', words, (uint32_t)size);
      one->pid = 0;
    }
    if (waits[0].revents & POLLIN) obey();
  }
}
