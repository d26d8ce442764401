/* Uses a function through VFIO as a virtual machine monitor does, and tells how far it gets: one JSON line a step.
   probe status GROUP              flags of a group
   probe use GROUP ADDRESS OTHER   all of it, then another group's node by name and made by number */
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static long tell(const char *step, long value) {
  int error = value < 0 ? errno : 0;
  printf("{\"step\": \"%s\", \"value\": %ld, \"errno\": %d}\n", step, value, error);
  return value;
}

static char *node(const char *name) {
  char *path = malloc(64);
  snprintf(path, 64, "/dev/vfio/%s", name);
  return path;
}

static long flags(int group) {
  struct vfio_group_status status = {.argsz = sizeof status};
  long done = ioctl(group, VFIO_GROUP_GET_STATUS, &status);
  return tell("status", done < 0 ? done : status.flags);
}

static void numbers(const char *step, const char *path) {
  struct stat found;
  long done = stat(path, &found);
  tell(step, done < 0 ? done : (long)(major(found.st_rdev) * 1000 + minor(found.st_rdev)));
}

static void map(int container) {
  void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct vfio_iommu_type1_dma_map wanted = {.argsz = sizeof wanted,
                                            .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
                                            .vaddr = (uintptr_t)page,
                                            .iova = 0x100000,
                                            .size = 4096};
  tell("map", ioctl(container, VFIO_IOMMU_MAP_DMA, &wanted));
}

static void read_config(int device) {
  struct vfio_region_info region = {.argsz = sizeof region, .index = VFIO_PCI_CONFIG_REGION_INDEX};
  tell("region", ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &region));
  uint16_t vendor = 0;
  uint32_t class = 0;
  tell("read vendor", pread(device, &vendor, sizeof vendor, (off_t)region.offset));
  tell("vendor", vendor);
  tell("read class", pread(device, &class, sizeof class, (off_t)region.offset + 8));
  tell("class", class >> 8);
}

static int use(const char *name, const char *address, const char *other, int first, int second) {
  numbers("numbers", node(name));
  int container = (int)tell("container", open("/dev/vfio/vfio", O_RDWR));
  tell("version", ioctl(container, VFIO_GET_API_VERSION));
  tell("type1", ioctl(container, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU));
  int group = (int)tell("group", open(node(name), O_RDWR));
  flags(group);
  tell("join", ioctl(group, VFIO_GROUP_SET_CONTAINER, &container));
  tell("iommu", ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU));
  map(container);
  int device = (int)tell("device", ioctl(group, VFIO_GROUP_GET_DEVICE_FD, address));
  if (device >= 0)
    read_config(device);
  tell("other by name", open(node(other), O_RDWR));
  unlink("/tmp/other");
  tell("mknod", mknod("/tmp/other", S_IFCHR | 0666, makedev(first, second)));
  tell("other by number", open("/tmp/other", O_RDWR));
  return 0;
}

int main(int count, char **words) {
  if (count == 3 && !strcmp(words[1], "status")) {
    int group = (int)tell("group", open(node(words[2]), O_RDWR));
    return group < 0 || flags(group) < 0;
  }
  if (count == 7 && !strcmp(words[1], "use"))
    return use(words[2], words[3], words[4], atoi(words[5]), atoi(words[6]));
  return 2;
}
